// SPDX-License-Identifier: Apache-2.0
#include "mesh/peer_table.h"

#include <gtest/gtest.h>

namespace cistern::mesh {
namespace {

constexpr std::int64_t kSecond = 1'000'000;

// Whoever stood: this node, its rail, the way there.
TEST(PeerPace, BatchThatWasHeldUpSaysLittleOfItsPeer) {
  constexpr std::uint64_t kBatch = 512u << 10;
  Peer peer;
  Instant now = Instant().PlusUs(100 * kSecond);
  const auto land = [&](std::int64_t us) {
    const Instant asked = now;
    now = now.PlusUs(us);
    peer.NoteLanded(kBatch, asked, now);
  };
  for (int batch = 0; batch < 64; ++batch) land(250);
  const double before = peer.bytes_per_us(now);
  EXPECT_NEAR(before, kBatch / 250.0, 20);
  land(3 * kSecond);
  EXPECT_GT(peer.bytes_per_us(now), before / 2);
}

// Nobody reads from who is slow, so nothing would tell that it no longer is.
TEST(PeerPace, PeerThatWasSlowIsReadFromAgainAfterAMinute) {
  Peer peer;
  Instant now = Instant().PlusUs(100 * kSecond);
  for (int batch = 0; batch < 64; ++batch) {
    now = now.PlusUs(kSecond);
    peer.NoteLanded(512u << 10, now.PlusUs(-kSecond), now);
  }
  EXPECT_LT(peer.bytes_per_us(now.PlusUs(59 * kSecond)), 1);
  const double unknown = Peer().bytes_per_us(now);
  EXPECT_EQ(peer.bytes_per_us(now.PlusUs(61 * kSecond)), unknown);
  now = now.PlusUs(61 * kSecond);
  peer.NoteLanded(512u << 10, now.PlusUs(-300), now);
  EXPECT_GT(peer.bytes_per_us(now), unknown);
}

// A connection that was cut, beside a read that waited for room.
TEST(PeerTable, MemberThatComesBackAsTheSameStartIsKeptWhenWhatItWasAskedForBeforeEnds) {
  PeerTable table(0);
  Peer& peer = table.Of(7);
  peer.greeted = true;
  peer.batches = 1;
  table.Forget(7);
  ASSERT_EQ(table.Find(7), &peer);
  peer.greeted = true;
  peer.room_bytes = 5;
  peer.batches = 0;
  table.ForgetEnded();
  ASSERT_EQ(table.Find(7), &peer);
  EXPECT_EQ(peer.room_bytes, 5u);
  table.Forget(7);
  EXPECT_EQ(table.Find(7), nullptr);
}

}  // namespace
}  // namespace cistern::mesh
