// SPDX-License-Identifier: Apache-2.0
#include "memory/movers.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "arena/reader.h"
#include "arena/test_arena.h"
#include "base/clock.h"
#include "base/remote_queue.h"
#include "io/loop.h"
#include "memory/serial_movers.h"
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

// Keeps what is submitted until it is told to do it.
class KeptMovers final : public Movers {
 public:
  void Submit(MoverJob& job) override { jobs.push_back(&job); }
  void DoAll() {
    while (DoOne()) continue;
  }
  bool DoOne() {
    if (jobs.empty()) return false;
    MoverJob& job = *jobs.front();
    jobs.erase(jobs.begin());
    job.Move(words_);
    job.Run();
    return true;
  }
  std::vector<MoverJob*> jobs;

 private:
  arena::RealWords words_;
};

class NotedJob final : public MoverJob {
 public:
  NotedJob(std::string& notes, char name) : notes_(notes), name_(name) {}
  ~NotedJob() override = default;
  void Move(arena::Words&) override { notes_ += name_; }
  void Run() override {
    if (next != nullptr) again->Submit(*std::exchange(next, nullptr));
  }
  MoverJob* next = nullptr;  // submitted when this is done
  Movers* again = nullptr;

 private:
  std::string& notes_;
  char name_;
};

TEST(SerialMoversTest, P5OneJobAtATimeIsWithTheMoversInTheOrderOfSubmitting) {
  KeptMovers movers;
  SerialMovers serial(movers);
  std::string notes;
  NotedJob a(notes, 'a'), b(notes, 'b'), c(notes, 'c'), d(notes, 'd');
  a.next = &d;
  a.again = &serial;
  for (NotedJob* job : {&a, &b, &c}) serial.Submit(*job);
  EXPECT_EQ(movers.jobs.size(), 1u);
  SystemClock clock;
  Executor executor(clock);
  Task<void> quiet = serial.Quiet(executor);
  EXPECT_FALSE(quiet.done());
  movers.DoAll();
  EXPECT_EQ(notes, "abcd");
  while (executor.RunReady(1) > 0) continue;
  EXPECT_TRUE(quiet.done());
}

TEST(SharedMemoryTest, P5TheCoreMakesAndFreesNoPageOfIt) {
  KeptMovers movers;
  SystemClock clock;
  Executor executor(clock);
  const auto resident = [](const SharedMemory& memory) {
    struct stat found;
    return fstat(memory.fd.get(), &found) == 0 ? static_cast<std::uint64_t>(found.st_blocks) * 512 : 0;
  };
  constexpr std::uint64_t kBytes = 5u << 20;
  Task<Result<SharedMemory>> making = MakeSharedMemory(executor, movers, "test", kBytes, Access::kReadWrite);
  while (!making.done()) {
    movers.DoAll();
    executor.RunReady(1);
  }
  Result<SharedMemory> made = making.Take();
  ASSERT_TRUE(made);
  EXPECT_EQ(resident(*made), kBytes);
  // As a client that goes on would have it.
  SharedMemory client{.fd = Fd(dup(made->fd.get())), .mapping = {}};
  client.mapping = *Mapping::Map(client.fd.get(), "test", 0, kBytes, Access::kReadWrite);
  client.mapping.data()[kBytes - 1] = std::byte{1};
  made->fd.Close();
  FreeSharedMemory(movers, std::move(*made), PagesAtEnd::kTaken);
  ASSERT_EQ(movers.jobs.size(), 1u);
  EXPECT_EQ(resident(client), kBytes);
  movers.DoAll();
  EXPECT_EQ(resident(client), 0u);
}

TEST(StagingTest, R6AnAreaStaysAndCountsUntilTheLastWriteLetGo) {
  arena::RealWords words;
  SystemClock clock;
  auto loop = std::move(*io::MakeLoop(clock, {}));
  ThreadMovers movers(words, clock, {}, [&loop](Work& job) { loop->PostRemote(job); });
  SerialMovers background(movers);
  StagingPool pool(background, 1u << 20);
  auto make = [&](std::uint64_t bytes) { return loop->BlockOn(pool.Make(loop->executor(), bytes)); };
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
  loop->BlockOn(background.Quiet(loop->executor()));
}

// Pages of all staging that this process has a descriptor of.
std::uint64_t StagingPages() {
  std::uint64_t bytes = 0;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const std::string name = std::filesystem::read_symlink(fd.path(), gone).string();
    struct stat found;
    if (name.find("cistern-staging") != std::string::npos && stat(fd.path().c_str(), &found) == 0)
      bytes += static_cast<std::uint64_t>(found.st_blocks) * 512;
  }
  return bytes;
}

TEST(StagingTest, P5WhatIsMadeInTheRoomOfALargeAreaWaitsForItsPages) {
  KeptMovers movers;
  SerialMovers background(movers);
  SystemClock clock;
  Executor executor(clock);
  constexpr std::uint64_t kBudget = 8u << 20;
  StagingPool pool(background, kBudget);
  std::uint64_t most = 0;
  const auto turn = [&] {
    movers.DoOne();
    while (executor.RunReady(1) > 0) continue;
    most = std::max(most, StagingPages());
  };
  Task<Result<std::shared_ptr<StagingArea>>> large = pool.Make(executor, kBudget);
  while (!large.done()) turn();
  std::shared_ptr<StagingArea> area = *large.Take();
  const Fd client = area->TakeFd();
  EXPECT_EQ(StagingPages(), kBudget);
  area.reset();
  std::vector<Task<Result<std::shared_ptr<StagingArea>>>> small;
  for (std::uint64_t i = 0; i < 8; ++i) small.push_back(pool.Make(executor, kBudget / 8));
  const auto all_made = [&] {
    return std::ranges::all_of(small, [](const auto& one) { return one.done(); });
  };
  for (int turns = 0; turns < 1000 && !all_made(); ++turns) turn();
  ASSERT_TRUE(all_made());
  std::vector<std::shared_ptr<StagingArea>> made;
  for (auto& one : small) made.push_back(*one.Take());
  EXPECT_EQ(StagingPages(), kBudget);
  EXPECT_EQ(most, kBudget);
  made.clear();
  movers.DoAll();
}

}  // namespace
}  // namespace cistern::memory
