// SPDX-License-Identifier: Apache-2.0
// Memory in which nothing may go, or not yet, beside what is on flash and on its way there.
#include <algorithm>

#include "test_flash_store.h"

namespace cistern {
namespace {

// One chunk of memory, full of a chain that is on its way to flash: nothing may go, the chunk cannot be
// emptied for another size, and all of it may go soon.
TEST_F(FlashStoreTest, P5AnotherSizeWaitsForWhatIsOnItsWayToFlash) {
  store::TestStoreOptions options = With(0, 256 * kMiB, 1, 8 * kMiB);
  options.headers = 1;
  Make(options);
  SlowDevice(100'000);
  std::uint64_t n = 1;
  for (; t->slots->counts().used_slots < t->slots->counts().slots || n == 1; ++n)
    ASSERT_EQ(Put(n, n == 1 ? std::nullopt : std::optional(n - 1), kMiB), store::State::kPublished);
  const store::PartOutcome other = WriteOne(Part(1000, {}, 4096));
  EXPECT_EQ(other.state, store::State::kPublished) << other.status.ToString();
  EXPECT_EQ(Count(Counters().writes_without_room), 0u);
}

// The same while each of several sizes wants the only chunk: each is served in its turn.
TEST_F(FlashStoreTest, P5SizesThatWantTheSameChunkAreServedByTheirDeadline) {
  store::TestStoreOptions options = With(0, 256 * kMiB, 1, 8 * kMiB);
  options.headers = 2;
  Make(options);
  SlowDevice(20'000);
  const std::size_t sizes[] = {4096, 16384, 65536, 262144, kMiB};
  for (std::uint64_t round = 0; round < 20; ++round) {
    std::vector<Task<std::vector<store::PartOutcome>>> writes;
    for (std::uint64_t i = 0; i < std::size(sizes); ++i) {
      writes.push_back(t->store->Write(Me(), ns.slot, {Part(round * 100 + i, {}, sizes[i])},
                                       t->clock.Now().PlusUs(10'000'000)));
    }
    for (std::uint64_t i = 0; i < std::size(sizes); ++i) {
      const store::PartOutcome outcome = t->Run(std::move(writes[i]))[0];
      EXPECT_TRUE(outcome.status.ok()) << round << ", " << sizes[i] << ": " << outcome.status.ToString();
    }
  }
}

// Of one chunk, which blocks of 1 MiB have taken from blocks 1 and 2: these are on flash.
class FullMemoryTest : public FlashStoreTest {
 protected:
  void SetUp() override {
    FlashStoreTest::SetUp();
    store::TestStoreOptions options = With(0, 256 * kMiB, 1, 8 * kMiB);
    options.headers = 1;
    Make(options);
    PutChainSlowly(1, 2);
    std::uint64_t n = 10;
    for (; n == 10 || Here(10); ++n) {
      ASSERT_EQ(Put(n, {}, kMiB), store::State::kPublished);
      t->Settle();
    }
    ASSERT_FALSE(Here(1) || Here(2));
    for (std::uint64_t i = 10; i < n; ++i) {
      if (Here(i)) held.push_back(i);
    }
  }
  std::vector<std::uint64_t> held;
};

TEST_F(FullMemoryTest, P5AFetchWithoutRoomIsBusyAndNoMiss) {
  // Leases on all that is there now, so that nothing of it may go.
  const store::AcquireGrant leased = Acquire(held, Me());
  ASSERT_NE(leased.lease, 0u);
  EXPECT_EQ(Acquire({1}, Me()).views[0].code, Code::kBusy);
  EXPECT_EQ(Count(Counters().writes_without_room), 0u) << "it is no put";
  ASSERT_TRUE(t->store->Release(Me(), leased.lease).ok());
  EXPECT_EQ(Acquire({1}, Me()).views[0].code, Code::kOk);
}

TEST_F(FullMemoryTest, P5WhatMemoryCannotHaveBesideTheRestOfAnAcquireIsBusyAtOnce) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t n = 100; n < 100 + 2 * t->slots->counts().slots; ++n) {
    ASSERT_EQ(Put(n, {}, kMiB), store::State::kPublished);
    t->Settle();
    all.push_back(n);
  }
  const store::AcquireGrant grant = Acquire(all, Me());
  std::uint64_t ok = 0, busy = 0;
  for (const store::ViewGrant& view : grant.views) (view.code == Code::kOk ? ok : busy) += 1;
  EXPECT_EQ(ok, t->slots->counts().slots);
  EXPECT_TRUE(std::ranges::all_of(grant.views, [](const store::ViewGrant& view) {
    return view.code == Code::kOk || view.code == Code::kBusy;
  })) << "none waited for room until its deadline";
  EXPECT_EQ(Count(Counters().fetch_failed), 0u);
}

TEST_F(FullMemoryTest, P5WhoGetsNothingIsNotToldThatItIsTooMuch) {
  const catalog::Caller other = Me(2, 2);
  const std::size_t mine = held.size() * 3 / 4;
  ASSERT_NE(Acquire(std::vector(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(mine)), Me()).lease,
            0u);
  // The other one takes all that it may, after which what this one has is more than it may.
  for (std::size_t i = mine; i < held.size(); ++i) {
    const catalog::BlockName name{store::Key(held[i]), 0};
    if (!t->Run(t->store->Acquire(other, ns.slot, std::span(&name, 1), 1'000'000, Soon()))) break;
  }
  const catalog::BlockName here{store::Key(held.back()), 0};
  ASSERT_FALSE(t->Run(t->store->Acquire(Me(), ns.slot, std::span(&here, 1), 1'000'000, Soon())));
  EXPECT_EQ(Acquire({1}, Me()).views[0].code, Code::kBusy);
}

}  // namespace
}  // namespace cistern
