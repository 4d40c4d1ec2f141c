// SPDX-License-Identifier: Apache-2.0
// Who may have how much of the table of namespaces, and what makes room in it.
#include <algorithm>
#include <utility>

#include "arena/layout.h"
#include "store/block_store_fixture.h"
#include "store/cell_drops.h"

namespace cistern::store {
namespace {

class NamespacesTest : public BlockStoreTest {
 protected:
  static NamespaceSpec Numbered(std::uint32_t number) {
    NamespaceSpec spec = OneGroup();
    spec.name.clear();
    spec.fields = {{"number", std::to_string(number)}};
    return spec;
  }
  Result<Attached> AttachAs(std::uint8_t owner, const NamespaceSpec& spec) {
    return t->Run(t->store->Attach(spec, Me(owner, owner)));
  }
  // As many new ones as the owner may have; how many those are.
  std::uint32_t AttachAll(std::uint8_t owner, std::uint32_t first) {
    std::uint32_t count = 0;
    while (count <= arena::kMaxNamespaces && AttachAs(owner, Numbered(first + count))) ++count;
    return count;
  }
};

TEST_F(NamespacesTest, P5OneOwnerLeavesNamespacesToOthers) {
  Make();
  EXPECT_EQ(AttachAll(2, 0), 819u);  // four fifths of what the fixture's own leaves
  const Result<Attached> past = AttachAs(2, Numbered(5000));
  ASSERT_FALSE(past.has_value());
  EXPECT_EQ(past.error().code(), Code::kBusy);
  EXPECT_NE(past.error().message().find("820 are known, 819 of this owner's making"), std::string::npos)
      << past.error().message();
  // What is there it may use.
  EXPECT_TRUE(AttachAs(2, Numbered(0)).has_value());
  EXPECT_EQ(AttachAll(3, 1000), 164u);
  EXPECT_GT(AttachAll(4, 2000), 0u);
}

TEST_F(NamespacesTest, P5WhatIsNothingToAnybodyMakesRoomForANewOne) {
  Make();
  const std::uint32_t theirs = AttachAll(2, 0);
  const Attached gone = *AttachAs(2, Numbered(100));
  const Attached kept = *AttachAs(2, Numbered(1));
  NamespaceSpec named = Numbered(2);
  named.name = "kept by its name";
  ASSERT_TRUE(AttachAs(2, named).has_value());
  ns = kept;
  ASSERT_EQ(Put(1, {}), State::kPublished);
  EXPECT_EQ(t->store->namespaces().wanted(), Occupied().namespaces);
  t->store->namespaces().OwnerEnded(Me(2).owner);
  EXPECT_EQ(t->store->namespaces().wanted(), 3u) << "one with a block, one with a name, and the test's own";
  // Four fifths of what those with a name or a block leave; the lowest are replaced first.
  EXPECT_EQ(AttachAll(3, 1000), 817u);
  EXPECT_FALSE(t->store->CheckNamespace(gone.slot, gone.incarnation).ok());
  EXPECT_TRUE(t->store->CheckNamespace(kept.slot, kept.incarnation).ok());
  EXPECT_TRUE(Exact(1));
  EXPECT_EQ(AttachAs(4, Numbered(1))->incarnation, kept.incarnation);
  EXPECT_EQ(AttachAs(4, named)->slot, 3u);
  NamespaceSpec other = Numbered(3);
  other.name = named.name;
  EXPECT_EQ(AttachAs(4, other).error().code(), Code::kMismatch);
  EXPECT_LE(Occupied().namespaces, arena::kMaxNamespaces);
  EXPECT_GE(Occupied().namespaces, theirs);
}

// Its blocks came before their parents, and have left memory since.
TEST_F(NamespacesTest, P5OneWithoutAFullGroupIsNothingAgainOnceItsBlocksHaveLeft) {
  Make({.store = {.max_blocks = 1}});
  NamespaceSpec spec = WindowOnly();
  spec.name.clear();
  const Attached window = *AttachAs(2, spec);
  const Attached whole = ns;
  AttachAll(2, 0);
  ns = window;
  ASSERT_EQ(Put(2, 1), State::kPublished);
  ns = whole;
  ASSERT_EQ(Put(9, {}), State::kPublished);
  t->Tick();
  t->store->namespaces().OwnerEnded(Me(2).owner);
  AttachAll(3, 1000);
  EXPECT_FALSE(t->store->CheckNamespace(window.slot, window.incarnation).ok());
}

// It waits for an attach that gives the slot number to another list.
TEST_F(NamespacesTest, ADropOfOneWhosePlaceIsBeingGivenAwayTakesNothingOfWhoGetsIt) {
  std::uint32_t others = 0;
  Attached before;
  const auto attach = [&](std::uint32_t n) {
    const auto owner = static_cast<std::uint8_t>(3 + n / 100);
    return t->store->Attach(Numbered(1000 + n), Me(owner, owner));
  };
  const auto begin = [&] {
    Make();
    AttachAll(2, 0);
    before = *AttachAs(2, Numbered(0));
    t->store->namespaces().OwnerEnded(Me(2).owner);
  };
  // How many more it takes until that one has to go.
  for (begin(); t->store->CheckNamespace(before.slot, before.incarnation).ok(); ++others)
    ASSERT_TRUE(t->Run(attach(others)).has_value()) << others;
  begin();
  for (std::uint32_t n = 0; n + 1 < others; ++n) ASSERT_TRUE(t->Run(attach(n)).has_value()) << n;
  auto attaching = attach(others - 1);
  auto dropping = t->store->DropNamespace(before.slot);
  const Result<Attached> attached = t->Run(std::move(attaching));
  const auto dropped = t->Run(std::move(dropping));
  ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
  ASSERT_EQ(attached->slot, before.slot);
  EXPECT_FALSE(dropped.has_value());
  EXPECT_TRUE(t->store->CheckNamespace(attached->slot, attached->incarnation).ok());
}

// The journal refuses the list that was to take its place, so it comes back; the cell's drop found no
// namespace.
TEST_F(NamespacesTest, R10ADropOfTheCellHoldsForOneThatGaveWayAndCameBack) {
  Make();
  std::vector<Attached> theirs;
  for (std::uint32_t n = 0; n < 819; ++n) theirs.push_back(*AttachAs(2, Numbered(n)));
  t->store->namespaces().OwnerEnded(Me(2).owner);
  std::uint32_t next = 1000, known = 0;
  while (Occupied().namespaces > std::exchange(known, Occupied().namespaces))
    ASSERT_TRUE(AttachAs(3, Numbered(next++)).has_value());
  const auto stands = [&](const Attached& one) {
    return t->store->CheckNamespace(one.slot, one.incarnation).ok();
  };
  const auto first = std::ranges::find_if(theirs, stands);  // it goes next
  ASSERT_NE(first, theirs.end());
  t->disk.set_faults(
      [](const io::IoRequest&, const std::string&) { return io::Fault{io::FaultKind::kIoError, 0}; });
  auto attaching = t->store->Attach(Numbered(next), Me(3, 3));
  ASSERT_FALSE(attaching.done() || stands(*first));
  auto dropping = t->store->cell_drops().BeginNamespace(first->slot);
  EXPECT_FALSE(t->Run(std::move(attaching)).has_value());
  t->Run(std::move(dropping));
  t->disk.set_faults({});
  ASSERT_TRUE(t->Run(t->store->cell_drops().Settle()).ok());
  // What a start would find.
  t->loop->Crash();
  t->NoteCrash();
  t->Stop();
  const auto loop = std::move(*io::SimulatedLoop::Make(t->clock, t->disk, 99));
  catalog::Journal journal(*loop, "node", 1);
  const auto found = loop->BlockOn(journal.Open());
  ASSERT_TRUE(found.has_value());
  const auto back = std::ranges::find(found->namespaces, first->slot, &catalog::NamespaceEntry::slot);
  ASSERT_NE(back, found->namespaces.end());
  EXPECT_NE(back->incarnation, first->incarnation) << "what flash has of it counts again";
}

// A list that was replaced and attached again is one namespace, and after a restart as well.
TEST_F(NamespacesTest, AListThatWasReplacedIsANewNamespaceWhenItComesBack) {
  Make();
  const std::uint32_t theirs = AttachAll(2, 0);
  const Attached before = *AttachAs(2, Numbered(100));
  ns = before;
  ASSERT_EQ(Put(1, {}), State::kPublished);
  ASSERT_EQ(*Drop(1), 1u);
  t->Tick();
  t->store->namespaces().OwnerEnded(Me(2).owner);
  const std::uint32_t later = AttachAll(3, 1000);
  EXPECT_FALSE(t->store->CheckNamespace(before.slot, before.incarnation).ok());
  t->store->namespaces().OwnerEnded(Me(3).owner);
  const Attached again = *AttachAs(4, Numbered(100));
  EXPECT_NE(again.incarnation, before.incarnation);
  ns = again;
  EXPECT_FALSE(Here(1));
  ASSERT_EQ(Put(2, {}), State::kPublished);
  EXPECT_GT(theirs + later, arena::kMaxNamespaces);
  Restart();
  const Attached back = *AttachAs(5, Numbered(100));
  EXPECT_EQ(back.incarnation, again.incarnation);
  EXPECT_EQ(back.slot, again.slot);
  ns = back;
  EXPECT_TRUE(Exact(2));
  EXPECT_FALSE(Here(1));
  EXPECT_EQ(Occupied().namespaces, 2u);  // the fixture's has a name
}

TEST_F(NamespacesTest, OneThatIsUsedWithoutAnAttachStays) {
  Make();
  AttachAll(2, 0);
  const Attached used = *AttachAs(2, Numbered(0));
  t->store->namespaces().Use(Me(3, 3).owner, used.slot);
  t->store->namespaces().OwnerEnded(Me(2).owner);
  AttachAll(4, 1000);
  EXPECT_TRUE(t->store->CheckNamespace(used.slot, used.incarnation).ok());
}

// A loop that begins anew with each version of its weights, for months, and whose engines come and go: each
// leaves a block behind, and every second a name.
TEST_F(NamespacesTest, P5FiveThousandNamespacesOneAfterTheOtherFindRoom) {
  Make();
  for (std::uint32_t step = 0; step < 5000; ++step) {
    NamespaceSpec spec = Numbered(step);
    if (step % 2 == 0) spec.name = "step " + std::to_string(step);
    const catalog::Caller engine = Somebody(step);
    const Result<Attached> attached = t->Run(t->store->Attach(spec, engine));
    ASSERT_TRUE(attached.has_value()) << step << ": " << attached.error().ToString();
    ns = *attached;
    ASSERT_EQ(Write({Part(step, std::nullopt)}, engine)[0].state, State::kPublished) << step;
    t->store->namespaces().OwnerEnded(engine.owner);
    ASSERT_LE(Occupied().namespaces, arena::kMaxNamespaces);
    if (step % 700 != 699) continue;
    t->Restart();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    // What came last is there still.
    ns = *t->Run(t->store->Attach(spec, engine));
    EXPECT_TRUE(Exact(step)) << step;
    t->store->namespaces().OwnerEnded(engine.owner);
  }
}

TEST_F(NamespacesTest, OfThoseThatNobodyUsesTheOneUsedLongestAgoGoesFirstAndNamesLast) {
  Make();
  const auto leave = [&](std::uint32_t number, std::string name) {
    NamespaceSpec spec = Numbered(number);
    spec.name = std::move(name);
    const Attached attached = *AttachAs(2, spec);
    ns = attached;
    EXPECT_EQ(Put(number, {}), State::kPublished);
    t->Advance(1'000'000);
    return attached;
  };
  const Attached named = leave(1, "a name"), old = leave(2, ""), used = leave(3, ""), young = leave(4, "");
  t->store->namespaces().OwnerEnded(Me(2).owner);
  t->Advance(1'000'000);
  const BlockKey key = Key(3);
  ASSERT_EQ(t->Run(t->store->Touch(used.slot, std::span(&key, 1))), 1u);
  const auto there = [&](const Attached& which) {
    return t->store->CheckNamespace(which.slot, which.incarnation).ok();
  };
  std::uint8_t owner = 3;
  for (std::uint32_t number = 1000; there(old) && owner < 200; ++number) {
    if (!AttachAs(owner, Numbered(number))) ++owner;
  }
  EXPECT_FALSE(there(old));
  ns = old;
  EXPECT_FALSE(Here(2)) << "its blocks go with it";
  EXPECT_TRUE(there(young) && there(used) && there(named));
}

TEST_F(NamespacesTest, AListThatIsToBeKnownIsNotMade) {
  Make();
  const auto known = [&](const NamespaceSpec& spec) {
    return t->Run(t->store->Attach(spec, Me(), IfNew::kRefuse));
  };
  const Result<Attached> none = known(Numbered(1));
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), Code::kMiss);
  EXPECT_EQ(Occupied().namespaces, 1u);
  EXPECT_EQ(known(OneGroup())->incarnation, ns.incarnation);
}

NamespaceSpec Strict() {
  NamespaceSpec spec = OneGroup("strict");
  spec.strict = true;
  return spec;
}

TEST_F(BlockStoreTest, R10AStrictNamespaceIsReadOnlyWhileTheMembershipStands) {
  Make({}, Strict());
  PutChain(1, 4);
  const catalog::BlockName names[] = {{Key(1), 0}, {Key(2), 0}};
  std::array<ViewGrant, 2> views;
  const auto at_once = [&] { return t->store->AcquireAtOnce(Me(), ns.slot, names, 1'000'000, views); };
  const auto reads = [&](bool hit) {
    EXPECT_EQ(t->store->Serves(ns.slot), hit);
    EXPECT_EQ(Match(1, 4), hit ? 4u : 0u);
    EXPECT_EQ(Hold(1, 4).has_value(), hit);
    EXPECT_EQ(Acquire({1, 2}, Me()).lease != 0, hit);
    EXPECT_EQ(at_once().value_or(0) != 0, hit);
  };
  reads(true);  // it never was in a cell
  t->store->SetTerm(t->clock.Now().PlusUs(5'000'000));
  reads(true);
  t->Advance(4'900'000);
  reads(true);
  t->Advance(100'000);
  reads(false);
  EXPECT_TRUE(t->store->LookAt(ns.slot, Key(1))->strict);
  EXPECT_EQ(Put(5, 4), State::kPublished) << "what is written meanwhile is kept";
  const std::uint32_t strict = ns.slot;
  Attach(OneGroup("other"));
  PutChain(11, 12);
  EXPECT_EQ(Match(11, 12), 2u);
  ns.slot = strict;
  t->store->SetTerm(t->clock.Now().PlusUs(5'000'000));
  EXPECT_EQ(Match(1, 5), 5u);
}

TEST_F(BlockStoreTest, R10ANodeThatWasInACellServesNothingStrictBeforeItIsAMemberAgain) {
  Make({}, Strict());
  PutChain(1, 2);
  const catalog::CellStanding standing{.history = 7, .cluster_id = 1, .highest_revision = 9, .applied = 9};
  ASSERT_TRUE(t->Run(t->store->cell_drops().Settle(&standing)).ok());
  t->store->SetTerm(t->clock.Now().PlusUs(100'000'000));
  EXPECT_EQ(Match(1, 2), 2u);
  // The term that stands in the arena is the dead start's.
  Restart(Strict());
  EXPECT_EQ(Match(1, 2), 0u);
  t->store->SetTerm(t->clock.Now().PlusUs(1'000'000));
  EXPECT_EQ(Match(1, 2), 2u);
}

TEST_F(BlockStoreTest, P5AnAttachOfWhatIsKnownWaitsForNoChangeOfAnother) {
  Make();
  auto changing = t->store->Attach(OneGroup("another"));
  ASSERT_FALSE(changing.done()) << "the journal is not there yet";
  auto known = t->store->Attach(OneGroup());
  EXPECT_TRUE(known.done());
  auto late = t->store->Attach(OneGroup("a third"), {}, IfNew::kMake, t->clock.Now());
  EXPECT_EQ(t->Run(std::move(late)).error().code(), Code::kTooLate);
  EXPECT_TRUE(t->Run(std::move(changing)).has_value());
  EXPECT_TRUE(t->Run(std::move(known)).has_value());
}

}  // namespace
}  // namespace cistern::store
