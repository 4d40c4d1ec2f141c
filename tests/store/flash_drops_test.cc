// SPDX-License-Identifier: Apache-2.0
// What was dropped stays away whatever the media hold, and with it what descends from it (R10).
#include "arena/layout.h"
#include "store/cell_drops.h"
#include "test_flash_store.h"

namespace cistern {
namespace {

// Its parent has left memory, and is there all the time.
TEST_F(FlashStoreTest, ADropElsewhereEndsNothingThatIsHeldBelowWhatFlashHas) {
  Make(With(4));
  PutChainSlowly(1, 2);
  PutChainSlowly(11, 18);
  ASSERT_FALSE(Here(2));
  store::PartWrite part = Part(3, 2);
  part.held = true;
  const PutId put = part.put_id;
  ASSERT_EQ(WriteOne(std::move(part)).state, store::State::kPending);
  ASSERT_TRUE(Drop(18).has_value());
  ASSERT_TRUE(t->Run(t->store->Publish(Me(), ns.slot, std::span(&put, 1))).has_value());
  EXPECT_TRUE(Gets(3));
  EXPECT_EQ(Occupied().pending, 0u);
}

// The same of what another node gives, while what was dropped is collected and afterwards.
TEST_F(FlashStoreTest, ADropElsewhereEndsNothingThatASourceGivesBelowWhatFlashHas) {
  for (const bool collected : {true, false}) {
    Make(With(4));
    PutChainSlowly(1, 2);
    PutChainSlowly(11, 130);
    ASSERT_FALSE(Here(2));
    auto put = Begin(3, 2);
    ASSERT_TRUE(put.has_value());
    store::SourceFacts facts = Land(*put, 3);
    const BlockKey other = store::Key(11);
    auto dropping = t->store->Drop(ns.slot, std::span(&other, 1));
    if (collected) {
      ASSERT_TRUE(t->Run(std::move(dropping)).has_value());
    } else {
      ASSERT_FALSE(dropping.done());
    }
    const Status finished = Finish(std::move(*put), std::move(facts));
    EXPECT_TRUE(finished.ok()) << finished.ToString();
    if (!collected) {
      EXPECT_TRUE(t->Run(std::move(dropping)).has_value());
    }
    EXPECT_TRUE(Gets(3));
    EXPECT_EQ(Occupied().pending, 0u);
  }
}

// Its parent came to flash again after the drop: what is held descends from the one that was dropped, or may.
TEST_F(FlashStoreTest, R10WhatIsHeldBelowWhatWasDroppedStaysAwayThoughItsParentCameAgain) {
  for (const bool put_first : {false, true}) {
    Make(With(4));
    PutChainSlowly(1, put_first ? 1 : 2);
    PutChainSlowly(11, 18);
    store::PartWrite part = Part(3, 2);
    part.held = true;
    const PutId put = part.put_id;
    ASSERT_EQ(WriteOne(std::move(part)).state, store::State::kPending);
    ASSERT_TRUE(Drop(1).has_value());
    PutChainSlowly(1, 2);
    PutChainSlowly(21, 28);
    ASSERT_FALSE(Here(2));
    (void)t->Run(t->store->Publish(Me(), ns.slot, std::span(&put, 1)));
    EXPECT_FALSE(Get(3).has_value());
    EXPECT_EQ(Occupied().pending, 0u);
  }
}

TEST_F(FlashStoreTest, R10WhatASourceGivesBelowWhatWasDroppedStaysAwayThoughItsParentCameAgain) {
  for (const bool put_first : {false, true}) {
    Make(With(4));
    PutChainSlowly(1, put_first ? 1 : 2);
    PutChainSlowly(11, 18);
    auto put = Begin(3, 2);
    ASSERT_TRUE(put.has_value());
    store::SourceFacts facts = Land(*put, 3);
    ASSERT_TRUE(Drop(1).has_value());
    PutChainSlowly(1, 2);
    PutChainSlowly(21, 28);
    ASSERT_FALSE(Here(2));
    EXPECT_EQ(Finish(std::move(*put), std::move(facts)).code(), Code::kMiss);
    EXPECT_FALSE(Get(3).has_value());
    EXPECT_EQ(Occupied().pending, 0u);
  }
}

// Its parent was there when it was put, and was lost with its device before it would have been dropped.
TEST_F(FlashStoreTest, R10WhatIsHeldStaysAwayThoughItsParentWasLostBeforeTheDrop) {
  store::TestStoreOptions options = With(4);
  options.store.lower.promote = Promotion::kAll;
  Make(options);
  PutChainSlowly(1, 2);
  PutChainSlowly(11, 18);
  ASSERT_TRUE(Gets(1));
  ASSERT_TRUE(Here(1) && !Here(2));
  store::PartWrite part = Part(3, 2);
  part.held = true;
  const PutId put = part.put_id;
  ASSERT_EQ(WriteOne(std::move(part)).state, store::State::kPending);
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kWrite && path == kFirstDevice
               ? io::Fault{io::FaultKind::kHang}
               : io::Fault{};
  });
  ASSERT_EQ(Put(21, std::nullopt), store::State::kPublished);
  TickUntilFirstDeviceIsOut();
  for (int i = 0; i < 10; ++i) TickOnceLater();
  ASSERT_EQ(Match(1, 2), 1u);
  ASSERT_EQ(Occupied().pending, 1u);
  ASSERT_TRUE(Drop(1).has_value());
  ASSERT_EQ(Occupied().pending, 1u);
  ASSERT_EQ(Put(1, std::nullopt), store::State::kPublished);
  ASSERT_EQ(Put(2, 1), store::State::kPublished);
  (void)t->Run(t->store->Publish(Me(), ns.slot, std::span(&put, 1)));
  EXPECT_FALSE(Here(3));
  EXPECT_EQ(Occupied().pending, 0u);
}

TEST_F(FlashStoreTest, R10WhatWasDroppedStaysAwayThoughTheMediaHaveIt) {
  Make(With(4));
  PutChainSlowly(0, 31);
  EXPECT_EQ(*Drop(10), 22u);
  EXPECT_EQ(Match(0, 31), 10u);
  EXPECT_GE(Occupied().tombstones, 1u) << "something older lies on flash";
  for (int reboot = 0; reboot < 3; ++reboot) {
    t->Stop();
    if (reboot > 0) t->ForgetMemory();
    t->Start();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(store::OneGroup());
    EXPECT_EQ(Match(0, 31), 10u) << reboot;
    // Nothing is wrong with this start.
    EXPECT_GE(t->store->counters().recovery_dropped.value(), 1u) << reboot;
    EXPECT_EQ(t->store->counters().recovery_refused.value(), 0u) << reboot;
    for (std::uint64_t n = 10; n < 32; ++n) EXPECT_FALSE(Get(n).has_value()) << n;
  }
  // Nor with a parent that came again.
  ASSERT_EQ(Put(10, 9), store::State::kPublished);
  t->Settle();
  Reboot();
  EXPECT_EQ(Match(0, 31), 11u);
}

// The media still hold the block that another conversation had written before it was dropped.
TEST_F(FlashStoreTest, R10ABlockThatCameAgainIsOfWhoBroughtItAlsoAfterAReboot) {
  constexpr std::uint64_t kAnn = 11, kBob = 22;
  Make(With(8));
  const auto write = [&](std::uint64_t conversation) {
    store::PartWrite part = Part(1, std::nullopt);
    part.conversation = conversation;
    ASSERT_TRUE(WriteOne(std::move(part)).status.ok());
    t->Settle();
  };
  write(kAnn);
  ASSERT_TRUE(Drop(1).has_value());
  write(kBob);
  Reboot();
  ASSERT_EQ(Match(1, 1), 1u);
  EXPECT_TRUE(t->Run(t->store->EndConversation(ns.slot, kBob)).has_value());
  EXPECT_EQ(Match(1, 1), 0u);
}

TEST_F(FlashStoreTest, R10ATombstoneGoesWithTheLastRegionThatIsOlder) {
  Make(With(4, 2 * kMiB));
  PutChainSlowly(0, 7);
  ASSERT_TRUE(Drop(0).has_value());
  ASSERT_EQ(Occupied().tombstones, 1u);
  for (std::uint64_t n = 100; n < 500 && Occupied().tombstones > 0; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  EXPECT_EQ(Occupied().tombstones, 0u);
  Restart();
  EXPECT_FALSE(Get(0).has_value());
}

// The media may hold what nobody here knows any more.
TEST_F(FlashStoreTest, R10ADropOfWhatTheTreeHasLostHoldsToo) {
  Make(With(4));
  PutChainSlowly(0, 15);
  ASSERT_FALSE(Here(3));
  bool once = true;
  t->disk.set_faults([&](const io::IoRequest& request, const std::string& path) -> io::Fault {
    const bool hit =
        request.kind == io::IoRequest::Kind::kRead && path.find("flash0/flash") != std::string::npos;
    return hit && std::exchange(once, false) ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  EXPECT_FALSE(Get(3).has_value());
  t->disk.set_faults({});
  t->Settle();
  ASSERT_TRUE(Drop(5).has_value());
  Restart();
  EXPECT_FALSE(Get(5).has_value());
  EXPECT_TRUE(Gets(4)) << "the device erred once";
}

TEST_F(FlashStoreTest, R10OrphansOfADroppedBlockStayAway) {
  store::TestStoreOptions options = With(64);
  options.store.lower.admit = Admission::kSecondHit;
  Make(options, store::WindowOnly());
  PutChain(0, 7);
  std::vector<BlockKey> keys;
  for (std::uint64_t n = 3; n <= 7; ++n) keys.push_back(store::Key(n));
  t->Run(t->store->Touch(ns.slot, keys));
  t->Settle();
  ASSERT_TRUE(Drop(2).has_value());
  ASSERT_FALSE(Get(5).has_value());
  Restart(store::WindowOnly());
  for (std::uint64_t n = 3; n <= 7; ++n) EXPECT_FALSE(Get(n).has_value()) << n;
}

// Where no parent has to be there, a descendant that reached the media behind its tombstone would be found.
TEST_F(FlashStoreTest, R10WhatIsBeingCollectedIsNotWritten) {
  constexpr std::uint64_t kChildren = 900;
  store::TestStoreOptions options = With(4096, 64 * kMiB);
  options.store.lower.write.policy = WritePolicy::kBack;
  options.store.lower.admit = Admission::kAll;
  Make(options, store::OneWindow(1));
  ASSERT_EQ(Put(0, std::nullopt), store::State::kPublished);
  for (std::uint64_t n = 1; n <= kChildren; ++n) ASSERT_EQ(Put(n, 0), store::State::kPublished);
  t->Run(DropOnceQueued(t->loop->executor(), 0));
  t->Settle();
  EXPECT_EQ(Occupied().records, 0u);
  EXPECT_EQ(Occupied().tombstones, 0u);
  Attach(store::OneGroup());  // with which the journal says so
  Reboot(0, store::OneWindow(1));
  std::uint64_t back = 0;
  for (std::uint64_t n = 1; n <= kChildren; ++n) back += Get(n).has_value() ? 1 : 0;
  EXPECT_EQ(back, 0u);
}

// The sizes of what is being collected are in its list, so another list waits for its slot.
TEST_F(FlashStoreTest, WhatADroppedNamespaceHadIsForgottenWholeWhoeverWantsItsSlot) {
  const auto numbered = [](std::uint32_t number) {
    NamespaceSpec spec = store::OneGroup();
    spec.name.clear();
    spec.fields = {{"number", std::to_string(number)}};
    return spec;
  };
  Make(With(2048, 32 * kMiB));
  ns = *t->Run(t->store->Attach(numbered(0), Me(2, 2)));
  PutChain(1, 1500);
  t->Settle();
  t->store->namespaces().OwnerEnded(Me(2).owner);
  std::uint8_t owner = 3;
  for (std::uint32_t number = 1; Occupied().namespaces < arena::kMaxNamespaces; ++number) {
    if (!t->Run(t->store->Attach(numbered(number), Me(owner, owner)))) ++owner;
  }
  ASSERT_GT(FlashOf(*t).live_bytes(), 0u);
  Task<std::uint64_t> dropping = t->store->cell_drops().BeginNamespace(ns.slot);
  const Result<store::Attached> attached = t->Run(t->store->Attach(numbered(5000), Me(200, 200)));
  ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
  EXPECT_EQ(attached->slot, ns.slot);
  EXPECT_EQ(t->Run(std::move(dropping)), 1500u);
  EXPECT_EQ(FlashOf(*t).live_bytes(), 0u);
}

}  // namespace
}  // namespace cistern
