// SPDX-License-Identifier: Apache-2.0
// What the node's HTTP port understands: GET or HEAD of a path, without a body, one a connection. Everything
// else is answered with a message that says what was wrong.
#pragma once

#include <cstddef>
#include <expected>
#include <string>
#include <string_view>

namespace cistern::admin {

inline constexpr std::size_t kMaxRequestBytes = 8192;  // line and headers together

struct HttpRequest {
  std::string path;   // without what follows a '?'
  bool head = false;  // the answer's body is not sent
};

struct HttpAnswer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// Whether bytes that came so far hold the end of the headers.
bool HeadersEnd(std::string_view bytes);

// `bytes` up to the end of the headers at least. What is wrong, as the answer to it.
std::expected<HttpRequest, HttpAnswer> ParseHttpRequest(std::string_view bytes);

// The whole answer as it is sent: line, headers, and unless `head` the body.
std::string HttpAnswerText(const HttpAnswer& answer, bool head);

}  // namespace cistern::admin
