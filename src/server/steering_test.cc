// SPDX-License-Identifier: Apache-2.0
#include "server/steering.h"

#include <gtest/gtest.h>

#include <vector>

#include "server/test_server.h"

namespace cistern::server {
namespace {

using wire::Op;

class SteeringTest : public testing::Test {
 protected:
  ServerParts Parts() {
    return {
        .loop = *server_.loop,
        .lanes = *server_.lanes,
        .store = *server_.store,
        .movers = *server_.movers,
        .log = *server_.log,
        .arena_fd = -1,
        .index_fd = -1,
        .boot_count = 1,
        .random = nullptr,
        .status = nullptr,
        .resize = [this](std::uint64_t bytes) { return Resize(server_.loop->executor(), bytes); },
        .drain = [this](const DrainRequest& request) { return Drain(server_.loop->executor(), request); }};
  }
  Code Do(const wire::Submission& call) {
    const Result<Answer> answer = server_.loop->BlockOn(steering_.Drain(call));
    return answer ? Code::kOk : answer.error().code();
  }

  TestServer server_;
  Engines engines_{server_.loop->executor()};
  std::vector<DrainRequest> drains_;
  Steering steering_{Parts(), engines_};

 private:
  Task<Result<std::uint64_t>> Resize(Executor&, std::uint64_t bytes) { co_return bytes / 4096 * 4096; }
  Task<Status> Drain(Executor&, DrainRequest request) {
    drains_.push_back(request);
    co_return Status();
  }
};

TEST_F(SteeringTest, EachWayOutOfServiceSaysWhatGoesWithIt) {
  struct Way {
    std::uint64_t asked;
    bool on, memory_goes, lower_tier_goes;
  };
  for (const Way& way :
       {Way{wire::kServe, false, false, false}, Way{wire::kForUpgrade, true, false, false},
        Way{wire::kForReboot, true, true, false}, Way{wire::kForLeaving, true, true, true}}) {
    EXPECT_EQ(Do({.op = Op::kDrain, .flags = wire::kThenStop, .a = way.asked}), Code::kOk);
    const DrainRequest& request = drains_.back();
    EXPECT_EQ(request.on, way.on) << way.asked;
    EXPECT_EQ(request.memory_goes, way.memory_goes) << way.asked;
    EXPECT_EQ(request.lower_tier_goes, way.lower_tier_goes) << way.asked;
    EXPECT_TRUE(request.then_stop);
  }
  EXPECT_EQ(drains_.size(), 4u);
}

TEST_F(SteeringTest, AWayOutOfServiceHasADeadlineWhateverIsAsked) {
  const Instant before = server_.clock.Now();
  EXPECT_EQ(Do({.op = Op::kDrain, .a = wire::kForUpgrade, .b = UINT64_MAX}), Code::kOk);
  EXPECT_GE(drains_.back().deadline, before.PlusUs(kMaxDeadlineUs));
  EXPECT_LE(drains_.back().deadline, server_.clock.Now().PlusUs(kMaxDeadlineUs));
}

TEST_F(SteeringTest, TheSizeThatMemoryWillHaveIsTheAnswer) {
  const Result<Answer> answer =
      server_.loop->BlockOn(steering_.Resize({.op = Op::kMemory, .a = 4096 * 3 + 5}));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->a, 4096u * 3);
}

}  // namespace
}  // namespace cistern::server
