// SPDX-License-Identifier: Apache-2.0
#include "etcd/gateway_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"
#include "io/simulated_loop.h"

namespace cistern::etcd {
namespace {

using namespace std::literals;

TEST(GatewayMessage, Base64IsThatOfItsRfc) {
  const std::pair<std::string_view, std::string_view> pairs[] = {
      {"", ""},
      {"f", "Zg=="},
      {"fo", "Zm8="},
      {"foo", "Zm9v"},
      {"foob", "Zm9vYg=="},
      {"fooba", "Zm9vYmE="},
      {"foobar", "Zm9vYmFy"},
      {"\xff\xfe\xfd"sv, "//79"},
      {"\0\0"sv, "AAA="},
  };
  for (const auto& [bytes, text] : pairs) {
    EXPECT_EQ(EncodeBase64(bytes), text);
    EXPECT_EQ(DecodeBase64(text), bytes) << text;
  }
  for (const std::string_view text :
       {"Z", "Zg", "Zg=", "Zg===", "=Zg=", "Zm9=v", "Zm9v\n", "Zm-_", "Zh==", "===="})
    EXPECT_EQ(DecodeBase64(text), std::nullopt) << text;
}

TEST(GatewayMessage, WhatIsLongIsReadInManySteps) {
  SimulatedClock clock;
  io::SimulatedDisk disk(1);
  const auto loop = std::move(*io::SimulatedLoop::Make(clock, disk, 1));
  std::string text = R"({"header":{"cluster_id":"7","revision":"5"},"count":"5000","kvs":[)";
  for (int i = 0; i < 5'000; ++i) {
    text += Text(i == 0 ? "" : ",", R"({"key":")", EncodeBase64(Text("key/", 10'000 + i)),
                 R"(","create_revision":"1","mod_revision":"1","value":")",
                 EncodeBase64(std::string(200, 'v')), "\"}");
  }
  text += "]}";
  const std::uint64_t before = loop->executor().steps();
  const auto answer = loop->BlockOn(ReadRangeAnswer(loop->executor(), text));
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->keys.at(4'999).key, "key/14999");
  EXPECT_GE((loop->executor().steps() - before) * (64u << 10), text.size());
}

TEST(GatewayMessage, PasswordsAreQuoted) {
  EXPECT_EQ(LoginQuestion("a\"b", "c\\d\n"), R"({"name":"a\"b","password":"c\\d\n"})");
}

TEST(GatewayMessage, ATokenThatNoHeaderTakesIsRefusedAndNotShown) {
  EXPECT_EQ(ReadToken(R"({"token":"abc.1"})").value(), "abc.1");
  for (const std::string_view text : {R"({"token":"abc\r\nHost: x"})", R"({"token":""})", R"({})", "abc"}) {
    const auto token = ReadToken(text);
    ASSERT_FALSE(token);
    EXPECT_EQ(token.error().message().find("abc"), std::string::npos);
  }
}

}  // namespace
}  // namespace cistern::etcd
