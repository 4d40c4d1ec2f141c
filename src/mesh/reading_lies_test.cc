// SPDX-License-Identifier: Apache-2.0
// Peers that answer what is not so.
#include <limits>

#include "mesh/test_reading.h"

namespace cistern::mesh {
namespace {

class LiarTest : public ReadingTest {
 protected:
  // What node 0 answers from then on; how many of 8 blocks node 1 takes.
  std::size_t TakenWith(MeshNode::Lie lie) {
    StartNodes(2);
    PutAndTell(0, 8, 70'000);
    const PeerMatch match = Find(1, 1, 8);
    node(0).lie = std::move(lie);
    const std::size_t taken = Read(1, match).value_or(0);
    for (std::uint64_t n = 1; n <= 8; ++n) EXPECT_EQ(Here(1, n), Exact(1, n, 70'000)) << n;
    EXPECT_TRUE(RunUntil([&] { return node(1).reader->landing_bytes() == 0; }));
    EXPECT_EQ(node(1).store->occupancy().pending, 0u);
    return taken;
  }
  static void Change(net::RailSource::Answer& answer, const std::function<void(BlockHead&)>& change) {
    auto head = DecodeBlockHead(answer.head);
    ASSERT_TRUE(head.has_value());
    change(*head);
    answer.head = Encode(*head);
  }
};

TEST_F(LiarTest, TimeThatNobodyWaitsForIsNoneInThePast) {
  StartNodes(2);
  PutAndTell(0, 8);
  node(0).match_lie = [](MatchReply& reply) {
    for (MatchRun& run : reply.runs) run.ready_in_us = std::numeric_limits<std::int64_t>::max();
  };
  const PeerMatch match = Find(1, 1, 8);
  ASSERT_FALSE(match.runs.empty());
  for (const MatchRun& run : match.runs) EXPECT_GT(run.ready_in_us, 60 * kSecond);
}

TEST_F(LiarTest, FlippedByteIsAMiss) {
  std::vector<std::byte> other;
  int answers = 0;
  EXPECT_EQ(TakenWith([&](net::RailSource::Answer& answer) {
              if (++answers != 4) return;
              other.assign(answer.body[0].begin(), answer.body[0].end());
              other[69'999] ^= std::byte{1};
              answer.body = {net::ConstPiece(other)};
            }),
            3u);
}

TEST_F(LiarTest, AnotherBlocksBodyOrNameIsAMiss) {
  EXPECT_EQ(TakenWith([](net::RailSource::Answer& answer) {
              Change(answer, [](BlockHead& head) { head.key = store::Key(77); });
            }),
            0u);
}

TEST_F(LiarTest, AnotherParentIsAMiss) {
  EXPECT_EQ(TakenWith([](net::RailSource::Answer& answer) {
              Change(answer, [](BlockHead& head) { head.parent = store::Key(77); });
            }),
            0u);
}

TEST_F(LiarTest, PartsThatAreNotTheBodysAreAMiss) {
  EXPECT_EQ(TakenWith([](net::RailSource::Answer& answer) {
              Change(answer, [](BlockHead& head) { head.part_bytes = {69'000, 1'000}; });
            }),
            0u);
}

TEST_F(LiarTest, ShorterBodyIsAMiss) {
  EXPECT_EQ(TakenWith([](net::RailSource::Answer& answer) {
              answer.body[0] = answer.body[0].first(60'000);
              Change(answer, [](BlockHead& head) {
                head.part_bytes = {60'000};
                head.segment_crcs.resize(1);
              });
            }),
            0u);
}

TEST_F(LiarTest, GarbageIsAMiss) {
  Random random(4);
  EXPECT_EQ(TakenWith([&](net::RailSource::Answer& answer) {
              for (std::byte& byte : answer.head) byte = static_cast<std::byte>(random.Next());
            }),
            0u);
}

}  // namespace
}  // namespace cistern::mesh
