// SPDX-License-Identifier: Apache-2.0
#include "mesh/sample_streams.h"

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
  Status Tell(std::uint64_t, std::uint16_t, net::ConstPiece) override { return Status(); }
  Task<Result<std::vector<std::byte>>> Ask(std::uint64_t, std::uint16_t, std::vector<std::byte>,
                                           Instant) override {
    ++asked;
    co_await let.Wait();
    co_return Encode(page);
  }
  std::string RailAddress(std::uint64_t) const override { return ""; }
  int asked = 0;
  Event let;
  SnapshotPage page;

 private:
  Executor& executor_;
};

class SampleStreamsTest : public MeshTest {
 protected:
  void Hear(SampleStreams& streams, std::uint64_t first, std::vector<SampleChange> changes = {}) {
    streams.Heard(5, Encode(SampleNotice{.history = 7, .first = first, .changes = std::move(changes)}));
  }
};

TEST_F(SampleStreamsTest, WhatIsToldDuringASnapshotIsAppliedBehindItFromItsCountOn) {
  StartNodes(1);
  ASSERT_TRUE(RunUntil([&] { return node(0).feed->history() == 7; }));
  PageLinks links(executor());
  SampleIndex index({1u << 20, 64});
  SampleStreams streams({executor(), *node(0).feed, index, links, node(0).rule});
  streams.Connected(5);
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

}  // namespace
}  // namespace cistern::mesh
