// SPDX-License-Identifier: Apache-2.0
#include "server/ring.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>

namespace cistern::server {
namespace {

struct Free {
  void operator()(wire::SessionMemory* memory) const {
    ::operator delete(memory, std::align_val_t(alignof(wire::SessionMemory)));
  }
};

class Ring : public ::testing::Test {
 protected:
  Ring()
      : memory(static_cast<wire::SessionMemory*>(
            ::operator new(sizeof(wire::SessionMemory), std::align_val_t(alignof(wire::SessionMemory))))) {
    std::memset(static_cast<void*>(memory.get()), 0, sizeof(wire::SessionMemory));
  }
  void Submit(std::uint64_t ticket) {
    memory->submissions[memory->submitted % wire::kRingEntries].ticket = ticket;
    memory->submitted++;
  }
  std::unique_ptr<wire::SessionMemory, Free> memory;
  NodeRing ring{*memory};
  wire::Submission entry;
};

TEST_F(Ring, EntriesComeInOrderOverManyRounds) {
  for (std::uint64_t i = 0; i < 10 * wire::kRingEntries; ++i) {
    Submit(i);
    ASSERT_EQ(ring.Take(entry), NodeRing::Took::kEntry);
    ASSERT_EQ(entry.ticket, i);
    ASSERT_EQ(ring.Complete({.ticket = i}), NodeRing::Put::kDone);
    ASSERT_EQ(memory->completions[memory->collected++ % wire::kRingEntries].ticket, i);
  }
  EXPECT_EQ(ring.Take(entry), NodeRing::Took::kNothing);
}

TEST_F(Ring, AStepLargerThanTheRingIsForged) {
  memory->submitted = wire::kRingEntries;
  EXPECT_EQ(ring.Take(entry), NodeRing::Took::kEntry);
  memory->submitted = wire::kRingEntries + 2;
  EXPECT_EQ(ring.Take(entry), NodeRing::Took::kForged);
  memory->submitted = 0;  // backwards
  EXPECT_EQ(ring.Take(entry), NodeRing::Took::kForged);
}

TEST_F(Ring, NoMoreThanARingIsInFlight) {
  for (std::uint32_t i = 0; i < wire::kRingEntries; ++i) {
    Submit(i);
    ASSERT_EQ(ring.Take(entry), NodeRing::Took::kEntry);
  }
  Submit(0);
  EXPECT_EQ(ring.Take(entry), NodeRing::Took::kNothing);
  ASSERT_EQ(ring.Complete({}), NodeRing::Put::kDone);
  EXPECT_EQ(ring.Take(entry), NodeRing::Took::kEntry);
}

TEST_F(Ring, WhoDoesNotCollectLosesCompletionsAndNobodyWaits) {
  for (std::uint32_t i = 0; i < wire::kRingEntries; ++i) {
    Submit(i);
    ASSERT_EQ(ring.Take(entry), NodeRing::Took::kEntry);
    ASSERT_EQ(ring.Complete({}), NodeRing::Put::kDone);
  }
  Submit(0);
  ASSERT_EQ(ring.Take(entry), NodeRing::Took::kEntry);
  EXPECT_EQ(ring.Complete({}), NodeRing::Put::kLost);
  EXPECT_EQ(ring.in_flight(), 0u);
  memory->collected = 1;
  Submit(0);
  ASSERT_EQ(ring.Take(entry), NodeRing::Took::kEntry);
  EXPECT_EQ(ring.Complete({}), NodeRing::Put::kDone);
}

TEST_F(Ring, CollectingWhatWasNeverMadeIsForged) {
  Submit(0);
  ASSERT_EQ(ring.Take(entry), NodeRing::Took::kEntry);
  memory->collected = 1;
  EXPECT_EQ(ring.Complete({}), NodeRing::Put::kForged);
}

TEST_F(Ring, OverwrittenTouchesAreLostAndCounted) {
  memory->touched = wire::kTouchEntries + 10;
  for (std::uint32_t i = 0; i < wire::kTouchEntries; ++i) memory->touches[i] = i;
  std::array<std::uint64_t, 100> touches;
  std::uint64_t lost = 0;
  EXPECT_TRUE(ring.HasTouches());
  EXPECT_EQ(ring.TakeTouches(touches, lost), touches.size());
  EXPECT_EQ(lost, 10u);
  EXPECT_EQ(touches[0], 10u);
  memory->touched = 5;  // a count that goes back is a whole ring at most
  std::size_t taken = 0, now;
  while ((now = ring.TakeTouches(touches, lost)) > 0) taken += now;
  EXPECT_LE(taken, wire::kTouchEntries);
  EXPECT_FALSE(ring.HasTouches());
}

}  // namespace
}  // namespace cistern::server
