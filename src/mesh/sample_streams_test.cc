// SPDX-License-Identifier: Apache-2.0
#include "mesh/sample_streams.h"

#include <deque>
#include <map>

#include "mesh/test_mesh.h"

namespace cistern::mesh {
namespace {

// One peer, whose pages come when they are let.
class PageLinks final : public PeerLinks {
 public:
  explicit PageLinks(Executor& runs_on) : executor_(runs_on) {}
  Executor& executor() { return executor_; }
  std::vector<std::uint64_t> Reachable() const override { return {5}; }
  bool SameZone(std::uint64_t) const override { return false; }
  Status Tell(std::uint64_t, std::uint16_t, net::ConstPiece) override {
    ++told_in[executor_.steps()];
    return Status();
  }
  void TellLatest(std::uint64_t, std::uint16_t, net::ConstPiece) override {}
  Task<Result<std::vector<std::byte>>> Ask(std::uint64_t, std::uint16_t, std::vector<std::byte>,
                                           Instant) override {
    ++asked;
    co_await let.Wait();
    co_return Encode(page);
  }
  std::string RailAddress(std::uint64_t) const override { return ""; }
  int asked = 0;
  std::map<std::uint64_t, int> told_in;  // notices by step
  Event let;
  SnapshotPage page;

 private:
  Executor& executor_;
};

class SampleStreamsTest : public MeshTest {
 protected:
  // Blocks 1 to `last` of node 0, as soon as the first sample has gone. Whether others of its remain.
  Task<bool> PutOnceItGoes(std::uint64_t last) {
    SampleFeed& feed = *node(0).feed;
    for (const std::uint64_t before = feed.samples(); feed.samples() >= before;)
      co_await feed.changed().Wait();
    std::vector<store::PartWrite> parts;
    for (std::uint64_t n = 1; n <= last; ++n) {
      parts.emplace_back().key = store::Key(n);
      if (n > 1) parts.back().parent = store::Key(n - 1);
      parts.back().put_id = {2, n};
      bodies_.push_back(store::Body(n, 512));
      parts.back().from = bodies_.back();
    }
    const catalog::Caller caller{1, {std::byte{1}}};
    const auto outcomes = co_await node(0).store->Write(caller, slot, std::move(parts), After(1'000'000));
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    co_return feed.samples() > 100;
  }
  std::deque<std::vector<std::byte>> bodies_;
  // Node 0's streams beside a peer that is connected.
  struct OnePeer {
    explicit OnePeer(SampleStreamsTest& test)
        : links(test.executor()),
          streams({test.executor(), *test.node(0).feed, index, links, test.node(0).rule}) {
      streams.Connected(5);
    }
    PageLinks links;
    SampleIndex index{{1u << 20, 64}};
    SampleStreams streams;
  };
  void Hear(SampleStreams& streams, std::uint64_t first, std::vector<SampleChange> changes = {}) {
    streams.Heard(5, Encode(SampleNotice{.history = 7, .first = first, .changes = std::move(changes)}));
  }
};

TEST_F(SampleStreamsTest, ChainIsFoundWholeAtANodeWhereNobodySaidHowLongABlockIs) {
  NamespaceSpec unsaid = Blocks();
  unsaid.block_tokens = NamespaceSpec().block_tokens;
  AddNode(unsaid);
  AddNode();
  PutChain(0, 1, 70);
  const std::uint64_t number = node(0).process_number;
  ASSERT_TRUE(
      RunUntil([&] { return Know() && node(1).streams->SamplesOf(number) == node(0).feed->samples(); }));
  EXPECT_EQ(BlocksOf(Find(1, 1, 100)), 70u);
  EXPECT_EQ(BlocksOf(Find(1, 1, 100, 17)), 53u);
}

TEST_F(SampleStreamsTest, WhatIsToldDuringASnapshotIsAppliedBehindItFromItsCountOn) {
  StartNodes(1);
  ASSERT_TRUE(RunUntil([&] { return node(0).feed->history() == 7; }));
  OnePeer peer(*this);
  auto& [links, index, streams] = peer;
  Hear(streams, 9);
  ASSERT_TRUE(RunUntil([&] { return links.asked == 1; }));
  Hear(streams, 9, {{{100, 1}, false}});  // before the snapshot began, and gone since
  Hear(streams, 10, {{{200, 1}, false}, {{300, 1}, true}});
  links.page = {.history = 7, .as_of = 11, .samples = {{300, 1}, {400, 1}}};
  EXPECT_TRUE(streams.Askable().none() || index.entries() == 0);
  links.let.Set();
  ASSERT_TRUE(RunUntil([&] { return index.entries() == 1; }));
  EXPECT_TRUE(index.Holders(400).any());
  EXPECT_TRUE(index.Holders(300).none() && index.Holders(100).none());
  // And it goes on from there.
  Hear(streams, 12, {{{500, 1}, false}});
  EXPECT_TRUE(index.Holders(500).any());
  EXPECT_EQ(links.asked, 1);
  loop->BlockOn(streams.Close());
}

TEST_F(SampleStreamsTest, WhatIsPutAgainWhileItsNamesakeIsStillCollectedIsKnown) {
  StartNodes(2);
  PutChain(0, 1, 3'000, 512);
  auto putting = PutOnceItGoes(16);
  auto drop = node(0).store->DropNamespace(slot);
  EXPECT_TRUE(loop->BlockOn(std::move(putting))) << "the collection goes on meanwhile";
  ASSERT_TRUE(loop->BlockOn(std::move(drop)).has_value());
  RunFor(100'000);
  EXPECT_EQ(node(0).feed->samples(), 5u);
  EXPECT_EQ(node(1).index->entries(), 5u);
  EXPECT_EQ(BlocksOf(Find(1, 1, 16)), 16u);
}

TEST_F(SampleStreamsTest, WhatGoesWhileAllIsCountedAnewIsCountedOut) {
  StartNodes(2);
  PutChain(0, 1, 5'000, 512);
  ASSERT_TRUE(RunUntil([&] { return node(1).index->entries() == 1'251; }));
  auto counting = node(0).feed->Begin(7);
  const BlockKey last = store::Key(5'000);
  auto drop = node(0).store->Drop(slot, std::span(&last, 1));
  loop->BlockOn(std::move(counting));
  ASSERT_TRUE(loop->BlockOn(std::move(drop)).has_value());
  EXPECT_EQ(node(0).feed->samples(), 1'250u);
  EXPECT_TRUE(RunUntil([&] { return node(1).index->entries() == 1'250; }));
}

TEST_F(SampleStreamsTest, P5NoNoteIsKeptOfNamespacesThatWereDropped) {
  StartNodes(1);
  ASSERT_TRUE(RunUntil([&] { return node(0).feed->history() == 7; }));
  for (std::uint64_t round = 0; round < 200; ++round) {
    Put(0, 1, std::nullopt);
    ASSERT_TRUE(loop->BlockOn(node(0).store->DropNamespace(slot)).has_value());
  }
  EXPECT_LT(node(0).feed->trees(), 100u);
}

TEST_F(SampleStreamsTest, P5EachNoticeIsAStepOfItsOwn) {
  StartNodes(1);
  ASSERT_TRUE(RunUntil([&] { return node(0).feed->history() == 7; }));
  OnePeer peer(*this);
  auto& [links, index, streams] = peer;
  for (std::uint64_t another = 6; another <= 12; ++another) streams.Connected(another);
  links.told_in.clear();
  PutChain(0, 1, 5'000, 512);
  streams.Start();
  int notices = 0;
  ASSERT_TRUE(RunUntil([&] {
    notices = 0;
    for (const auto& [step, told] : links.told_in) notices += told;
    return notices >= 8 * 3;
  }));
  EXPECT_EQ(links.told_in.size(), static_cast<std::size_t>(notices));
  loop->BlockOn(streams.Close());
}

TEST_F(SampleStreamsTest, P5NoticeOfMoreThanAStepIsNotTaken) {
  StartNodes(1);
  ASSERT_TRUE(RunUntil([&] { return node(0).feed->history() == 7; }));
  OnePeer peer(*this);
  auto& [links, index, streams] = peer;
  Hear(streams, 0);
  links.page = {.history = 7, .as_of = 0, .samples = {{400, 1}}};
  links.let.Set();
  ASSERT_TRUE(RunUntil([&] { return index.entries() == 1; }));
  std::vector<SampleChange> changes;
  for (std::uint64_t n = 0; n < SampleStreamLimits::kNotice; ++n) changes.push_back({{1'000 + n, 1}, false});
  Hear(streams, 0, changes);
  EXPECT_EQ(index.entries(), 1 + changes.size());
  const std::uint64_t next = changes.size();
  changes.push_back({{1, 1}, false});
  Hear(streams, next, changes);
  EXPECT_TRUE(index.Holders(1).none());
  EXPECT_EQ(links.asked, 1);
  Hear(streams, next + changes.size());
  EXPECT_TRUE(RunUntil([&] { return links.asked == 2; })) << "the gap shows";
  loop->BlockOn(streams.Close());
}

TEST_F(SampleStreamsTest, P5NoticesOfNothingDuringASnapshotAreBoundedToo) {
  StartNodes(1);
  ASSERT_TRUE(RunUntil([&] { return node(0).feed->history() == 7; }));
  OnePeer peer(*this);
  auto& [links, index, streams] = peer;
  Hear(streams, 10);
  ASSERT_TRUE(RunUntil([&] { return links.asked == 1; }));
  for (std::size_t i = 0; i <= SampleStreamLimits::kHeldBack; ++i) Hear(streams, 10);
  links.page = {.history = 7, .as_of = 10, .samples = {{400, 1}}};
  links.let.Set();
  ASSERT_TRUE(RunUntil([&] { return index.Holders(400).any(); }));
  EXPECT_EQ(links.asked, 2) << "what was more than it keeps is asked for anew";
  loop->BlockOn(streams.Close());
}

}  // namespace
}  // namespace cistern::mesh
