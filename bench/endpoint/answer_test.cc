// SPDX-License-Identifier: Apache-2.0
#include "endpoint/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cistern {
namespace {

using testing::HasSubstr;

constexpr std::string_view kWhole =
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm \"},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"yes\"},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
    "data: [DONE]\n\n";

// The failure of a stream that is just this, or nothing.
std::optional<Failure> FailureOf(std::string_view stream) {
  AnswerReader reader;
  reader.Feed(stream, {1});
  return reader.Finish();
}

TEST(Answer, TheFirstTokenIsTheFirstTextAndNotTheRole) {
  AnswerReader reader;
  std::int64_t now = 0;
  for (std::size_t at = 0; at < kWhole.size(); ++at) ASSERT_TRUE(reader.Feed(kWhole.substr(at, 1), {++now}));
  EXPECT_FALSE(reader.Finish());
  ASSERT_EQ(reader.pieces().size(), 2u);
  EXPECT_EQ(reader.pieces()[0].ns,
            static_cast<std::int64_t>(kWhole.find("hm \"},\"finish_reason\":null}]}\n\n") +
                                      std::string_view("hm \"},\"finish_reason\":null}]}\n\n").size()));
  EXPECT_EQ(reader.text(), "hm yes");
  EXPECT_EQ(reader.usage().prompt_tokens, 9u);
  EXPECT_EQ(reader.usage().output_tokens, 2u);
  EXPECT_EQ(reader.usage().cached_tokens, 4u);
}

TEST(Answer, CompletionsAndAnswersWithoutVisibleText) {
  AnswerReader reader;
  EXPECT_TRUE(reader.Feed(
      "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}],\"usage\":null}\n\n", {5}));
  EXPECT_FALSE(reader.Finish()) << "finished, so whole without [DONE]";
  EXPECT_EQ(reader.pieces().size(), 1u);
  EXPECT_FALSE(reader.usage().prompt_tokens);
}

TEST(Answer, WhatIsNotWholeIsAFailureOfItsKind) {
  EXPECT_EQ(FailureOf("")->kind, FailureKind::kMalformed);
  EXPECT_EQ(FailureOf("<html>")->kind, FailureKind::kMalformed);
  EXPECT_EQ(FailureOf("data: nonsense\n\n")->kind, FailureKind::kMalformed);
  EXPECT_EQ(FailureOf("data: {\"object\":\"x\"}\n\n")->kind, FailureKind::kMalformed);
  EXPECT_EQ(FailureOf("data: [1]\n\n")->kind, FailureKind::kMalformed);
  EXPECT_EQ(FailureOf(kWhole.substr(0, kWhole.find("yes") + 40))->kind, FailureKind::kEndedEarly);
  EXPECT_EQ(FailureOf("data: [DONE]\n\n")->kind, FailureKind::kEndedEarly);
  const Failure failure =
      *FailureOf("data: {\"error\":{\"message\":\"no room\",\"code\":500}}\n\ndata: [DONE]\n\n");
  EXPECT_EQ(failure.kind, FailureKind::kServer);
  EXPECT_EQ(failure.reason, "no room");
}

TEST(Answer, AfterAFailureNothingIsTaken) {
  AnswerReader reader;
  EXPECT_FALSE(reader.Feed("data: {\"error\":\"x\"}\n\ndata: {\"choices\":[{\"text\":\"y\"}]}\n\n", {1}));
  EXPECT_FALSE(reader.Feed("data: {\"choices\":[{\"text\":\"y\"}]}\n\n", {2}));
  EXPECT_EQ(reader.text(), "");
}

TEST(Answer, AnErrorsReasonIsFoundAndHarmless) {
  EXPECT_EQ(ErrorText(R"({"error":{"message":"too long","code":400}})"), "too long");
  EXPECT_EQ(ErrorText(R"({"object":"error","message":"too long"})"), "too long");
  EXPECT_EQ(ErrorText(R"({"error":"busy"})"), "busy");
  EXPECT_EQ(ErrorText(R"({"detail":"Not Found"})"), "Not Found");
  EXPECT_EQ(ErrorText("\x1b[31mred\n"), " [31mred ");
  EXPECT_EQ(ErrorText(""), "no reason is given");
  EXPECT_EQ(ErrorText(std::string(1000, 'x')).size(), 300u);
  EXPECT_THAT(ErrorText(R"({"error":{"code":7}})"), HasSubstr("7"));
}

}  // namespace
}  // namespace cistern
