// SPDX-License-Identifier: Apache-2.0
// A client of a node whose memory is small and that has flash below it: what left memory is matched, read and
// leased as if it had not, or refused by name.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>

#include "load_pages.h"
#include "lower_tier_node.h"

namespace cistern {
namespace {

constexpr std::size_t kBytes = 96u << 10;  // a segment and a half
constexpr std::uint64_t kResident = 8;
constexpr std::uint64_t kBlocks = 48;

class LowerTier : public ::testing::TestWithParam<io::LoopKind> {
 protected:
  // A chain of kBlocks of which most have left memory.
  void SetUp() override {
    const Status uring = io::ProbeUring();
    if (GetParam() == io::LoopKind::kUring && !uring.ok()) GTEST_SKIP() << uring.ToString();
    Make(kResident);
    chain = PutChain(kBlocks, kBytes);
  }
  void Make(std::uint64_t resident) {
    store.reset();
    node.emplace(GetParam(), resident);
    store.emplace(node->Connect());
    ns = AttachTest(*store);
  }
  // Each is on flash before the next comes, so that none is lost.
  std::vector<BlockKey> PutChain(std::uint64_t count, std::size_t bytes) {
    std::vector<BlockKey> keys;
    for (std::uint64_t n = 0; n < count; ++n) {
      const Status put = PutBlock(*store, ns, n, n == 0 ? std::nullopt : std::optional(n - 1), bytes);
      EXPECT_TRUE(put.ok()) << n << ": " << put.ToString();
      Until([&] { return node->counters().written_down.value() > n; });
      keys.push_back(KeyOf(n));
    }
    return keys;
  }

  // Reads of whole blocks, each to memory of its own.
  struct Reads {
    explicit Reads(std::span<const std::uint64_t> numbers, std::size_t bytes = kBytes)
        : of(numbers.begin(), numbers.end()) {
      got.resize(of.size());
      ranges.resize(of.size());
      for (std::size_t i = 0; i < of.size(); ++i) {
        got[i].resize(bytes);
        ranges[i] = {.bytes = bytes, .to = got[i].data()};
        blocks.push_back({.key = KeyOf(of[i]), .ranges = std::span(&ranges[i], 1)});
      }
    }
    bool Exact(std::size_t at) const { return got[at] == BodyOf(of[at], got[at].size()); }
    std::vector<std::uint64_t> of;
    std::vector<std::vector<std::byte>> got;
    std::vector<ReadRange> ranges;
    std::vector<BlockRead> blocks;
  };
  static std::vector<std::uint64_t> Numbers(std::uint64_t first, std::uint64_t last) {
    std::vector<std::uint64_t> numbers;
    for (std::uint64_t n = first; n <= last; ++n) numbers.push_back(n);
    return numbers;
  }
  // One that is in memory now, and one that is not.
  std::uint64_t OneThatIs(bool in_memory) {
    for (std::uint64_t n = 0; n < kBlocks; ++n) {
      const std::uint64_t number[] = {n};
      Reads one(number);
      const Code code = Outcomes(one, {.worth_us = 0, .touch = false}).front();
      if ((code == Code::kOk) == in_memory) return n;
    }
    ADD_FAILURE() << "none is";
    return 0;
  }
  std::vector<Code> Outcomes(Reads& reads, const ReadOptions& options = {}) {
    Result<ReadResult> result = store->Read(ns, reads.blocks, options).Wait();
    EXPECT_TRUE(result.has_value()) << result.error().ToString();
    return result ? result->outcomes : std::vector<Code>(reads.of.size(), result.error().code());
  }
  std::uint64_t fetched() const { return node->counters().fetched.value(); }

  std::optional<LowerTierNode> node;
  std::optional<Store> store;
  Namespace ns;
  std::vector<BlockKey> chain;
};

INSTANTIATE_TEST_SUITE_P(Bodies, LowerTier, testing::Values(io::LoopKind::kUring, io::LoopKind::kEpoll),
                         [](const auto& kind) {
                           return kind.param == io::LoopKind::kUring ? "io_uring" : "epoll";
                         });

TEST_P(LowerTier, P1WhatLeftMemoryIsReadBitExact) {
  node->KeepLeases();
  Reads reads(Numbers(0, kBlocks - 1));
  for (std::size_t i = 0; i < reads.of.size(); ++i) {
    Result<ReadResult> result = store->Read(ns, std::span(&reads.blocks[i], 1)).Wait();
    ASSERT_TRUE(result.has_value()) << i << result.error().ToString();
    ASSERT_EQ(result->outcomes[0], Code::kOk) << i;
    EXPECT_EQ(result->leading_hits, 1u);
    EXPECT_TRUE(reads.Exact(i)) << i;
  }
  EXPECT_GE(fetched(), kBlocks - 2 * kResident);
  Until([&] { return StatusNumber(*store, "leases") == 0; });
}

TEST_P(LowerTier, TurnThatAClientTellsOfFindsWhatMayBeHeldInMemory) {
  // Half of memory, from the chain's first block on: the prompt is taken in with the read of what lies below.
  Reads reads(Numbers(0, kBlocks - 1));
  Reads held(Numbers(1, kResident / 2 - 1));  // the client itself has read the first
  const auto are_held = [&] {
    return node->counters().fetched_ahead.value() >= kResident / 2 &&
           std::ranges::all_of(Outcomes(held, {.worth_us = 0, .touch = false}),
                               [](Code code) { return code == Code::kOk; });
  };
  const auto awaited = [&] { return StatusNumber(*store, "awaited_turns") > 0; };
  // It is told of again where the turn was past before all of it had come.
  Until([&] {
    EXPECT_EQ(store->Match(ns, chain, {.hints = {.next_turn_ms = 1'000}}).Wait()->blocks, kBlocks);
    for (std::size_t at = 0; !awaited() && at < kBlocks; ++at)
      EXPECT_TRUE(store->Read(ns, std::span(&reads.blocks[at], 1)).Wait().has_value());
    Until([&] { return are_held() || !awaited(); });
    return are_held();
  });
  for (std::size_t i = 0; i < held.of.size(); ++i) EXPECT_TRUE(held.Exact(i)) << i;
}

TEST_P(LowerTier, P4AReadThatIsAnsweredAndNotTakenLeavesNoLease) {
  const std::uint64_t number[] = {OneThatIs(false)};
  node->KeepLeases();
  Reads reads(number);
  {
    Ticket<ReadResult> not_taken = store->Read(ns, reads.blocks);
    Until([&] { return not_taken.ready(); });
    EXPECT_EQ(StatusNumber(*store, "leases"), 1u);
  }
  Until([&] { return StatusNumber(*store, "leases") == 0; });
}

TEST_P(LowerTier, P1GetAndViewsAreTheBytesOfBlocksThatLeftMemory) {
  for (std::uint64_t n = 0; n < kBlocks; n += 5) {
    Result<std::vector<std::byte>> got = store->Get(ns, KeyOf(n));
    ASSERT_TRUE(got.has_value()) << n << got.error().ToString();
    EXPECT_EQ(*got, BodyOf(n, kBytes)) << n;
  }
  const std::array<BlockRef, 3> refs = {{{KeyOf(OneThatIs(false))}, {KeyOf(999)}, {KeyOf(OneThatIs(true))}}};
  Result<Lease> lease = store->Acquire(ns, refs, {.lease_us = kMaxLeaseUs}).Wait();
  ASSERT_TRUE(lease.has_value()) << lease.error().ToString();
  for (const std::size_t i : {0, 2}) {
    const View& view = lease->views()[i];
    EXPECT_EQ(view.code, Code::kOk) << i;
    ASSERT_EQ(view.bytes, kBytes) << i;
  }
  EXPECT_EQ(lease->views()[1].data, nullptr);
  EXPECT_EQ(lease->views()[1].code, Code::kMiss);
  const std::vector<std::byte> seen(lease->views()[0].data, lease->views()[0].data + kBytes);
  EXPECT_TRUE(lease->still_good());
  std::uint64_t number = 0;
  while (!(KeyOf(number) == refs[0].key)) ++number;
  EXPECT_EQ(seen, BodyOf(number, kBytes));
}

TEST_P(LowerTier, RangesInPiecesOfABlockThatLeftMemoryAreReadFromCopiedLists) {
  const std::uint64_t number = OneThatIs(false);
  const std::vector<std::byte> body = BodyOf(number, kBytes);
  std::array<std::array<std::byte, 700>, 4> to{};
  std::optional<Ticket<ReadResult>> ticket;
  {
    // All of this is gone when the read is answered.
    std::vector<std::span<std::byte>> pieces = {to[0], to[1]};
    std::vector<ReadRange> ranges = {{.offset = 70'000, .bytes = 1400, .pieces = pieces},
                                     {.offset = 5, .bytes = 700, .to = to[2].data()}};
    const std::vector<BlockRead> reads = {{.key = KeyOf(number), .ranges = ranges}, {.key = KeyOf(999)}};
    ticket.emplace(store->Read(ns, reads));
    std::ranges::fill(pieces, std::span<std::byte>());
    std::ranges::fill(ranges, ReadRange{});
  }
  Result<ReadResult> result = ticket->Wait();
  ASSERT_TRUE(result.has_value()) << result.error().ToString();
  EXPECT_EQ(result->outcomes, (std::vector<Code>{Code::kOk, Code::kMiss}));
  EXPECT_EQ(std::memcmp(to[0].data(), body.data() + 70'000, 700), 0);
  EXPECT_EQ(std::memcmp(to[1].data(), body.data() + 70'700, 700), 0);
  EXPECT_EQ(std::memcmp(to[2].data(), body.data() + 5, 700), 0);
  ReadRange past{.offset = kBytes - 10, .bytes = 11, .to = to[3].data()};
  const BlockRead wrong{.key = KeyOf(OneThatIs(false)), .ranges = std::span(&past, 1)};
  EXPECT_EQ(store->Read(ns, std::span(&wrong, 1)).Wait()->outcomes[0], Code::kInvalid);
}

TEST_P(LowerTier, P6AMatchCountsTheLowerTierAndSaysSo) {
  const auto check = [](const Result<MatchResult>& match) {
    ASSERT_TRUE(match.has_value()) << match.error().ToString();
    EXPECT_EQ(match->blocks, kBlocks);
    std::uint64_t memory = 0, flash = 0;
    for (std::size_t i = 0; i < match->runs.size(); ++i) {
      const MatchRun& run = match->runs[i];
      EXPECT_GT(run.blocks, 0u);
      if (i > 0) {
        EXPECT_NE(run.where, match->runs[i - 1].where);
      }
      const bool below = run.where == Where::kFlash;
      EXPECT_EQ(run.ready_in_us > 0, below);
      (below ? flash : memory) += run.blocks;
    }
    EXPECT_EQ(memory + flash, kBlocks);
    EXPECT_GE(flash, kBlocks - 2 * kResident);
    EXPECT_GT(memory, 0u);
  };
  check(store->Match(ns, chain).Wait());
  Result<MatchResult> held = store->Match(ns, chain, {.hold_us = kMaxLeaseUs}).Wait();
  check(held);
  EXPECT_TRUE(held->hold.still_good());
}

TEST_P(LowerTier, P3WhatIsNotWorthItsWaitIsRefusedAndNotFetched) {
  const std::array<std::uint64_t, 2> numbers = {OneThatIs(true), OneThatIs(false)};
  const std::uint64_t before = fetched();
  Reads reads(numbers);
  EXPECT_EQ(Outcomes(reads, {.worth_us = 0}), (std::vector<Code>{Code::kOk, Code::kTooLate}));
  EXPECT_TRUE(reads.Exact(0));
  const std::array<BlockRef, 2> refs = {{{KeyOf(numbers[0])}, {KeyOf(numbers[1])}}};
  Result<Lease> both = store->Acquire(ns, refs, {.worth_us = 0}).Wait();
  ASSERT_TRUE(both.has_value()) << both.error().ToString();
  EXPECT_NE(both->views()[0].data, nullptr);
  EXPECT_EQ(both->views()[1].data, nullptr);
  EXPECT_EQ(both->views()[1].code, Code::kTooLate);
  EXPECT_GT(both->views()[1].ready_in_us, 0);
  Result<Lease> none = store->Acquire(ns, std::span(refs).last(1), {.worth_us = 0}).Wait();
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), Code::kTooLate) << none.error().ToString();
  EXPECT_EQ(store->Get(ns, refs[1].key, {.worth_us = 0}).error().code(), Code::kTooLate);
  EXPECT_EQ(store->Get(ns, KeyOf(999), {.worth_us = 0}).error().code(), Code::kMiss);
  EXPECT_EQ(fetched(), before);
  EXPECT_EQ(Outcomes(reads), (std::vector<Code>{Code::kOk, Code::kOk}));
  EXPECT_TRUE(reads.Exact(1));
}

// Copying what memory has takes longer than the rest is worth.
TEST_P(LowerTier, P3WhatARestIsWorthCountsFromTheBeginOfItsRead) {
  constexpr std::size_t kCopies = 2000;
  const std::array<std::uint64_t, 2> numbers = {OneThatIs(true), OneThatIs(false)};
  Reads reads(numbers);
  const std::vector<ReadRange> copies(kCopies, reads.ranges[0]);
  reads.blocks[0].ranges = copies;
  const std::uint64_t before = fetched();
  EXPECT_EQ(Outcomes(reads, {.worth_us = 2'000}), (std::vector<Code>{Code::kOk, Code::kTooLate}));
  EXPECT_EQ(fetched(), before);
}

TEST_P(LowerTier, P3WhatMembersTookOfTheWorthIsNotGivenToFlashAgain) {
  store.reset();
  node.emplace(GetParam(), kResident, 64u << 20, Promotion::kAll, /*slow_members=*/true);
  store.emplace(node->Connect());
  ns = AttachTest(*store);
  chain = PutChain(kBlocks, kBytes);
  const std::uint64_t number[] = {OneThatIs(false)};
  const std::uint64_t before = fetched();
  Reads read(number);
  EXPECT_EQ(Outcomes(read, {.worth_us = 100'000}), std::vector<Code>{Code::kTooLate});
  EXPECT_EQ(fetched(), before);
}

TEST_P(LowerTier, P3ADeadlineEndsTheWaitForAFetchAndNothingElse) {
  const std::array<std::uint64_t, 2> numbers = {OneThatIs(true), OneThatIs(false)};
  node->Hold();
  Reads reads(numbers);
  EXPECT_EQ(Outcomes(reads, {.deadline_us = 30'000}), (std::vector<Code>{Code::kOk, Code::kTooLate}));
  EXPECT_TRUE(reads.Exact(0));
  const std::vector<std::byte> untouched = reads.got[1];
  // What comes later reaches nobody's memory, and the next who asks finds it on its way.
  const std::uint64_t below[] = {numbers[1]};
  Reads again(below);
  Ticket<ReadResult> later = store->Read(ns, again.blocks);
  EXPECT_FALSE(later.ready());
  node->LetGo();
  EXPECT_EQ(later.Wait()->outcomes, std::vector<Code>{Code::kOk});
  EXPECT_TRUE(again.Exact(0));
  EXPECT_EQ(reads.got[1], untouched);
}

TEST_P(LowerTier, AHundredWaitersForABlockAreOneFetch) {
  const std::uint64_t number[] = {OneThatIs(false)};
  const std::uint64_t before = fetched();
  Store other = node->Connect();
  Namespace others = AttachTest(other);
  node->KeepLeases();
  node->Hold();
  std::vector<Reads> reads;
  reads.reserve(100);
  std::vector<Ticket<ReadResult>> tickets;
  for (std::size_t i = 0; i < 100; ++i) {
    reads.emplace_back(number);
    tickets.push_back(i % 2 == 0 ? store->Read(ns, reads[i].blocks) : other.Read(others, reads[i].blocks));
  }
  Until([&] { return node->held() > 0; });
  node->LetGo();
  for (std::size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(tickets[i].Wait()->outcomes, std::vector<Code>{Code::kOk}) << i;
    EXPECT_TRUE(reads[i].Exact(0)) << i;
  }
  EXPECT_EQ(fetched(), before + 1);
  Until([&] { return StatusNumber(*store, "leases") == 0; });
}

TEST_P(LowerTier, P4AReadThatIsGivenUpLeavesNoLeaseAndTouchesNothing) {
  const std::uint64_t number[] = {OneThatIs(false)};
  node->KeepLeases();
  node->Hold();
  Reads reads(number);
  const std::vector<std::byte> before = reads.got[0];
  {
    Ticket<ReadResult> given_up = store->Read(ns, reads.blocks);
  }
  Until([&] { return node->held() > 0; });
  node->LetGo();
  Until([&] { return fetched() > 0 && StatusNumber(*store, "leases") == 0; });
  EXPECT_EQ(reads.got[0], before);
}

TEST_P(LowerTier, AnAnswerIsPolledByItsTicketsId) {
  const std::uint64_t number[] = {OneThatIs(false)};
  const int fd = store->event_fd();
  EXPECT_GE(fd, 0);
  Reads reads(number);
  Ticket<ReadResult> ticket = store->Read(ns, reads.blocks);
  const std::uint64_t id = ticket.id();
  ASSERT_NE(id, 0u);
  std::vector<std::uint64_t> ready;
  Until([&] {
    store->Poll(&ready);
    return std::ranges::find(ready, id) != ready.end();
  });
  EXPECT_TRUE(ticket.ready());
  EXPECT_EQ(ticket.Wait()->outcomes[0], Code::kOk);
  EXPECT_TRUE(reads.Exact(0));
  // Whoever keeps tickets by their ids finds it there after that too.
  EXPECT_TRUE(ticket.ready());
  EXPECT_EQ(ticket.id(), id);
}

TEST_P(LowerTier, AReadInSeveralWindowsIsPolledByItsTicketsIdAlone) {
  Reads reads(Numbers(1000, 2999), 1);  // of blocks that are nowhere
  Ticket<ReadResult> ticket = store->Read(ns, reads.blocks);
  Store other = node->Connect();
  Until([&] { return StatusNumber(other, "in_flight") == 1; });  // that call itself
  std::vector<std::uint64_t> ready;
  store->Poll(&ready);
  EXPECT_EQ(ready, std::vector{ticket.id()});
  EXPECT_EQ(ticket.Wait()->outcomes, std::vector<Code>(reads.of.size(), Code::kMiss));
}

// Several batches, of which the later ones are on their way while the first is copied.
TEST_P(LowerTier, ALoadIntoPagesBringsUpWhatLeftMemory) {
  constexpr std::uint64_t kLarge = 1u << 20;
  constexpr std::uint32_t kCount = 40;
  Make(kResident * 2);
  PutChain(kCount, kLarge);
  std::vector<std::byte> memory(kCount * kLarge);
  std::vector<BlockKey> keys;
  for (std::uint32_t n = 0; n < kCount; ++n) keys.push_back(KeyOf(n));
  auto shared = std::make_shared<Store>(node->Connect());
  const PagesLoaded loaded = LoadPages(shared, AttachTest(*shared), keys, memory);
  EXPECT_EQ(loaded.outcomes, std::vector<Code>(kCount, Code::kOk)) << loaded.message;
  EXPECT_EQ(loaded.moved_bytes, memory.size());
  for (std::uint32_t n = 0; n < kCount; ++n) {
    const std::vector<std::byte> body = BodyOf(n, kLarge);
    EXPECT_EQ(std::memcmp(memory.data() + (kCount - 1 - n) * kLarge, body.data(), kLarge), 0) << n;
  }
  EXPECT_GE(fetched(), kCount - 2 * kResident);
}

TEST_P(LowerTier, ALoadThatIsCancelledWhileItWaitsTouchesItsPagesNoMore) {
  std::vector<std::byte> memory(kBlocks * kBytes);
  auto shared = std::make_shared<Store>(node->Connect());
  node->KeepLeases();
  node->Hold();
  const PagesLoaded cancelled =
      LoadPages(shared, AttachTest(*shared), chain, memory, [&] { Until([&] { return node->held() > 0; }); });
  ASSERT_EQ(cancelled.outcomes.size(), kBlocks);
  EXPECT_GT(std::ranges::count(cancelled.outcomes, Code::kTooLate), 0);
  const std::vector<std::byte> at_report = memory;
  node->LetGo();
  Until([&] { return fetched() > 0 && StatusNumber(*shared, "leases") == 0; });
  EXPECT_EQ(memory, at_report);
}

// More at once than the memory holds, so that it goes through it in turns.
TEST_P(LowerTier, AReadOfMoreThanMemoryHoldsGoesThroughIt) {
  constexpr std::size_t kLarge = 1u << 20;
  constexpr std::uint64_t kCount = 96;
  Make(0);
  PutChain(kCount, kLarge);
  Reads reads(Numbers(0, kCount - 1), kLarge);
  const std::vector<Code> outcomes = Outcomes(reads, {.deadline_us = 300'000'000});
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(outcomes[i], Code::kOk) << i << ": " << CodeName(outcomes[i]);
    EXPECT_TRUE(reads.Exact(i)) << i;
  }
  EXPECT_GE(fetched(), kCount / 3);
}

TEST_P(LowerTier, TheRanksOfAnEngineReadTheirPartsPastMemoryAndOnlyThese) {
  constexpr std::uint64_t kRanks = 4, kPartBytes = 70'000;  // two segments, and no border at a unit's
  store.reset();
  node.emplace(GetParam(), kResident, 64u << 20, Promotion::kSecondHit);
  store.emplace(node->Connect());
  NamespaceSpec spec;
  spec.fields = {{"name", "ranks"}};
  spec.groups = {{.name = "all", .part_bytes = std::vector<std::uint64_t>(kRanks, kPartBytes)}};
  ns = *store->Attach(spec);
  std::vector<std::vector<std::byte>> bodies;
  for (std::uint64_t n = 0; n < kBlocks; ++n) {
    bodies.push_back(BodyOf(n, kRanks * kPartBytes));
    std::vector<BlockWrite> writes;
    for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
      BlockWrite write{.key = KeyOf(n), .part = rank, .put_id = {7, n + 1}};
      if (n > 0) write.parent = KeyOf(n - 1);
      write.data = std::span(bodies[n]).subspan(rank * kPartBytes, kPartBytes);
      writes.push_back(write);
    }
    const auto written = store->Write(ns, writes).Wait();
    ASSERT_TRUE(written.has_value()) << written.error().ToString();
    Until([&] { return node->counters().written_down.value() > n; });
  }
  const std::uint64_t number = 3;
  for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
    // The last of them a stretch that begins in its second segment.
    const std::uint64_t offset = rank == kRanks - 1 ? 66'000 : 0;
    std::vector<std::byte> got(kPartBytes - offset);
    const ReadRange range{.part = rank, .offset = offset, .bytes = got.size(), .to = got.data()};
    const BlockRead read{.key = KeyOf(number), .ranges = std::span(&range, 1)};
    const auto result = store->Read(ns, std::span(&read, 1)).Wait();
    ASSERT_TRUE(result.has_value()) << result.error().ToString();
    ASSERT_EQ(result->outcomes[0], Code::kOk) << rank;
    const auto wanted = std::span(bodies[number]).subspan(rank * kPartBytes + offset, got.size());
    EXPECT_TRUE(std::ranges::equal(got, wanted)) << rank;
  }
  EXPECT_EQ(node->counters().passed_segments.value(), 7u);
  EXPECT_EQ(fetched(), 0u);
}

}  // namespace
}  // namespace cistern
