// SPDX-License-Identifier: Apache-2.0
// The store of a node as its cell asks it, over a simulated disk: what the cell drops takes effect whatever
// the journal says, and after a kill at any moment nothing is here that the node remembers to have dropped.
#include <gtest/gtest.h>

#include "../store/flash_store.h"
#include "base/event.h"
#include "mesh/local_block_store.h"
#include "store/block_store_fixture.h"

namespace cistern::mesh {
namespace {

using store::Key;
using store::State;

class LocalStoreTest : public store::BlockStoreTest {
 protected:
  static store::TestStoreOptions WithFlash(std::uint64_t flash_bytes = 4u << 20) {
    store::TestStoreOptions options;
    options.store.max_lower_blocks = 4096;
    options.store.read_ahead_bytes = 0;
    flash::FlashOptions flash;
    flash.region_bytes = 256u << 10;
    flash.devices.push_back({"flash", flash_bytes});
    options.tier = OnFlash(flash);
    return options;
  }
  void Open(const store::TestStoreOptions& options) {
    Make(options);
    Join();
  }
  void Join() {
    names.emplace(t->loop->executor(), *t->store, "default");
    local.emplace(t->loop->executor(), *t->store, *names);
    name = NameOf("default", *t->store->NamespaceAt(ns.slot));
  }
  static Task<void> Pass(Executor& executor, std::int64_t us) {
    co_await SleepUntil(executor.Now().PlusUs(us));
  }
  // kill -9 and power loss for the disk, whatever is under way.
  void Kill(bool memory_is_lost = false) {
    t->loop->Crash();
    under_way.reset();
    local.reset();
    names.reset();
    t->NoteCrash();
    t->Stop();
    if (memory_is_lost) t->ForgetMemory();
    t->Start();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(store::OneGroup());
    Join();
  }
  // In order: flash has all of it.
  void Reopen() {
    local.reset();
    names.reset();
    t->Restart();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(store::OneGroup());
    Join();
  }
  void PutSlowly(std::uint64_t first, std::uint64_t last, std::uint64_t conversation = 0) {
    for (std::uint64_t n = first; n <= last; ++n) {
      store::PartWrite part = Part(n, n == first ? std::nullopt : std::optional(n - 1));
      part.conversation = conversation;
      ASSERT_EQ(WriteOne(std::move(part)).state, State::kPublished) << n;
      t->Settle();
    }
  }
  CellDrop Keys(std::vector<std::uint64_t> numbers) const {
    CellDrop drop{.what = CellDrop::What::kKeys, .name = name};
    for (const std::uint64_t number : numbers) drop.keys.push_back(Key(number));
    return drop;
  }
  CellDrop All() const { return {.what = CellDrop::What::kNamespace, .name = name}; }
  CellDrop End(std::uint64_t conversation) const {
    return {.what = CellDrop::What::kConversation, .name = name, .conversation = conversation};
  }
  void Begin(CellDrop drop) {
    const std::vector<CellDrop> drops = {std::move(drop)};
    t->Run(local->Begin(drops));
  }
  static Standing At(std::int64_t applied) {
    return {.history = 7,
            .cluster_id = 8,
            .highest_revision = applied + 1,
            .applied = applied,
            .last = {applied, 9}};
  }
  // In memory, or brought there from flash.
  bool Has(std::uint64_t n) { return Acquire({n}, Me()).views[0].code == Code::kOk; }

  std::optional<SharedNames> names;
  std::optional<LocalBlockStore> local;
  std::optional<Task<Status>> under_way;
  SharedNamespace name;
};

TEST_F(LocalStoreTest, WhatSettledIsRememberedAndStaysGoneOverAKill) {
  Open(WithFlash());
  PutSlowly(1, 5);
  EXPECT_EQ(local->remembered(), Standing());
  Begin(Keys({3}));
  EXPECT_TRUE(Has(2));
  EXPECT_FALSE(Has(3) || Has(5));
  ASSERT_TRUE(t->Run(local->Settle(At(41))).ok());
  EXPECT_EQ(local->remembered(), At(41));
  Kill();
  EXPECT_EQ(local->remembered(), At(41));
  EXPECT_TRUE(Has(2));
  EXPECT_FALSE(Has(3) || Has(5));
}

TEST_F(LocalStoreTest, KilledAtAnyMomentItRemembersNoDropThatItHasNotKept) {
  bool before = false, after = false;
  for (const bool of_namespace : {false, true}) {
    for (std::int64_t us = 0; us < 1'200; us += 60) {
      Open(WithFlash());
      PutSlowly(1, 3);
      Begin(of_namespace ? All() : Keys({2}));
      under_way.emplace(local->Settle(At(41)));
      t->Run(Pass(t->loop->executor(), us));
      Kill();
      const bool remembered = local->remembered() == At(41);
      ASSERT_TRUE(remembered || local->remembered() == Standing());
      ASSERT_FALSE(remembered && Has(2)) << us;
      before = before || !remembered;
      after = after || remembered;
    }
  }
  EXPECT_TRUE(before && after) << "the kills did not come in the middle";
}

TEST_F(LocalStoreTest, DropTakesEffectWhileTheJournalFailsAndSettlesLater) {
  for (const bool of_namespace : {false, true}) {
    Open(WithFlash());
    PutSlowly(1, 3);
    t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
      const bool journal = path.find("journal") != std::string::npos;
      return journal && request.kind == io::IoRequest::Kind::kSync ? io::Fault{io::FaultKind::kIoError, 0}
                                                                   : io::Fault{};
    });
    Begin(of_namespace ? All() : Keys({2}));
    Attach(store::OneGroup());
    EXPECT_FALSE(Has(2));
    EXPECT_EQ(t->Run(local->Settle(At(41))).code(), Code::kIoError);
    EXPECT_FALSE(Has(2));
    t->disk.set_faults({});
    ASSERT_TRUE(t->Run(local->Settle(At(41))).ok());
    Kill();
    EXPECT_EQ(local->remembered(), At(41));
    EXPECT_FALSE(Has(2)) << of_namespace;
  }
}

TEST_F(LocalStoreTest, KeyThatIsNotInTheTreeGetsItsTombstone) {
  Open(WithFlash());
  PutSlowly(1, 1);
  Begin(Keys({77}));
  EXPECT_EQ(Occupied().tombstones, 1u);
  EXPECT_TRUE(Has(1));
}

TEST_F(LocalStoreTest, PastTheBoundOfTombstonesTheNamespaceGoesWhole) {
  store::TestStoreOptions options = WithFlash();
  options.store.max_tombstones = 3;
  Open(options);
  PutSlowly(1, 2);
  Begin(Keys({70, 71, 72}));
  EXPECT_TRUE(Has(2));
  Begin(Keys({73}));
  EXPECT_EQ(t->store->counters().widened_drops.value(), 1u);
  Attach(store::OneGroup());
  EXPECT_FALSE(Has(1) || Has(2));
  ASSERT_TRUE(t->Run(local->Settle(At(41))).ok());
  Kill();
  EXPECT_FALSE(Has(1) || Has(2));
}

TEST_F(LocalStoreTest, NamespaceThatWasDroppedTakesNewPutsAndKeepsThem) {
  Open(WithFlash());
  PutSlowly(1, 3);
  const std::uint64_t before = ns.incarnation;
  Begin(All());
  Attach(store::OneGroup());
  EXPECT_NE(ns.incarnation, before);
  EXPECT_FALSE(Has(1));
  PutSlowly(2, 2);
  ASSERT_TRUE(t->Run(local->Settle(At(41))).ok());
  Kill();
  EXPECT_TRUE(Has(2));
  EXPECT_FALSE(Has(1) || Has(3));
}

TEST_F(LocalStoreTest, EndTakesWhatTheConversationAloneWroteAndUsed) {
  Open(WithFlash());
  PutSlowly(1, 3, 71);
  PutSlowly(11, 13, 72);
  const BlockKey used = Key(12);
  t->Run(t->store->Touch(ns.slot, std::span(&used, 1), 71));
  Begin(End(71));
  EXPECT_FALSE(Has(1) || Has(3));
  EXPECT_TRUE(Has(12)) << "72 wrote it and goes on";
  t->Run(t->store->Touch(ns.slot, std::span(&used, 1), 73));
  Begin(End(72));
  EXPECT_TRUE(Has(12)) << "73 has used it and goes on";
  EXPECT_FALSE(Has(13));
  ASSERT_TRUE(t->Run(local->Settle(At(41))).ok());
  Kill();
  EXPECT_TRUE(Has(12));
  EXPECT_FALSE(Has(1) || Has(3) || Has(13));
}

// What the cell ended here is another's in memory and on flash, whatever the node died of.
TEST_F(LocalStoreTest, R10WhatItsWriterLeftToOthersIsTheirsAfterKills) {
  for (const bool memory_is_lost : {false, true}) {
    Open(WithFlash());
    PutSlowly(1, 2, 71);
    store::PartWrite part = Part(11, 2);
    part.conversation = 72;
    ASSERT_EQ(WriteOne(std::move(part)).state, State::kPublished);
    t->Settle();
    Reopen();
    Begin(End(71));
    ASSERT_TRUE(t->Run(local->Settle(At(41))).ok());
    for (int kill = 0; kill < 2; ++kill) {
      Kill(memory_is_lost);
      ASSERT_TRUE(Has(1) && Has(11));
    }
    Begin(End(72));
    EXPECT_FALSE(Has(1) || Has(2) || Has(11)) << memory_is_lost;
  }
}

// Whatever the journal has of an end when the node dies, the cell tells it again: all that was the
// conversation's alone is still known to be.
TEST_F(LocalStoreTest, R10AnEndThatWasCutOffTakesAllOfItWhenItIsToldAgain) {
  constexpr std::uint64_t kOwn = 250;
  const auto some_are_here = [&] {
    for (std::uint64_t n = 100; n < 100 + kOwn; n += 7) {
      if (Has(n)) return true;
    }
    return false;
  };
  int halves = 0;
  bool goes_on = true;
  for (std::size_t steps = 0; goes_on; ++steps) {
    Open(WithFlash(8u << 20));
    // What 72 goes on with is what makes the end a record of the journal.
    PutSlowly(1, 1, 71);
    store::PartWrite of_another = Part(2, 1);
    of_another.conversation = 72;
    ASSERT_EQ(WriteOne(std::move(of_another)).state, State::kPublished);
    for (std::uint64_t n = 100; n < 100 + kOwn; ++n) {
      store::PartWrite part = Part(n, std::nullopt, 64);
      part.conversation = 71;
      ASSERT_EQ(WriteOne(std::move(part)).state, State::kPublished);
    }
    Reopen();
    const std::vector<CellDrop> drops = {End(71)};
    Task<void> ending = local->Begin(drops);
    std::size_t ran = 0;
    while (ran < steps && t->loop->executor().RunReady(1) > 0) ++ran;
    goes_on = ran == steps && !ending.done();
    // For somebody else the journal writes what it has.
    ASSERT_TRUE(t->Run(t->store->Attach(store::OneGroup("another"))).has_value());
    ending = Task<void>();
    Kill();
    halves += some_are_here() ? 1 : 0;
    Begin(End(71));
    ASSERT_FALSE(some_are_here()) << "killed after " << steps << " steps of the end";
    ASSERT_TRUE(Has(1) && Has(2));
  }
  EXPECT_GT(halves, 0) << "the kills did not come in the middle";
}

TEST_F(LocalStoreTest, DiscardTakesEverythingAndDiscardNotedWhatConversationsHave) {
  Open(WithFlash());
  PutSlowly(1, 3, 71);
  PutSlowly(11, 13);
  ASSERT_TRUE(t->Run(local->DiscardNoted()).ok());
  Kill();
  EXPECT_FALSE(Has(1) || Has(3));
  EXPECT_TRUE(Has(13));
  ASSERT_TRUE(t->Run(local->Discard()).ok());
  Kill();
  EXPECT_FALSE(Has(11) || Has(13));
  EXPECT_EQ(local->remembered(), Standing());
}

TEST_F(LocalStoreTest, WhatTheNodeDoesNotKnowIsNothingToDrop) {
  Open({});
  PutChain(1, 3);
  CellDrop other = All();
  other.name.list_hash[0] ^= std::byte{1};
  Begin(other);
  other = All();
  other.name.tenant = "another";
  Begin(other);
  EXPECT_EQ(local->counters().unknown.value(), 2u);
  EXPECT_TRUE(Here(1) && Here(3));
}

TEST_F(LocalStoreTest, NamespaceIsFoundByItsListWhateverItsNamesAndSlot) {
  Open({});
  NamespaceSpec spec = store::OneGroup("another");
  auto attached = t->Run(t->store->Attach(spec));
  ASSERT_TRUE(attached.has_value());
  t->Run(names->Refresh());
  const auto one = names->NameAt(ns.slot), other = names->NameAt(attached->slot);
  ASSERT_TRUE(one && other);
  EXPECT_NE(*one, *other);
  EXPECT_EQ(names->SlotOf(*one), ns.slot);
  EXPECT_EQ(names->SlotOf(*other), attached->slot);
  spec.name = "a further name of it";
  ASSERT_TRUE(t->Run(t->store->Attach(spec)).has_value());
  EXPECT_EQ(names->SlotOf(*other), std::nullopt) << "before the next Refresh nothing is known of it";
  t->Run(names->Refresh());
  EXPECT_EQ(names->SlotOf(*other), attached->slot);
}

TEST_F(LocalStoreTest, CountIsOfTheBlocksThatItsDropRemoved) {
  Open({});
  PutChain(1, 5);
  const CellDrop drop = Keys({4, 2});
  LocalBlockStore::Count count(*local, drop);
  Begin(Keys({5}));
  EXPECT_EQ(count.blocks(), 0u) << "another's";
  Begin(Keys({2, 4}));
  EXPECT_EQ(count.blocks(), 3u);
}

}  // namespace
}  // namespace cistern::mesh
