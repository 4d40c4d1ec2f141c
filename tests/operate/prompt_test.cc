// SPDX-License-Identifier: Apache-2.0
#include "prompt.h"

#include <gtest/gtest.h>

namespace cistern {
namespace {

TEST(Prompt, ADeadlineIsThatOfTheConnectionToo) {
  Prompt prompt;
  CommandLine line("cistern status", "", "");
  prompt.AddTo(line, false);
  const char* const words[] = {"cistern status", "--deadline", "1s"};
  ASSERT_FALSE(line.Parse(3, words).has_value());
  EXPECT_EQ(prompt.deadline_us, 1'000'000u);
  EXPECT_EQ(prompt.connect.deadline_us, 1'000'000);
}

}  // namespace
}  // namespace cistern
