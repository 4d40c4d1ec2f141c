// SPDX-License-Identifier: Apache-2.0
#include "admin/http_request.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>

#include "base/format.h"

namespace cistern::admin {
namespace {

namespace http = boost::beast::http;

constexpr std::string_view kEnd = "\r\n\r\n";

HttpAnswer Wrong(http::status status, std::string text) {
  text += '\n';
  return {.status = static_cast<int>(status), .body = std::move(text)};
}

}  // namespace

bool HeadersEnd(std::string_view bytes) { return bytes.find(kEnd) != std::string_view::npos; }

std::expected<HttpRequest, HttpAnswer> ParseHttpRequest(std::string_view bytes) {
  http::request_parser<http::empty_body> parser;
  parser.header_limit(kMaxRequestBytes);
  parser.eager(true);
  boost::beast::error_code error;
  parser.put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
  if (error == http::error::header_limit) {
    return std::unexpected(Wrong(http::status::request_header_fields_too_large,
                                 Text("a request has at most ", kMaxRequestBytes, " bytes of headers")));
  }
  if (parser.is_header_done() && (parser.chunked() || parser.content_length().value_or(0) > 0)) {
    return std::unexpected(Wrong(http::status::payload_too_large,
                                 "a request has no body here: the port only shows; `cistern admin` steers"));
  }
  if (error || !parser.is_done())
    return std::unexpected(
        Wrong(http::status::bad_request, Text("this is no HTTP/1 request: ", error.message())));
  const auto& message = parser.get();
  if (message.method() != http::verb::get && message.method() != http::verb::head) {
    return std::unexpected(Wrong(http::status::method_not_allowed,
                                 "GET and HEAD only: the port only shows; `cistern admin` steers"));
  }
  const auto target = message.target();
  std::string_view path(target.data(), target.size());
  // Who takes the port for a proxy names its host once more.
  if (constexpr std::string_view kScheme = "http://";
      boost::beast::iequals(path.substr(0, kScheme.size()), kScheme)) {
    path.remove_prefix(std::min(path.find_first_of("/?", kScheme.size()), path.size()));
    if (!path.starts_with('/')) path = "/";
  }
  if (!path.starts_with('/'))
    return std::unexpected(Wrong(http::status::bad_request, "the target of a request begins with /"));
  return HttpRequest{.path = std::string(path.substr(0, path.find('?'))),
                     .head = message.method() == http::verb::head};
}

std::string HttpAnswerText(const HttpAnswer& answer, bool head) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(answer.status));
  std::string text =
      Text("HTTP/1.1 ", answer.status, " ", std::string_view(reason.data(), reason.size()),
           "\r\nContent-Type: ", answer.type, "\r\nContent-Length: ", answer.body.size(),
           "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n",
           answer.status == 405 ? "Allow: GET, HEAD\r\n" : "", "\r\n");
  if (!head) text += answer.body;
  return text;
}

}  // namespace cistern::admin
