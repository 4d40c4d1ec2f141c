// SPDX-License-Identifier: Apache-2.0
#include "endpoint/words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace cistern {
namespace {

std::string TextOf(Passage passage) {
  std::string text;
  AppendWords(passage, text);
  return text;
}

TEST(Words, ALongerPassageBeginsWithAShorterOne) {
  const std::string few = TextOf({7, 13});
  const std::string many = TextOf({7, 700});
  EXPECT_TRUE(many.starts_with(few + " "));
  EXPECT_EQ(std::ranges::count(few, ' '), 12);
  EXPECT_NE(TextOf({8, 13}), few);
  EXPECT_EQ(TextOf({7, 0}), "");
}

TEST(Words, AreTheSameOnEveryMachine) {
  EXPECT_EQ(TextOf({SourceOf(1, "system", 0), 4}), "even own make give");
  EXPECT_EQ(TextOf({SourceOf("salt"), 3}), "every build pattern");
}

TEST(Words, TheVocabularyHasNoWordTwice) {
  const std::set<std::string_view> words(Vocabulary().begin(), Vocabulary().end());
  EXPECT_EQ(words.size(), Vocabulary().size());
  for (const std::string_view word : words) {
    EXPECT_TRUE(!word.empty() && std::ranges::all_of(word, [](char c) { return c >= 'a' && c <= 'z'; }))
        << word;
  }
}

}  // namespace
}  // namespace cistern
