// SPDX-License-Identifier: Apache-2.0
// A store on its way out of service, over the simulated disk: what it had published is on flash then, and
// what it was doing has ended.
#include "store/drain.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "base/task_group.h"
#include "flash_store.h"
#include "store/block_store_fixture.h"

namespace cistern {
namespace {

using store::Drain;
using store::State;
using Stage = Drain::Stage;

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::size_t kBytes = 20'000;
constexpr std::int64_t kMinuteUs = 60'000'000;

class DrainTest : public store::BlockStoreTest {
 protected:
  // Nothing is written to flash by itself.
  static store::TestStoreOptions With(std::uint64_t flash_bytes) {
    store::TestStoreOptions options;
    options.store.max_lower_blocks = 4096;
    options.store.read_ahead_bytes = 0;
    options.store.lower.write = {.policy = WritePolicy::kSelective, .uses = 200};
    flash::FlashOptions flash;
    flash.region_bytes = 256u << 10;
    flash.devices.push_back({"flash", flash_bytes});
    if (flash_bytes > 0) options.tier = OnFlash(flash);
    return options;
  }
  static store::TestStoreOptions WithTwo() {
    store::TestStoreOptions options = With(0);
    flash::FlashOptions flash;
    flash.region_bytes = 256u << 10;
    for (const char* path : {"flash0", "flash1"}) flash.devices.push_back({path, 32 * kMiB});
    options.tier = OnFlash(flash);
    return options;
  }
  void StartOn(const store::TestStoreOptions& options) {
    Make(options);
    running.emplace(t->loop->executor());
  }
  void Start(std::uint64_t flash_bytes = 64 * kMiB) { StartOn(With(flash_bytes)); }
  void TearDown() override { End(); }
  void End() {
    if (!running) return;
    t->store->drain().Stop();
    t->Run(running->Close());
    running.reset();
  }
  Task<void> RunDrain(Executor&, store::DrainOrder order) { ended = co_await t->store->drain().Run(order); }
  Task<void> Nap(Executor& executor, std::int64_t us) { co_await SleepUntil(executor.Now().PlusUs(us)); }
  void Begin(bool memory_goes, std::int64_t within_us = kMinuteUs, bool lower_tier_goes = false) {
    ended.reset();
    running->Spawn(RunDrain(t->loop->executor(), {.memory_goes = memory_goes,
                                                  .lower_tier_goes = lower_tier_goes,
                                                  .deadline = t->clock.Now().PlusUs(within_us)}));
  }
  void Step() {
    t->Run(Nap(t->loop->executor(), 10'000));
    t->Tick();
    EXPECT_LE(t->store->TakeLongestStep(), 512u);
  }
  void Await() {
    for (int i = 0; i < 30'000 && !ended; ++i) Step();
    ASSERT_TRUE(ended.has_value());
  }
  void LosePower() {
    End();
    t->LosePower();
    ASSERT_TRUE(t->recovered.ok());
    Attach(store::OneGroup());
  }
  void DelayWrites(std::uint64_t us) {
    t->disk.set_faults([us](const io::IoRequest& request, const std::string&) {
      return request.kind == io::IoRequest::Kind::kWrite ? io::Fault{io::FaultKind::kDelay, us} : io::Fault{};
    });
  }
  // Syncs of the device, from when so many records were acknowledged.
  void FaultOnceWritten(std::uint64_t records, std::string device, io::FaultKind fault) {
    t->disk.set_faults([=, this](const io::IoRequest& request, const std::string& path) {
      const bool suffers = request.kind == io::IoRequest::Kind::kSync && path == device &&
                           t->store->counters().written_down.value() >= records;
      return suffers ? io::Fault{fault, 0} : io::Fault{};
    });
  }
  const Drain& drain() { return t->store->drain(); }
  std::uint64_t Gets(std::uint64_t first, std::uint64_t end) {
    std::uint64_t exact = 0;
    for (std::uint64_t n = first; n < end; ++n) {
      const store::AcquireGrant grant = Acquire({n}, Me());
      exact += grant.views[0].code == Code::kOk && Exact(n, kBytes);
    }
    return exact;
  }

  std::optional<TaskGroup> running;
  std::optional<bool> ended;
};

TEST_F(DrainTest, BeforeARebootEachPublishedBlockGoesToFlash) {
  Start();
  PutChain(0, 199, kBytes);
  ASSERT_EQ(t->store->counters().written_down.value(), 0u);
  Begin(true);
  Await();
  EXPECT_EQ(drain().stage(), Stage::kDrained);
  EXPECT_TRUE(drain().complete());
  EXPECT_EQ(drain().alone(), 0u);
  ASSERT_NO_FATAL_FAILURE(LosePower());
  EXPECT_EQ(Gets(0, 200), 200u);
}

// A node is told to drain and may be stopped only later: the host's power may go before.
TEST_F(DrainTest, P7WhatADrainSaysThatFlashHasIsThereWithoutPower) {
  for (int round = 0; round < 10; ++round) {
    Start();
    const std::uint64_t blocks = 3 + static_cast<std::uint64_t>(round);  // chance keeps others
    PutChain(0, blocks - 1, kBytes);
    Begin(true);
    Await();
    EXPECT_TRUE(drain().complete());
    ASSERT_NO_FATAL_FAILURE(LosePower());
    EXPECT_EQ(Gets(0, blocks), blocks);
    t.reset();
  }
}

// Of a node that has just taken them and writes each by itself: the drain counts while that goes on.
TEST_F(DrainTest, P7BlocksOnTheirWayWhenItBeginsAreThereWithoutPower) {
  for (std::uint64_t round = 0; round < 4; ++round) {
    store::TestStoreOptions options = With(64 * kMiB);
    options.store.lower.write = {.policy = WritePolicy::kThrough};
    StartOn(options);
    const std::uint64_t blocks = 400;
    DelayWrites(1 + round * 5'000);
    PutChain(0, blocks - 1, 4'096);
    Begin(true);
    Await();
    ASSERT_TRUE(drain().complete());
    ASSERT_NO_FATAL_FAILURE(LosePower());
    EXPECT_EQ(Match(0, blocks - 1), blocks) << "round " << round;
    t.reset();
  }
}

// Of two devices one takes what it is given and cannot keep it: the other gets that.
TEST_F(DrainTest, P7DeviceThatCannotKeepWhatItTookIsNotCounted) {
  StartOn(WithTwo());
  PutChain(0, 3, kBytes);
  FaultOnceWritten(4, "flash1/flash", io::FaultKind::kIoError);
  Begin(true);
  Await();
  EXPECT_TRUE(drain().complete());
  EXPECT_FALSE(FlashOf(*t).devices()[1].in_service);
  ASSERT_NO_FATAL_FAILURE(LosePower());
  EXPECT_EQ(Gets(0, 4), 4u);
}

// It is given up only after this drain's time.
TEST_F(DrainTest, P7DrainIsNotCompleteWhereADeviceHangsWithWhatItTook) {
  Start();
  PutChain(0, 3, kBytes);
  FaultOnceWritten(4, "flash/flash", io::FaultKind::kHang);
  Begin(true, 2'000'000);
  Await();
  EXPECT_EQ(drain().stage(), Stage::kDrained);
  EXPECT_EQ(drain().lost(), 0u);
  EXPECT_FALSE(drain().complete());
  t->disk.set_faults({});
  t->disk.Unhang("flash/flash");
}

TEST_F(DrainTest, WhatAPutPublishesThatHadBegunGoesToFlashToo) {
  Start();
  PutChain(0, 9, kBytes);
  store::PartWrite part = Part(10, 9, kBytes);
  part.held = true;
  const PutId held = part.put_id;
  ASSERT_EQ(WriteOne(std::move(part)).state, State::kPending);
  Begin(true);
  for (int i = 0; i < 50; ++i) Step();
  EXPECT_EQ(drain().stage(), Stage::kWrites) << "it waits for the put";
  EXPECT_EQ(drain().alone(), 0u);
  const store::PartOutcome refused = WriteOne(Part(11, 9, kBytes));
  EXPECT_EQ(refused.status.code(), Code::kBusy);
  EXPECT_NE(refused.status.message().find("the node drains"), std::string_view::npos);
  EXPECT_TRUE(Exact(3, kBytes)) << "reads go on";
  ASSERT_TRUE(t->Run(t->store->Publish(Me(), ns.slot, std::span(&held, 1))).has_value());
  Await();
  EXPECT_TRUE(drain().complete());
  End();
  t->LosePower();
  Attach(store::OneGroup());
  EXPECT_EQ(Gets(0, 11), 11u);
}

TEST_F(DrainTest, LeasesAreWaitedForUntilTheyEndOrTheTimeHasPassed) {
  Start();
  PutChain(0, 9, kBytes);
  const auto lease = Hold(0, 9, 30'000'000);
  ASSERT_TRUE(lease.has_value());
  Begin(false, 2'000'000);
  for (int i = 0; i < 100; ++i) Step();
  EXPECT_EQ(drain().stage(), Stage::kWaits);
  EXPECT_FALSE(Here(3)) << "nothing new is found";
  Await();
  EXPECT_EQ(drain().stage(), Stage::kDrained);
  EXPECT_FALSE(drain().complete()) << "the lease is still there";
  Begin(false);
  for (int i = 0; i < 10; ++i) Step();
  ASSERT_TRUE(t->store->Release(Me(), *lease).ok());
  Await();
  EXPECT_TRUE(drain().complete());
  EXPECT_EQ(t->store->counters().written_down.value(), 0u) << "memory's files stay";
  End();
  Restart();
  EXPECT_EQ(Gets(0, 10), 10u);
}

TEST_F(DrainTest, ItIsUndoneWhileItGoesOnAndAfterwards) {
  Start();
  PutChain(0, 99, kBytes);
  Begin(true);
  Step();
  t->Run(t->store->drain().End());
  Await();
  EXPECT_FALSE(*ended) << "another word came before";
  EXPECT_EQ(drain().stage(), Stage::kOff);
  EXPECT_EQ(Put(100, 99, kBytes), State::kPublished);
  Begin(true);
  Await();
  ASSERT_TRUE(*ended);
  EXPECT_FALSE(Here(0));
  t->Run(t->store->drain().End());
  EXPECT_TRUE(Exact(0, kBytes));
  EXPECT_EQ(Put(101, 100, kBytes), State::kPublished);
}

// With writes off by the operator too: what he turned is his.
TEST_F(DrainTest, SwitchesStayAsTheyWere) {
  Start();
  PutChain(0, 3, kBytes);
  ASSERT_TRUE(t->Run(t->store->Turn(store::Switch::kReads, false, "")).has_value());
  Begin(false);
  Await();
  t->Run(t->store->drain().End());
  EXPECT_FALSE(Here(0));
  ASSERT_TRUE(t->Run(t->store->Turn(store::Switch::kReads, true, "")).has_value());
  EXPECT_TRUE(Here(0));
}

TEST_F(DrainTest, FlashThatIsTooSmallTakesWhatItCanAndTheRestIsCounted) {
  Start(2 * kMiB);
  PutChain(0, 299, kBytes);  // 6 MB
  Begin(true, 30 * kMinuteUs);
  Await();
  EXPECT_EQ(drain().stage(), Stage::kDrained);
  EXPECT_FALSE(drain().complete());
  EXPECT_GT(drain().alone(), 0u);
  EXPECT_GT(t->store->counters().written_down.value(), 0u);
}

// A device has ten seconds for a transfer before it is taken out, and a host that does much else may need
// most of them.
TEST_F(DrainTest, WriteThatTakesAsLongAsADeviceMayTakeIsWaitedFor) {
  Start();
  PutChain(0, 9, kBytes);
  DelayWrites(9'000'000);
  Begin(true, 10 * kMinuteUs);
  Await();
  EXPECT_TRUE(drain().complete());
  EXPECT_EQ(drain().alone(), 0u);
}

// As where its process or its host is stopped.
TEST_F(DrainTest, TimeInWhichTheNodeStoodIsNotFlashes) {
  Start();
  PutChain(0, 9, kBytes);
  DelayWrites(1'000'000);
  Begin(true, 10 * kMinuteUs);
  for (int i = 0; i < 50; ++i) Step();
  ASSERT_EQ(t->store->counters().written_down.value(), 0u);
  t->clock.AdvanceUs(kMinuteUs);
  Await();
  EXPECT_TRUE(drain().complete());
}

TEST_F(DrainTest, WithoutFlashMemoryAloneHasItAndTheCountSaysSo) {
  Start(0);
  PutChain(0, 9, kBytes);
  Begin(true);
  Await();
  EXPECT_FALSE(drain().complete());
  EXPECT_EQ(drain().alone(), 10u);
  Begin(false);
  Await();
  EXPECT_TRUE(drain().complete()) << "its files stay";
  End();
  Restart();
  EXPECT_EQ(Gets(0, 10), 10u);
}

// The first order, which rests between two looks, ends behind the second one's end.
TEST_F(DrainTest, WhatAnOrderCountedStandsWhenAnEarlierOneEnds) {
  Start();
  PutChain(0, 9, kBytes);
  DelayWrites(9'000'000);
  Begin(true);
  for (int i = 0; i < 3; ++i) Step();
  Begin(true, 1'000);
  Await();
  ASSERT_TRUE(*ended);
  EXPECT_EQ(drain().lost(), 10u);
  for (int i = 0; i < 10; ++i) Step();
  EXPECT_EQ(drain().lost(), 10u);
  EXPECT_FALSE(drain().complete());
}

// Another node that takes some of what it is offered. It reads it here, as a client would.
struct Takes final : store::HandOver {
  explicit Takes(const store::TestStore& store) : of(store) {}
  void SetDraining(bool) override {}
  void Stop() override {}
  Task<store::HandedOver> Give(store::GiveOrder order) override {
    last = order;
    return Taken(of.loop->executor());
  }
  Task<store::HandedOver> Taken(Executor&) {
    ++orders;
    const std::uint64_t blocks = of.store->Serves(0) ? takes : 0;
    co_return store::HandedOver{.blocks = blocks, .left = 10 - blocks, .members = 1};
  }

  const store::TestStore& of;
  std::uint64_t takes = 0;
  int orders = 0;
  store::GiveOrder last;
};

TEST_F(DrainTest, WhatOtherNodesLeftTheyAreOfferedByTheNextOrder) {
  Start(0);
  PutChain(0, 9, kBytes);
  Takes others(*t);
  others.takes = 7;
  t->store->drain().SetHandOver(&others);
  Begin(true);
  Await();
  EXPECT_EQ(drain().lost(), 3u);
  EXPECT_FALSE(Here(0));
  others.takes = 10;
  Begin(true);
  Await();
  EXPECT_TRUE(drain().complete());
  EXPECT_FALSE(Here(0)) << "reads end again";
  // Whoever orders it once more, so that the node ends then, waits for nothing.
  others.takes = 0;
  Begin(true);
  Await();
  EXPECT_TRUE(*ended);
  EXPECT_TRUE(drain().complete());
  EXPECT_EQ(others.orders, 2);
  End();
  t->store->drain().SetHandOver(nullptr);
}

// What lies there is read into memory to be sent.
TEST_F(DrainTest, NodeWhoseFlashGoesTooOffersNoMoreAtATimeThanAShareOfItsMemory) {
  Start();
  PutChain(0, 9, kBytes);
  Takes others(*t);
  others.takes = 10;
  t->store->drain().SetHandOver(&others);
  Begin(true);
  Await();
  EXPECT_EQ(others.last.offered_bytes, UINT64_MAX);
  Begin(true, kMinuteUs, true);
  Await();
  EXPECT_TRUE(others.last.lower_tier);
  EXPECT_GT(others.last.offered_bytes, 0u);
  EXPECT_LT(others.last.offered_bytes, t->slots->bytes() / 2);
  End();
  t->store->drain().SetHandOver(nullptr);
}

}  // namespace
}  // namespace cistern
