// SPDX-License-Identifier: Apache-2.0
#include "client/fork_mark.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cistern::client {
namespace {

TEST(ForkMark, R15TellsTheSidesOfAForkApart) {
  Result<ForkMark> mark = ForkMark::Make();
  ASSERT_TRUE(mark.has_value());
  EXPECT_FALSE(mark->forked());
  const pid_t child = fork();
  if (child == 0) _exit(mark->forked() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(mark->forked());
}

}  // namespace
}  // namespace cistern::client
