// SPDX-License-Identifier: Apache-2.0
#include "base/nearest.h"

#include <gtest/gtest.h>

#include <array>

namespace cistern {
namespace {

constexpr std::array<std::string_view, 4> kOptions = {"--memory", "--memory-dir", "--socket", "--poll-us"};

TEST(Nearest, CountsEditsAndSwapsOfNeighbours) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("memory", "memory"), 0u);
  EXPECT_EQ(EditDistance("memroy", "memory"), 1u);
  EXPECT_EQ(EditDistance("MEMORY", "memory"), 0u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("sitting", "kitten"), 3u);
}

TEST(Nearest, NameOfAnyLengthIsBounded) {
  const std::string endless(1 << 20, 'x');
  EXPECT_EQ(EditDistance(endless, endless), 0u);
  EXPECT_EQ(EditDistance(endless, ""), 64u);
  EXPECT_EQ(Nearest(endless, kOptions), std::nullopt);
}

TEST(BadInput, UnknownNameIsAnsweredWithTheNearest) {
  EXPECT_EQ(UnknownName("option", "--memroy", kOptions), "unknown option --memroy: did you mean --memory?");
  EXPECT_EQ(UnknownName("option", "--memory_dir", kOptions),
            "unknown option --memory_dir: did you mean --memory-dir?");
  EXPECT_EQ(UnknownName("option", "--frobnicate", kOptions),
            "unknown option --frobnicate: known are --memory, --memory-dir, --socket, --poll-us");
  const std::array<std::string_view, 1> one = {"lru"};
  EXPECT_EQ(UnknownName("policy", "fifo", one), "unknown policy fifo: the only known one is lru");
  const std::array<std::string_view, 1> letter = {"s"};
  EXPECT_EQ(Nearest("b", letter), std::nullopt);
}

TEST(BadInput, RepeatedTextIsPrintableAndShort) {
  EXPECT_EQ(Shown("a\x1b[2Jb\xff"), "a?[2Jb?");
  EXPECT_EQ(Shown(""), "(empty)");
  EXPECT_EQ(Shown(std::string(1000, 'y')), std::string(60, 'y') + "...");
  EXPECT_EQ(Shown(std::string(1000, 'y'), 1000), std::string(1000, 'y'));
}

}  // namespace
}  // namespace cistern
