// SPDX-License-Identifier: Apache-2.0
#include "admin/http_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cistern::admin {
namespace {

using testing::HasSubstr;

TEST(HttpRequest, APathIsWhatStandsBeforeTheQuestion) {
  const auto get = ParseHttpRequest("GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(get.has_value());
  EXPECT_EQ(get->path, "/metrics");
  EXPECT_FALSE(get->head);
  const auto head = ParseHttpRequest("HEAD / HTTP/1.0\r\n\r\n");
  ASSERT_TRUE(head.has_value());
  EXPECT_TRUE(head->head);
}

TEST(HttpRequest, ATargetMayNameTheHost) {
  for (const auto& [target, path] :
       {std::pair("http://node:9100/metrics?a=b", "/metrics"), std::pair("HTTP://node/", "/"),
        std::pair("http://node", "/"), std::pair("http://node?a=/b", "/")}) {
    const auto get = ParseHttpRequest(std::string("GET ") + target + " HTTP/1.1\r\nHost: node\r\n\r\n");
    ASSERT_TRUE(get.has_value()) << target;
    EXPECT_EQ(get->path, path) << target;
  }
}

TEST(HttpRequest, WhatIsWrongIsSaid) {
  const std::pair<std::string, int> wrong[] = {
      {"\r\n\r\n", 400},
      {"GET\r\n\r\n", 400},
      {"GET /metrics\r\n\r\n", 400},
      {"GET metrics HTTP/1.1\r\n\r\n", 400},
      {"GET ftp://node/metrics HTTP/1.1\r\n\r\n", 400},
      {std::string("GET /\0 HTTP/1.1\r\n\r\n", 19), 400},
      {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n\r\n", 405},
      {"DELETE /metrics HTTP/1.1\r\n\r\n", 405},
      {"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 413},
      {"GET / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 413},
      {"GET / HTTP/1.1\r\nX: " + std::string(2 * kMaxRequestBytes, 'a'), 431},
      {std::string(kMaxRequestBytes + 1, 'a'), 431},
  };
  for (const auto& [bytes, status] : wrong) {
    const auto request = ParseHttpRequest(bytes);
    ASSERT_FALSE(request.has_value()) << bytes.substr(0, 40);
    EXPECT_EQ(request.error().status, status) << bytes.substr(0, 40) << ": " << request.error().body;
    EXPECT_GT(request.error().body.size(), 10u);
  }
}

TEST(HttpRequest, AnAnswerSaysItsLengthAndEndsTheConnection) {
  const HttpAnswer answer{.status = 200, .body = "ok\n"};
  const std::string text = HttpAnswerText(answer, false);
  EXPECT_TRUE(text.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(text, HasSubstr("\r\nContent-Length: 3\r\n"));
  EXPECT_THAT(text, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_TRUE(text.ends_with("\r\n\r\nok\n"));
  EXPECT_TRUE(HttpAnswerText(answer, true).ends_with("Connection: close\r\n\r\n"));
  EXPECT_THAT(HttpAnswerText({.status = 405}, false), HasSubstr("\r\nAllow: GET, HEAD\r\n"));
}

}  // namespace
}  // namespace cistern::admin
