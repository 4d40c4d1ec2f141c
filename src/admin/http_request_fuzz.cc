// SPDX-License-Identifier: Apache-2.0
// Any bytes on the HTTP port: a request is understood or answered with a message, and the answer is one.
#include <cstdint>
#include <string_view>

#include "admin/http_request.h"
#include "base/assert.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cistern;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  (void)admin::HeadersEnd(bytes);
  const auto request = admin::ParseHttpRequest(bytes);
  if (request) {
    CISTERN_ASSERT(request->path.starts_with('/') && request->path.find('?') == std::string::npos);
    CISTERN_ASSERT(request->path.find_first_of(" \r\n") == std::string::npos);
    return 0;
  }
  CISTERN_ASSERT(request.error().status >= 400 && request.error().status < 500);
  CISTERN_ASSERT(!request.error().body.empty());
  CISTERN_ASSERT(admin::HttpAnswerText(request.error(), false).starts_with("HTTP/1.1 4"));
  return 0;
}
