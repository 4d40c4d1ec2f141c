// SPDX-License-Identifier: Apache-2.0
#include "base/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cistern/where.h"

namespace cistern {
namespace {

using ::testing::HasSubstr;

std::string Message(const Status& status) { return std::string(status.message()); }

TEST(Policy, WhatIsPrintedIsReadAndNoTextStandsForTwo) {
  for (EvictionPolicy one : {EvictionPolicy::kLru, EvictionPolicy::kReuse})
    EXPECT_EQ(*ParseEvictionPolicy(ToString(one)), one);
  EXPECT_EQ(ToString(EvictionPolicy::kReuse), "reuse");
  for (Outlook one : {Outlook::kUnknown, Outlook::kExtended, Outlook::kEnded, Outlook::kTool})
    EXPECT_EQ(*ParseOutlook(ToString(one)), one);
  EXPECT_EQ(ToString(Outlook::kExtended), "extended");
  for (Importance one : {Importance::kNormal, Importance::kLow, Importance::kHigh, Importance::kKeep})
    EXPECT_EQ(*ParseImportance(ToString(one)), one);
  EXPECT_EQ(ToString(Importance::kKeep), "keep");
  for (Admission one : {Admission::kAll, Admission::kSecondHit, Admission::kWorth})
    EXPECT_EQ(*ParseAdmission(ToString(one)), one);
  for (Promotion one : {Promotion::kAll, Promotion::kSecondHit, Promotion::kWorth})
    EXPECT_EQ(*ParsePromotion(ToString(one)), one);
  EXPECT_EQ(ToString(Admission::kSecondHit), "second-hit");
  EXPECT_EQ(ToString(Promotion::kAll), "all");
  for (const auto& [rule, text] : {std::pair<WriteRule, std::string_view>{{WritePolicy::kThrough}, "through"},
                                   {{WritePolicy::kBack}, "back"},
                                   {{WritePolicy::kSelective}, "selective:2"},
                                   {{WritePolicy::kSelective, 1}, "selective:1"},
                                   {{WritePolicy::kSelective, kMaxSelectiveUses}, "selective:255"}}) {
    EXPECT_EQ(ToString(rule), text);
    EXPECT_EQ(*ParseWriteRule(text), rule) << text;
  }
  EXPECT_EQ(*ParseWriteRule("selective"), (WriteRule{WritePolicy::kSelective, 2}));
}

TEST(Policy, AnUnknownTextIsNamedWithThoseThatThereAre) {
  for (std::string_view wrong : {"off", "", "selective:", "selective:0", "selective:256", "selective:3x",
                                 "selective:3:4", "selectiv", "back:1", "through:", ":2", "Back"}) {
    const Result<WriteRule> read = ParseWriteRule(wrong);
    ASSERT_FALSE(read.has_value()) << wrong;
    EXPECT_EQ(read.error().code(), Code::kInvalid);
    EXPECT_THAT(Message(read.error()), HasSubstr("known: through, back, selective:N with N from 1 to 255"));
    EXPECT_THAT(Message(read.error()), HasSubstr(wrong.empty() ? "(empty)" : "'" + std::string(wrong) + "'"));
  }
  EXPECT_EQ(Message(ParseEvictionPolicy("lur").error()),
            "there is no eviction policy 'lur'; known: reuse, lru");
  EXPECT_EQ(Message(ParseAdmission("second").error()),
            "there is no admission 'second'; known: all, second-hit, worth");
  EXPECT_EQ(Message(ParsePromotion("never").error()),
            "there is no promotion 'never'; known: all, second-hit, worth");
}

TEST(Policy, WhatOnlyAProgramCanSayIsChecked) {
  EXPECT_TRUE(CheckPolicy(WriteRule()).ok());
  EXPECT_TRUE(CheckPolicy(Admission::kSecondHit).ok());
  EXPECT_TRUE(CheckPolicy(Promotion::kSecondHit).ok());
  EXPECT_THAT(Message(CheckPolicy(WriteRule{.policy = WritePolicy{3}})),
              HasSubstr("number 3; known: through"));
  EXPECT_THAT(Message(CheckPolicy(WriteRule{.uses = 0})), HasSubstr("of 0 uses"));
  EXPECT_THAT(Message(CheckPolicy(WriteRule{.uses = 256})), HasSubstr("of 256 uses"));
  EXPECT_EQ(Message(CheckPolicy(Admission{7})),
            "there is no admission of number 7; known: all, second-hit, worth");
  EXPECT_EQ(CheckPolicy(Promotion{3}).code(), Code::kInvalid);
  EXPECT_EQ(CheckPolicy(EvictionPolicy{2}).code(), Code::kInvalid);
  EXPECT_EQ(ToString(WriteRule{.policy = WritePolicy{3}}), "unknown");
}

TEST(Policy, HintsAreCheckedEachAndTogether) {
  EXPECT_TRUE(CheckPolicy(PromptHints()).ok());
  EXPECT_TRUE(CheckPolicy(PromptHints{Outlook::kTool, Importance::kKeep, kMaxNextTurnMs}).ok());
  EXPECT_EQ(Message(CheckPolicy(PromptHints{.outlook = Outlook{4}})),
            "there is no outlook of number 4; known: unknown, extended, ended, tool");
  EXPECT_EQ(Message(CheckPolicy(PromptHints{.importance = Importance{4}})),
            "there is no importance of number 4; known: normal, low, high, keep");
  EXPECT_THAT(Message(CheckPolicy(PromptHints{.next_turn_ms = kMaxNextTurnMs + 1})),
              HasSubstr("next_turn_ms: is 86400001, at most 86400000"));
  EXPECT_THAT(Message(CheckPolicy(PromptHints{.outlook = Outlook::kEnded, .next_turn_ms = 1})),
              HasSubstr("after which there is no turn"));
}

TEST(Policy, HelpSaysEachValueItsMeaningAndTheDefault) {
  EXPECT_EQ(PolicyHelp(Promotion::kWorth),
            "all, second-hit (asked for before), worth (worth more than what leaves); default: worth");
  EXPECT_EQ(
      PolicyHelp(WriteRule()),
      "through (at once), back (when it is cold), selective:N with N from 1 to 255 (after its N-th use); "
      "default: through");
}

TEST(Where, EachHasATextOfItsOwn) {
  std::set<std::string_view> texts;
  for (Where where : {Where::kMemory, Where::kFlash, Where::kPeer, Where::kObject})
    texts.insert(ToString(where));
  EXPECT_EQ(texts, (std::set<std::string_view>{"memory", "flash", "peer", "object"}));
  EXPECT_EQ(ToString(Where{4}), "unknown");
}

}  // namespace
}  // namespace cistern
