// SPDX-License-Identifier: Apache-2.0
// Clients of a node that stands still, and what they find when it goes on.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <span>
#include <vector>

#include "node_process.h"

namespace cistern {
namespace {

class Stopped : public NodeProcess {
 protected:
  void Stop() {
    kill(child_, SIGSTOP);
    waitpid(child_, nullptr, WUNTRACED);
  }
  void GoOn() { kill(child_, SIGCONT); }
};

// Each put wants more than the session has, for which it asks the node.
TEST_F(Stopped, PutsThatEndedMeanwhileLeaveNoAnswersInTheWayOfOneThatComesLater) {
  Stop();
  const std::vector<std::byte> body = BodyOf(2, 2u << 20);
  for (int i = 0; i < 400; ++i) {
    const Status late = store_->Put(ns_, KeyOf(2), std::nullopt, body, {.deadline_us = 1'000});
    ASSERT_EQ(late.code(), Code::kTooLate) << i << ": " << late.ToString();
  }
  GoOn();
  Result<Staging> large = store_->AllocateStaging(8u << 20);
  ASSERT_TRUE(large.has_value()) << large.error().ToString();
  *large = Staging();
  const Status put = store_->Put(ns_, KeyOf(2), std::nullopt, body, {.deadline_us = 60'000'000});
  EXPECT_TRUE(put.ok()) << put.ToString();
}

}  // namespace
}  // namespace cistern
