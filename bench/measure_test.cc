// SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"

namespace cistern {
namespace {

// Else the median of two rounds is the better of them, for a rate and for its ratio to the limit.
TEST(Measure, MedianOfAnEvenCountIsBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({7}), 7);
  EXPECT_EQ(Median({3, 1}), 2);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({40, 10, 30, 20}), 25);
  const BenchRow row = RateRow("row", "memcpy", {.rounds = {8, 2}}, {.rounds = {8, 4}});
  EXPECT_EQ(row.value, 5);
  EXPECT_EQ(row.limit_value, 6);
  EXPECT_EQ(row.ratio, 0.75);
  EXPECT_EQ(row.ratio_low, 0.5);
  EXPECT_EQ(row.ratio_high, 1);
}

TEST(Measure, QuantilesAreValuesThatOccurred) {
  EXPECT_EQ(Quantile({}, 0.99), 0);
  EXPECT_EQ(Quantile({3, 1, 2}, 0), 1);
  EXPECT_EQ(Quantile({3, 1, 2}, 1), 3);
  EXPECT_EQ(Quantile({3, 1, 2, 4}, 0.99), 4);
}

// A pid of -1 in a kill ends every process of the user. In a child, since a process is that user's for good.
TEST(ChildTest, WhereNoProcessCanBeStartedThatIsSaidAndNobodyIsKilled) {
  if (geteuid() != 0) GTEST_SKIP() << "limits another user's processes: run as root";
  constexpr uid_t kUser = 54325;
  const pid_t bystander = fork();
  if (bystander == 0) {
    if (setgid(kUser) != 0 || setuid(kUser) != 0) _exit(2);
    while (true) pause();
  }
  const pid_t limited = fork();
  if (limited == 0) {
    const rlimit limit{.rlim_cur = 1, .rlim_max = 1};
    if (setrlimit(RLIMIT_NPROC, &limit) != 0 || setgid(kUser) != 0 || setuid(kUser) != 0) _exit(2);
    const Result<Child> child = Child::Start([] {});
    _exit(!child && child.error().code() == Code::kIoError ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(limited, &status, 0), limited);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(waitpid(bystander, nullptr, WNOHANG), 0);
  kill(bystander, SIGKILL);
  ASSERT_EQ(waitpid(bystander, nullptr, 0), bystander);
}

}  // namespace
}  // namespace cistern
