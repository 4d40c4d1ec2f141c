// SPDX-License-Identifier: Apache-2.0
#include "wire/match_wire.h"

#include <gtest/gtest.h>

namespace cistern::wire {
namespace {

std::vector<std::byte> ReplyOf(const MatchReply& head, std::span<const MatchRunItem> items) {
  std::vector<std::byte> reply(sizeof(head) + items.size_bytes());
  std::memcpy(reply.data(), &head, sizeof(head));
  if (!items.empty()) std::memcpy(reply.data() + sizeof(head), items.data(), items.size_bytes());
  return reply;
}

std::vector<std::byte> ReplyOf(const MatchReply& head, std::span<const MatchRun> runs) {
  std::vector<MatchRunItem> items;
  for (const MatchRun& run : runs) items.push_back(ItemOf(run));
  return ReplyOf(head, std::span<const MatchRunItem>(items));
}

constexpr MatchRun Memory(std::uint32_t blocks) { return {.blocks = blocks}; }
constexpr MatchRun Flash(std::uint32_t blocks, std::int64_t us) {
  return {.blocks = blocks, .where = Where::kFlash, .ready_in_us = us};
}

TEST(MatchWire, RunsAreReadAsTheyWereWritten) {
  const std::vector<MatchRun> runs = {Memory(3), Flash(2, 700), Memory(1), Flash(9, 1'200)};
  const auto read = ReadMatchReply(ReplyOf({.runs = 4, .blocks = 15}, runs));
  ASSERT_TRUE(read.has_value()) << read.error().ToString();
  ASSERT_EQ(read->size(), 4u);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ((*read)[i].blocks, runs[i].blocks) << i;
    EXPECT_EQ((*read)[i].where, runs[i].where) << i;
    EXPECT_EQ((*read)[i].ready_in_us, runs[i].ready_in_us) << i;
  }
}

TEST(MatchWire, ANodeThatKnowsNoTiersIsUnderstood) {
  const MatchRun none = Memory(0), some = Memory(7);
  EXPECT_TRUE(
      ReadMatchReply(ReplyOf({.runs = 1, .blocks = 0}, std::span<const MatchRun>(&none, 1)))->empty());
  const auto read = ReadMatchReply(ReplyOf({.runs = 1, .blocks = 7}, std::span<const MatchRun>(&some, 1)));
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ((*read)[0].blocks, 7u);
}

TEST(MatchWire, ARunBesideItsLikeIsOneRunReadyWithTheLater) {
  std::vector<MatchRun> runs;
  for (const MatchRun& run : {Memory(2), Memory(3), Flash(1, 50), Flash(0, 9), Flash(4, 40), Memory(1)})
    AddRun(runs, run);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].blocks, 5u);
  EXPECT_EQ(runs[1].blocks, 5u);
  EXPECT_EQ(runs[1].ready_in_us, 50);
}

TEST(MatchWire, WhatDoesNotFitIsSaidToBeReadyWithItsLast) {
  std::vector<MatchRun> runs = {Memory(3), Flash(2, 700), Memory(1), Flash(9, 1'200)};
  FoldRuns(runs, 4);
  EXPECT_EQ(runs.size(), 4u);
  FoldRuns(runs, 1);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].blocks, 15u);
  EXPECT_EQ(runs[0].where, Where::kFlash);
  EXPECT_EQ(runs[0].ready_in_us, 1'200);
}

TEST(MatchWire, EveryPlaceIsReadAndAnUnknownOneIsAMismatch) {
  for (std::uint32_t number = 0; number < 5; ++number) {
    const MatchRunItem item{.blocks = 1, .where = number};
    const auto read = ReadMatchReply(ReplyOf({.runs = 1, .blocks = 1}, std::span(&item, 1)));
    ASSERT_EQ(read.has_value(), number <= static_cast<std::uint32_t>(Where::kObject)) << number;
    if (read) {
      EXPECT_EQ(static_cast<std::uint32_t>(read->front().where), number);
      continue;
    }
    EXPECT_EQ(read.error().code(), Code::kMismatch);
    EXPECT_NE(read.error().message().find("tier 4: the node speaks of a tier that this client does not know"),
              std::string::npos);
  }
  // 8 bits do not make a known one of it.
  const MatchRunItem wide{.blocks = 1, .where = 256};
  EXPECT_EQ(ReadMatchReply(ReplyOf({.runs = 1, .blocks = 1}, std::span(&wide, 1))).error().code(),
            Code::kMismatch);
}

TEST(MatchWire, RepliesThatAreNoneAreRefused) {
  const std::vector<MatchRun> runs = {Memory(3), Flash(2, 700)};
  const std::vector<std::byte> good = ReplyOf({.runs = 2, .blocks = 5}, runs);
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_FALSE(ReadMatchReply(std::span(good).first(bytes)).has_value()) << bytes;
  EXPECT_FALSE(ReadMatchReply(ReplyOf({.runs = UINT32_MAX, .blocks = 5}, runs)).has_value());
  EXPECT_FALSE(ReadMatchReply(ReplyOf({.runs = 2, .blocks = 4}, runs)).has_value());
  EXPECT_FALSE(ReadMatchReply(ReplyOf({.runs = 2, .blocks = 6}, runs)).has_value());
  // 32 bits do not wrap around to what would be right.
  const std::vector<MatchRun> many = {Memory(UINT32_MAX), Memory(6)};
  EXPECT_FALSE(ReadMatchReply(ReplyOf({.runs = 2, .blocks = 5}, many)).has_value());
  const MatchRun past = Flash(5, -1);
  EXPECT_FALSE(
      ReadMatchReply(ReplyOf({.runs = 1, .blocks = 5}, std::span<const MatchRun>(&past, 1))).has_value());
}

}  // namespace
}  // namespace cistern::wire
