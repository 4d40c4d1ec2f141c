// SPDX-License-Identifier: Apache-2.0
// What every body of the loop must do alike.
#include "io/loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include "base/event.h"
#include "base/format.h"
#include "base/task_group.h"
#include "io/simulated_loop.h"
#include "io/test_files.h"

namespace cistern::io {
namespace {

std::vector<std::byte> Pattern(std::size_t size, int seed) {
  Random random(static_cast<std::uint64_t>(seed));
  std::vector<std::byte> bytes(size);
  for (auto& b : bytes) b = static_cast<std::byte>(random.Next());
  return bytes;
}

class LoopTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "io_uring") {
      Status works = ProbeUring();
      if (!works.ok()) GTEST_SKIP() << works.ToString();
    }
    std::string name = (std::filesystem::temp_directory_path() / "cistern-loop-XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
    Start({});
  }
  void TearDown() override {
    loop_.reset();
    if (!dir_.empty()) std::filesystem::remove_all(dir_);
  }

  void Start(LoopOptions options) {
    loop_.reset();
    if (GetParam() == "simulated") {
      loop_ = std::move(*SimulatedLoop::Make(simulated_clock_, disk_, 1, options));
    } else {
      options.kind = GetParam() == "epoll" ? LoopKind::kEpoll : LoopKind::kUring;
      loop_ = std::move(*MakeLoop(system_clock_, options));
    }
    ASSERT_EQ(loop_->name(), GetParam());
  }
  std::string Path(const char* name) { return dir_ + "/" + name; }
  File Make(const char* name) { return std::move(*loop_->Open(Path(name), OpenMode::kCreateNew)); }

  SystemClock system_clock_;
  SimulatedClock simulated_clock_;
  SimulatedDisk disk_{1};
  std::unique_ptr<Loop> loop_;
  std::string dir_;
};

INSTANTIATE_TEST_SUITE_P(Bodies, LoopTest, testing::Values("io_uring", "epoll", "simulated"),
                         [](const auto& which) { return which.param; });

TEST_P(LoopTest, WhatWasWrittenIsReadAndSynced) {
  File file = Make("file");
  std::vector<std::byte> written = Pattern(300'000, 1);
  EXPECT_TRUE(loop_->BlockOn(file.WriteAll(written, 4096)).ok());
  EXPECT_TRUE(loop_->BlockOn(file.Sync()).ok());
  EXPECT_TRUE(loop_->BlockOn(loop_->SyncDirectory(dir_)).ok());
  EXPECT_EQ(*file.Size(), 304'096u);
  std::vector<std::byte> read(written.size());
  EXPECT_TRUE(loop_->BlockOn(file.ReadAll(read, 4096)).ok());
  EXPECT_EQ(read, written);
  EXPECT_EQ(*loop_->BlockOn(file.Read(read, 304'000)), 96u);
  EXPECT_EQ(*loop_->BlockOn(file.Read(read, 400'000)), 0u);
}

TEST_P(LoopTest, ErrorsNameTheFileAndThePlace) {
  EXPECT_FALSE(loop_->Open(Path("missing"), OpenMode::kRead).has_value());
  File file = Make("short");
  std::vector<std::byte> bytes = Pattern(1000, 1);
  ASSERT_TRUE(loop_->BlockOn(file.WriteAll(bytes, 0)).ok());
  Status status = loop_->BlockOn(file.ReadAll(bytes, 600));
  EXPECT_EQ(status.ToString(), Text("io_error: read ", Path("short"), ": it ends at 0x3e8, 600 bytes early"));
  File directory = std::move(*loop_->Open(dir_, OpenMode::kRead));
  Result<std::uint32_t> read = loop_->BlockOn(directory.Read(bytes, 16));
  EXPECT_EQ(read.error().ToString(),
            Text("io_error: read ", dir_, " (1000 bytes at 0x10): Is a directory (EISDIR)"));
}

TEST_P(LoopTest, FilesAreReservedRenamedAndRemoved) {
  File file = Make("new");
  ASSERT_TRUE(loop_->Preallocate(file, 1 << 20).ok());
  EXPECT_EQ(*file.Size(), 1u << 20);
  EXPECT_TRUE(loop_->Rename(Path("new"), Path("log")).ok());
  EXPECT_FALSE(loop_->Open(Path("new"), OpenMode::kReadWrite).has_value());
  EXPECT_TRUE(loop_->Open(Path("log"), OpenMode::kReadWrite).has_value());
  EXPECT_TRUE(loop_->Remove(Path("log")).ok());
  EXPECT_FALSE(loop_->Remove(Path("log")).ok());
}

TEST_P(LoopTest, ManyOperationsAtOnceEndEachWithItsOwnBytes) {
  constexpr std::size_t kSize = 5000;
  constexpr int kMany = 500;
  File file = Make("file");
  std::vector<std::vector<std::byte>> buffers;
  std::vector<Task<Result<std::uint32_t>>> tasks;
  for (int i = 0; i < kMany; ++i) {
    buffers.push_back(Pattern(kSize, i));
    tasks.push_back(file.Write(buffers.back(), static_cast<std::uint64_t>(i) * kSize));
  }
  for (auto& task : tasks) EXPECT_EQ(*loop_->BlockOn(std::move(task)), kSize);
  tasks.clear();
  std::vector<std::vector<std::byte>> read(kMany, std::vector<std::byte>(kSize));
  for (int i = kMany; i-- > 0;) {
    tasks.push_back(file.Read(read[static_cast<std::size_t>(i)], static_cast<std::uint64_t>(i) * kSize));
  }
  for (auto& task : tasks) EXPECT_EQ(*loop_->BlockOn(std::move(task)), kSize);
  EXPECT_EQ(read, buffers);
}

// Promise 5: past a bound, busy at once.
TEST_P(LoopTest, OperationsPastTheLimitAreRefusedAtOnce) {
  Start({.max_io = 2});
  File file = Make("file");
  std::vector<std::byte> bytes = Pattern(100, 1);
  Task<Result<std::uint32_t>> one = file.Write(bytes, 0);
  Task<Result<std::uint32_t>> two = file.Write(bytes, 100);
  Task<Result<std::uint32_t>> three = file.Write(bytes, 200);
  ASSERT_TRUE(three.done());
  EXPECT_EQ(three.Take().error().code(), Code::kBusy);
  EXPECT_TRUE(loop_->BlockOn(std::move(one)).has_value());
  EXPECT_TRUE(loop_->BlockOn(std::move(two)).has_value());
  EXPECT_TRUE(loop_->BlockOn(file.Write(bytes, 200)).has_value());
}

TEST_P(LoopTest, ALevelWatchCallsUntilTheDescriptorIsDry) {
  Fd event = std::move(*MakeEventFd());
  int calls = 0;
  Event dry;
  FdWatch watch = std::move(*loop_->Watch(event.get(), WatchMode::kLevel, [&](std::uint32_t events) {
    EXPECT_TRUE(events & POLLIN);
    if (++calls < 3) return;
    EXPECT_TRUE(DrainEventFd(event.get()));
    dry.Set();
  }));
  SignalEventFd(event.get());
  auto wait = [](Executor&, Event& on) -> Task<> { co_await on.Wait(); };
  loop_->BlockOn(wait(loop_->executor(), dry));
  while (loop_->PollOnce()) {
  }
  EXPECT_EQ(calls, 3);
}

TEST_P(LoopTest, AnEdgeWatchCallsForEachSignalAndNeedsNoReading) {
  Fd event = std::move(*MakeEventFd());
  int calls = 0;
  FdWatch watch = std::move(*loop_->Watch(event.get(), WatchMode::kEdge, [&](std::uint32_t) { ++calls; }));
  for (int round = 1; round <= 5; ++round) {
    SignalEventFd(event.get());
    while (calls < round) loop_->Turn();
    while (loop_->PollOnce()) {
    }
    EXPECT_EQ(calls, round);
  }
  watch.End();
  SignalEventFd(event.get());
  while (loop_->PollOnce()) {
  }
  EXPECT_EQ(calls, 5);
}

TEST_P(LoopTest, AWatchMayEndItselfAndOthersFromItsCallback) {
  std::vector<Fd> events(8);
  std::vector<FdWatch> watches(8);
  int calls = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    events[i] = std::move(*MakeEventFd());
    watches[i] = std::move(*loop_->Watch(events[i].get(), WatchMode::kLevel, [&](std::uint32_t) {
      ++calls;
      for (auto& watch : watches) watch.End();
      for (auto& fd : events) fd.Close();
    }));
  }
  for (auto& fd : events) SignalEventFd(fd.get());
  while (calls == 0) loop_->Turn();
  while (loop_->PollOnce()) {
  }
  EXPECT_EQ(calls, 1);
}

TEST_P(LoopTest, AWatchSeesHangUpAndProcessesEnd) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  Fd ours(pair[0]);
  Fd theirs(pair[1]);
  pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  ASSERT_TRUE(pidfd.valid());
  bool ended = false;
  bool hung_up = false;
  FdWatch process = std::move(
      *loop_->Watch(pidfd.get(), WatchMode::kLevel, [&](std::uint32_t) { process.End(), ended = true; }));
  FdWatch socket = std::move(*loop_->Watch(ours.get(), WatchMode::kLevel, [&](std::uint32_t events) {
    hung_up = (events & POLLHUP) != 0;
    socket.End();
  }));
  theirs.Close();
  while (loop_->PollOnce()) {
  }
  EXPECT_FALSE(hung_up);  // the child still has it, which is why sessions poll a pidfd (R15)
  EXPECT_FALSE(ended);
  ::kill(child, SIGKILL);
  while (!ended || !hung_up) loop_->Turn();
  ::waitpid(child, nullptr, 0);
}

// Tells when the loop says that it will sleep.
class Sleepy final : public Poller {
 public:
  explicit Sleepy(std::function<void()> about_to_sleep) : about_to_sleep_(std::move(about_to_sleep)) {}
  bool Poll() override {
    ++polls;
    return std::exchange(work, false);
  }
  void AboutToSleep() override {
    ++abouts;
    about_to_sleep_();
  }
  void Awake() override { ++awakes; }
  bool work = false;
  int polls = 0;
  int abouts = 0;
  int awakes = 0;

 private:
  std::function<void()> about_to_sleep_;
};

TEST_P(LoopTest, APostFromAnotherThreadWakesASleepingLoop) {
  constexpr int kRounds = 200;
  int ran = 0;
  std::atomic<int> sleeping = 0;
  Sleepy sleepy([&] {
    ++sleeping;
    sleeping.notify_one();
  });
  loop_->AddPoller(sleepy);
  std::jthread other([&] {
    for (int round = 0; round < kRounds; ++round) {
      for (int now = sleeping; now <= round; now = sleeping) sleeping.wait(now);
      loop_->PostRemote([&] { ++ran; });
    }
    loop_->Stop();
  });
  loop_->Run();
  other.join();
  while (loop_->PollOnce()) {
  }
  EXPECT_EQ(ran, kRounds);
  EXPECT_EQ(sleepy.abouts, sleepy.awakes);
}

class CountedWork final : public Work {
 public:
  void Run() override {
    ++ran;
    ran.notify_one();
  }
  std::atomic<int> ran = 0;
};

// The loop sleeps whenever it has nothing to do: work that a visit leaves while it falls asleep must wake it.
TEST_P(LoopTest, WorkThatAVisitLeavesIsRunThoughTheLoopSleeps) {
  constexpr int kRounds = 500;
  Start({.poll_us = 0});
  CountedWork work;
  std::jthread other([&] {
    for (int round = 0; round < kRounds;) {
      {
        const Visit visit(*loop_);
        if (!visit) continue;
        loop_->executor().Post(work);
      }
      for (++round; work.ran < round;) work.ran.wait(round - 1);
    }
    loop_->Stop();
  });
  loop_->Run();
  other.join();
  EXPECT_EQ(work.ran, kRounds);
}

TEST_P(LoopTest, ATimerThatAVisitArmsFiresThoughTheLoopSleeps) {
  Start({.poll_us = 0});
  std::latch asleep(1);
  bool first = true;
  Sleepy sleepy([&] {
    if (std::exchange(first, false)) asleep.count_down();
  });
  loop_->AddPoller(sleepy);
  Timer timer(loop_->executor(), [&] { loop_->Stop(); });
  std::jthread other([&] {
    asleep.wait();
    for (bool in = false; !in;) {
      const Visit visit(*loop_);
      in = static_cast<bool>(visit);
      if (in) timer.Arm(Instant{1});
    }
  });
  loop_->Run();
}

TEST_P(LoopTest, ALoopInALongTurnLetsNobodyIn) {
  std::latch in_turn(1), done(1);
  bool let_in = true;
  std::jthread other([&] {
    in_turn.wait();
    {
      const Visit visit(*loop_);
      let_in = static_cast<bool>(visit);
    }
    done.count_down();
  });
  loop_->executor().Post([&] {
    in_turn.count_down();
    done.wait();
  });
  loop_->Turn();
  EXPECT_FALSE(let_in);
}

TEST_P(LoopTest, StopWakesASleepingLoopAndOneThatCameBeforeCounts) {
  loop_->Stop();
  loop_->Run();
  std::latch asleep(1);
  bool first = true;
  Sleepy sleepy([&] {
    if (std::exchange(first, false)) asleep.count_down();
  });
  loop_->AddPoller(sleepy);
  std::jthread other([&] {
    asleep.wait();
    loop_->Stop();
  });
  loop_->Run();
}

// The recheck of the Dekker pair: work that appears while the loop says that it will sleep keeps it awake.
TEST_P(LoopTest, WorkFoundAfterSayingSoKeepsTheLoopAwake) {
  Sleepy* self = nullptr;
  Sleepy sleepy([&] { self->work = true; });
  self = &sleepy;
  loop_->AddPoller(sleepy);
  while (sleepy.awakes < 3) loop_->Turn();
  EXPECT_EQ(loop_->sleeps(), 0u);
  EXPECT_EQ(sleepy.abouts, sleepy.awakes);
}

// Each look at it is so much later than the one before.
class PassingClock final : public Clock {
 public:
  Instant Now() const override { return now_ = now_.PlusUs(step_us); }
  WallTime Wall() const override { return {1'700'000'000}; }
  std::int64_t step_us = 1;

 private:
  mutable Instant now_;
};

TEST(LoopPollTest, WhereSomebodyComputesBesideItALoopSleepsInsteadOfPolling) {
  PassingClock clock;
  const auto loop = std::move(*MakeLoop(clock, {.kind = LoopKind::kEpoll, .poll_us = 1'000'000}));
  Sleepy* self = nullptr;
  Sleepy sleepy([&] { self->work = true; });  // so that it never does sleep
  self = &sleepy;
  loop->AddPoller(sleepy);
  const auto turns = [&](int count) {
    const int before = sleepy.abouts;
    for (int i = 0; i < count; ++i) loop->Turn();
    return sleepy.abouts - before;
  };
  EXPECT_EQ(turns(1'000), 0);
  clock.step_us = 3'000;
  EXPECT_GT(turns(16), 0);
  clock.step_us = 1;
  EXPECT_GT(turns(16), 0) << "for a while";
  clock.step_us = 60'000;
  (void)clock.Now();
  clock.step_us = 1;
  EXPECT_EQ(turns(1'000), 0) << "and then polls again";
}

TEST_P(LoopTest, APollerMayLeaveAndJoinWhilePolled) {
  struct Leaving final : Poller {
    bool Poll() override {
      ++polls;
      Unlink();
      return false;
    }
    int polls = 0;
  };
  Leaving leaving;
  Sleepy staying([] {});
  loop_->AddPoller(leaving);
  loop_->AddPoller(staying);
  loop_->PollOnce();
  loop_->PollOnce();
  EXPECT_EQ(leaving.polls, 1);
  EXPECT_EQ(staying.polls, 2);
}

TEST_P(LoopTest, TimersFireInOrderThroughSleep) {
  Start({.poll_us = 0});
  auto sleep = [](Loop& loop, Instant until, std::vector<int>& out, int id) -> Task<> {
    co_await SleepUntil(until);
    EXPECT_LE(until, loop.clock().Now());
    out.push_back(id);
  };
  // A thread that the host does not run for so long sets timers that are due, which fire as they are set, or
  // finds all of them due and has no need to sleep: such a round says nothing.
  bool all_set_early = false;
  do {
    std::vector<int> order;
    const Instant now = loop_->clock().Now();
    Task<> c = sleep(*loop_, now.PlusUs(3000), order, 3);
    Task<> a = sleep(*loop_, now.PlusUs(500), order, 1);
    Task<> b = sleep(*loop_, now.PlusUs(1500), order, 2);
    all_set_early = loop_->clock().Now() < now.PlusUs(500);
    loop_->BlockOn(std::move(c));
    loop_->BlockOn(std::move(a));
    loop_->BlockOn(std::move(b));
    if (all_set_early) {
      EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
    }
  } while (!all_set_early || loop_->sleeps() == 0);
}

// Promise 3.
TEST_P(LoopTest, NoWaitOutlivesItsDeadline) {
  Event never;
  auto wait = [](Loop& loop, Event& on) -> Task<Status> {
    co_return co_await on.Wait(loop.clock().Now().PlusUs(800));
  };
  EXPECT_EQ(loop_->BlockOn(wait(*loop_, never)).code(), Code::kTooLate);
}

// R8, as far as it shows without a dying device: the lock outlives its descriptor and goes with the loop.
TEST_P(LoopTest, ALockIsHeldByTheLoopAfterItsDescriptorIsClosed) {
  Fd mine = std::move(*OpenFile(Path("lock"), OpenMode::kCreate));
  ASSERT_TRUE(TryLock(mine.get(), Path("lock")).ok());
  ASSERT_TRUE(loop_->HoldLock(mine.get()).ok());
  mine.Close();
  Fd other = std::move(*OpenFile(Path("lock"), OpenMode::kCreate));
  EXPECT_EQ(TryLock(other.get(), Path("lock")).code(), Code::kBusy);
  loop_.reset();
  EXPECT_TRUE(WaitLock(other.get()));
}

TEST_P(LoopTest, AKilledProcessKeepsItsLockNoLongerThanItsOperations) {
  Fd other = std::move(*OpenFile(Path("lock"), OpenMode::kCreate));
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  loop_.reset();  // no threads across the fork
  pid_t child = ::fork();
  if (child == 0) {
    Start({});
    Fd mine = std::move(*OpenFile(Path("lock"), OpenMode::kCreate));
    bool held = TryLock(mine.get(), Path("lock")).ok() && loop_->HoldLock(mine.get()).ok();
    mine.Close();
    File file = Make("file");
    std::vector<std::byte> bytes = Pattern(1 << 20, 1);
    std::vector<Task<Status>> writes;
    for (std::uint64_t i = 0; i < 64; ++i) writes.push_back(file.WriteAll(bytes, i << 20));
    char c = held ? 'y' : 'n';
    while (::write(ready[1], &c, 1) == 1) loop_->PollOnce();
    ::_exit(0);
  }
  Fd in(ready[0]);
  Fd(ready[1]).Close();
  char c = 0;
  ASSERT_EQ(::read(in.get(), &c, 1), 1);
  EXPECT_EQ(c, 'y');
  EXPECT_EQ(TryLock(other.get(), Path("lock")).code(), Code::kBusy);
  ::kill(child, SIGKILL);
  EXPECT_TRUE(WaitLock(other.get()));
  ::waitpid(child, nullptr, 0);
}

TEST_P(LoopTest, LocksAreBounded) {
  Fd fd = std::move(*OpenFile(Path("lock"), OpenMode::kCreate));
  for (std::size_t i = 0; i < Loop::kMaxLocks; ++i) EXPECT_TRUE(loop_->HoldLock(fd.get()).ok());
  EXPECT_EQ(loop_->HoldLock(fd.get()).code(), Code::kBusy);
}

TEST_P(LoopTest, AGroupOfTasksEndsBeforeWhatItUses) {
  File file = Make("file");
  TaskGroup group(loop_->executor());
  std::vector<std::byte> bytes = Pattern(1000, 1);
  int done = 0;
  auto write = [](Loop&, File& to, std::span<const std::byte> from, std::uint64_t at, int& count) -> Task<> {
    EXPECT_TRUE((co_await to.WriteAll(from, at)).ok());
    EXPECT_TRUE((co_await to.Sync()).ok());
    ++count;
  };
  for (std::uint64_t i = 0; i < 50; ++i) group.Spawn(write(*loop_, file, bytes, i * 1000, done));
  loop_->BlockOn(group.Close());
  EXPECT_EQ(done, 50);
}

// As where a container may have no more of them.
TEST_P(LoopTest, WithoutAnotherThreadOperationsWaitForThoseThatThereAre) {
  if (GetParam() != "epoll") GTEST_SKIP() << "it makes none";
  LoopOptions options;
  options.io_threads = 1;
  Start(options);
  File file = Make("file");
  ASSERT_TRUE(loop_->BlockOn(file.WriteAll(Pattern(4096, 1), 0)).ok());
  pthread_attr_t usual, huge;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(::pthread_attr_init(&huge), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 50), 0);  // for which there are no addresses
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  std::vector<std::vector<std::byte>> buffers(8, std::vector<std::byte>(512));
  std::vector<Task<Result<std::uint32_t>>> tasks;
  for (std::vector<std::byte>& buffer : buffers) tasks.push_back(file.Read(buffer, 0));
  ASSERT_EQ(::pthread_setattr_default_np(&usual), 0);
  for (Task<Result<std::uint32_t>>& task : tasks) EXPECT_EQ(*loop_->BlockOn(std::move(task)), 512u);
  ::pthread_attr_destroy(&huge);
  ::pthread_attr_destroy(&usual);
}

TEST(LoopOptions, NameTheFieldTheValueAndTheLimit) {
  SystemClock clock;
  EXPECT_EQ(MakeLoop(clock, {.poll_us = -1}).error().ToString(),
            "invalid: poll_us is -1 and must be from 0 to 1000000");
  EXPECT_EQ(MakeLoop(clock, {.max_io = 0}).error().code(), Code::kInvalid);
  EXPECT_EQ(MakeLoop(clock, {.io_threads = 65}).error().code(), Code::kInvalid);
  Result<std::unique_ptr<Loop>> probed = MakeLoop(clock);
  ASSERT_TRUE(probed.has_value());
  EXPECT_EQ((*probed)->name(), ProbeUring().ok() ? "io_uring" : "epoll");
}

}  // namespace
}  // namespace cistern::io
