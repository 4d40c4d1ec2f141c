// SPDX-License-Identifier: Apache-2.0
#include "endpoint/ask.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

namespace cistern {
namespace {

const std::vector<Message> kMessages = {{"system", "be"}, {"user", "say \"hi\"\n"}};

TEST(Ask, OfBothApis) {
  const boost::json::value chat = boost::json::parse(BodyOf({.model = "m"}, kMessages, 7));
  EXPECT_EQ(chat, boost::json::parse(R"({"model":"m","stream":true,"stream_options":{"include_usage":true},
      "temperature":0,"max_tokens":7,"ignore_eos":true,
      "messages":[{"role":"system","content":"be"},{"role":"user","content":"say \"hi\"\n"}]})"));
  const boost::json::value text =
      boost::json::parse(BodyOf({.api = Api::kCompletions, .model = "m", .plain = true}, kMessages, 7));
  EXPECT_EQ(text, boost::json::parse(R"({"model":"m","stream":true,"stream_options":{"include_usage":true},
      "temperature":0,"max_tokens":7,"prompt":"be\n\nsay \"hi\"\n"})"));
}

TEST(Ask, WithoutCisternNothingIsLoadedNorSaved) {
  const boost::json::value body =
      boost::json::parse(BodyOf({.model = "m", .without_cistern = true}, kMessages, 1));
  EXPECT_EQ(body.at("kv_transfer_params"),
            boost::json::parse(R"({"cistern.no_load":true,"cistern.no_save":true})"));
}

}  // namespace
}  // namespace cistern
