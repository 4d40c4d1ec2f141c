// SPDX-License-Identifier: Apache-2.0
#include "memory/movers.h"

#include <gtest/gtest.h>

#include <vector>

#include "arena/reader.h"
#include "arena/test_arena.h"
#include "base/clock.h"
#include "base/remote_queue.h"
#include "io/loop.h"
#include "memory/staging.h"

namespace cistern::memory {
namespace {

class MoversTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<io::Loop>> loop = io::MakeLoop(clock_, {.kind = io::LoopKind::kEpoll});
    ASSERT_TRUE(loop) << loop.error().ToString();
    loop_ = std::move(*loop);
    ThreadMoversOptions options{.threads = static_cast<std::uint32_t>(GetParam()),
                                .poll_us = GetParam() == 1 ? 50 : 0};
    ASSERT_TRUE(options.Validate().ok());
    movers_ = std::make_unique<ThreadMovers>(words_, clock_, options,
                                             [this](Work& job) { loop_->PostRemote(job); });
  }

  Task<bool> Put(Executor&, std::uint32_t slot) {
    arena::Place place = node_.place(slot);
    std::vector<std::byte> body = arena::BodyOf(150'000, slot);
    std::span<const std::byte> pieces[] = {std::span(body).first(70'000), std::span(body).subspan(70'000)};
    std::vector<std::uint32_t> crcs(3);
    std::uint64_t generation = arena::BeginFill(words_, node_.arena, place);
    FillTask fill(*movers_, {node_.arena.slot(place), pieces, crcs});
    co_await fill;
    std::uint32_t parts[] = {150'000};
    arena::NewRecord record;
    record.seal = {.incarnation = 1, .key = arena::TestKey(slot), .part_bytes = parts, .segment_crcs = crcs};
    arena::Publish(words_, node_.arena, place, generation, record);
    VerifyTask verify(*movers_, node_.arena, place, 150'000, 1);
    co_await verify;
    if (!verify.sound()) co_return false;
    node_.arena.slot(place)[100'000] ^= std::byte{1};
    VerifyTask again(*movers_, node_.arena, place, 150'000, 1);
    co_await again;
    co_return !again.sound();
  }

  SystemClock clock_;
  arena::RealWords words_;
  arena::TestArena<arena::RealWords> node_{words_};
  std::unique_ptr<io::Loop> loop_;
  std::unique_ptr<ThreadMovers> movers_;
};

TEST_P(MoversTest, FillAndVerifyBesideEachOther) {
  for (int round = 0; round < 4; ++round) {
    std::vector<Task<bool>> puts;
    for (std::uint32_t slot = 0; slot < 40; ++slot) puts.push_back(Put(loop_->executor(), slot));
    for (Task<bool>& put : puts) EXPECT_TRUE(loop_->BlockOn(std::move(put)));
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, MoversTest, testing::Values(1, 3));

TEST(ThreadMoversOptionsTest, BoundsAreNamed) {
  EXPECT_NE((ThreadMoversOptions{.threads = 0}.Validate().message().find("0 threads")), std::string::npos);
  EXPECT_EQ((ThreadMoversOptions{.threads = 65}.Validate().code()), Code::kInvalid);
  EXPECT_EQ((ThreadMoversOptions{.poll_us = -1}.Validate().code()), Code::kInvalid);
}

TEST(StagingTest, R6AnAreaStaysAndCountsUntilTheLastWriteLetGo) {
  SystemClock clock;
  Executor executor(clock);
  StagingPool pool(1u << 20);
  auto make = [&](std::uint64_t bytes) {
    Task<Result<std::shared_ptr<StagingArea>>> task = pool.Make(executor, bytes);
    while (!task.done()) executor.RunReady(100);
    return task.Take();
  };
  auto area = make(600'000);
  ASSERT_TRUE(area) << area.error().ToString();
  EXPECT_GE((*area)->bytes(), 600'000u);
  std::shared_ptr<StagingArea> write = *area;
  area->reset();
  auto second = make(600'000);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kBusy);
  EXPECT_EQ(write->Range(0, 600'000).size(), 600'000u);
  EXPECT_TRUE(write->Range(write->bytes(), 1).empty());
  EXPECT_TRUE(write->Range(~std::uint64_t{0}, 2).empty());
  write.reset();
  EXPECT_EQ(pool.used_bytes(), 0u);
  EXPECT_TRUE(make(600'000));
}

}  // namespace
}  // namespace cistern::memory
