// SPDX-License-Identifier: Apache-2.0
// A client against a whole node: what every call of cistern/store.h gives, and how it ends.
#include <poll.h>

#include <array>
#include <atomic>

#include "../real_node.h"

namespace cistern {
namespace {

constexpr std::size_t kBytes = 96u << 10;  // a segment and a half

class Whole : public ::testing::Test {
 protected:
  Code Read(Store& from, std::uint64_t number, std::size_t bytes = kBytes) {
    std::vector<std::byte> got(bytes);
    ReadRange range{.bytes = bytes, .to = got.data()};
    BlockKey key = KeyOf(number);
    BlockRead read{.key = key, .ranges = std::span(&range, 1)};
    Result<ReadResult> result = from.Read(ns, std::span(&read, 1)).Wait();
    if (!result) return result.error().code();
    if (result->outcomes[0] == Code::kOk) {
      EXPECT_EQ(got, BodyOf(number, bytes)) << number;
    }
    return result->outcomes[0];
  }
  // Blocks first to last, a chain of their own.
  std::vector<BlockKey> PutChain(std::uint64_t first, std::uint64_t last) {
    std::vector<BlockKey> chain;
    for (std::uint64_t n = first; n <= last; ++n) {
      EXPECT_TRUE(PutBlock(store, ns, n, n == first ? std::nullopt : std::optional(n - 1), kBytes).ok());
      chain.push_back(KeyOf(n));
    }
    return chain;
  }
  std::uint32_t Match(std::span<const BlockKey> chain) { return store.Match(ns, chain).Wait()->blocks; }

  RealNode node;
  Store store = node.Connect();
  Namespace ns = AttachTest(store);
};

TEST_F(Whole, Promise1WhatWasPutIsReadBitExactByAnotherProcesssClient) {
  PutChain(1, 3);
  Store other = node.Connect();
  for (std::uint64_t n = 1; n <= 3; ++n) EXPECT_EQ(Read(other, n), Code::kOk);
  EXPECT_EQ(Read(other, 4), Code::kMiss);
}

TEST_F(Whole, RangesAreReadFromOneRecordIntoSeveralPlaces) {
  PutChain(1, 1);
  const std::vector<std::byte> body = BodyOf(1, kBytes);
  std::array<std::array<std::byte, 1000>, 10> to;
  std::vector<ReadRange> ranges;
  for (std::size_t i = 0; i < to.size(); ++i)
    ranges.push_back({.offset = i * 9000, .bytes = to[i].size(), .to = to[i].data()});
  BlockRead read{.key = KeyOf(1), .ranges = ranges};
  EXPECT_EQ(store.Read(ns, std::span(&read, 1)).Wait()->outcomes[0], Code::kOk);
  for (std::size_t i = 0; i < to.size(); ++i)
    EXPECT_EQ(std::memcmp(to[i].data(), body.data() + i * 9000, 1000), 0) << i;
  ranges[3].offset = kBytes - 999;
  EXPECT_EQ(store.Read(ns, std::span(&read, 1)).Wait()->outcomes[0], Code::kInvalid);
  ranges[3].offset = UINT64_MAX - 10;
  EXPECT_EQ(store.Read(ns, std::span(&read, 1)).Wait()->outcomes[0], Code::kInvalid);
}

TEST_F(Whole, MatchGivesTheLongestPrefixAndStopsAtTheFirstGap) {
  std::vector<BlockKey> chain = PutChain(1, 20);
  EXPECT_EQ(Match(chain), 20u);
  chain.push_back(KeyOf(999));
  chain.push_back(chain[0]);
  EXPECT_EQ(Match(chain), 20u);
  EXPECT_EQ(Match({}), 0u);
  chain[0] = KeyOf(998);
  EXPECT_EQ(Match(chain), 0u);
}

TEST_F(Whole, AMatchThatHoldsKeepsWhatMatched) {
  std::vector<BlockKey> chain = PutChain(1, 5);
  chain.push_back(KeyOf(999));
  Result<MatchResult> match = store.Match(ns, chain, {.hold_us = 1'000'000}).Wait();
  ASSERT_TRUE(match.has_value()) << match.error().ToString();
  EXPECT_EQ(match->blocks, 5u);
  EXPECT_TRUE(match->hold.still_good());
  EXPECT_EQ(StatusNumber(store, "leases"), 1u);
  match->hold.Release();
  Until([&] { return StatusNumber(store, "leases") == 0; });
}

TEST_F(Whole, ViewsAreTheBlocksBytesAndADropEndsThem) {
  PutChain(1, 2);
  const std::array<BlockRef, 3> refs = {{{KeyOf(1)}, {KeyOf(999)}, {KeyOf(2)}}};
  Result<Lease> lease = store.Acquire(ns, refs).Wait();
  ASSERT_TRUE(lease.has_value()) << lease.error().ToString();
  ASSERT_EQ(lease->views().size(), 3u);
  EXPECT_EQ(lease->views()[1].data, nullptr);
  for (std::size_t i : {0, 2}) {
    const View& view = lease->views()[i];
    const std::vector<std::byte> body = BodyOf(i == 0 ? 1 : 2, kBytes);
    ASSERT_EQ(view.bytes, kBytes);
    EXPECT_EQ(std::memcmp(view.data, body.data(), kBytes), 0);
  }
  EXPECT_TRUE(lease->still_good());
  const BlockKey key = KeyOf(1);
  EXPECT_EQ(*store.Drop(ns, std::span(&key, 1)).Wait(), 2u);
  EXPECT_FALSE(lease->still_good());
  EXPECT_EQ(store.Acquire(ns, refs).Wait().error().code(), Code::kMiss);
}

TEST_F(Whole, ATicketGivenUpReleasesTheLeaseThatItBrings) {
  PutChain(1, 1);
  const BlockRef ref{KeyOf(1)};
  for (int i = 0; i < 100; ++i) (void)store.Acquire(ns, std::span(&ref, 1));
  Until([&] { return StatusNumber(store, "leases") == 0; });
  EXPECT_GE(StatusNumber(store, "leases_granted"), 1u);
}

TEST_F(Whole, APutFromStagingNeedsNoCopyAndStagingGrows) {
  constexpr std::size_t kLarge = 3u << 20;
  Result<Staging> staging = store.AllocateStaging(kLarge);
  ASSERT_TRUE(staging.has_value()) << staging.error().ToString();
  const std::vector<std::byte> body = BodyOf(7, kLarge);
  std::memcpy(staging->data(), body.data(), kLarge);
  BlockWrite write{.key = KeyOf(7), .data = {staging->data(), kLarge}};
  Result<WriteResult> result = store.Write(ns, std::span(&write, 1)).Wait();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->outcomes[0].code, Code::kOk) << result->message;
  EXPECT_EQ(result->outcomes[0].state, WriteOutcome::State::kPublished);
  EXPECT_EQ(Read(store, 7, kLarge), Code::kOk);
  // What is dropped is used again.
  const std::byte* before = staging->data();
  *staging = Staging();
  EXPECT_EQ(store.AllocateStaging(kLarge)->data(), before);
}

TEST_F(Whole, HeldPutsAreSeenWhenTheyArePublished) {
  const std::vector<std::byte> body = BodyOf(1, kBytes);
  BlockWrite write{.key = KeyOf(1), .put_id = {1, 2}, .data = body};
  Result<WriteResult> result = store.Write(ns, std::span(&write, 1), {.held = true}).Wait();
  EXPECT_EQ(result->outcomes[0].state, WriteOutcome::State::kPending);
  EXPECT_EQ(Read(store, 1), Code::kMiss);
  EXPECT_EQ(*store.Publish(ns, std::span(&write.put_id, 1)).Wait(), 1u);
  EXPECT_EQ(Read(store, 1), Code::kOk);
}

TEST_F(Whole, ANamespaceDropMakesTheOldHandleMiss) {
  PutChain(1, 3);
  Namespace old = ns;
  EXPECT_EQ(*store.DropNamespace(ns).Wait(), 3u);
  EXPECT_NE(ns.incarnation(), old.incarnation());
  EXPECT_EQ(Read(store, 1), Code::kMiss);
  PutChain(1, 1);
  EXPECT_EQ(Read(store, 1), Code::kOk);
  ns = old;
  EXPECT_EQ(Read(store, 1), Code::kMiss);
  EXPECT_EQ(PutBlock(store, ns, 9, std::nullopt, kBytes).code(), Code::kMiss);
}

TEST_F(Whole, BadArgumentsAreNamedWithTheirLimit) {
  auto says = [](const auto& result, std::string_view text) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), Code::kInvalid);
    EXPECT_NE(result.error().message().find(text), std::string::npos) << result.error().message();
  };
  const BlockKey key = KeyOf(1);
  std::span<const BlockKey> one(&key, 1);
  const BlockRef ref{key};
  says(store.Match(ns, one, {.deadline_us = 0}).Wait(), "in the past");
  says(store.Match(ns, one, {.hold_us = kMaxLeaseUs + 1}).Wait(), "hold_us is 60000001");
  says(store.Read(ns, {}, {.worth_us = -1}).Wait(), "worth_us is -1");
  says(store.Acquire(ns, std::span(&ref, 1), {.lease_us = 0}).Wait(), "lease_us is 0");
  says(store.Drop(ns, std::vector<BlockKey>(20'001, key)).Wait(),
       "20001 keys in one call, the limit is 20000");
  says(store.Drop(Namespace(), one).Wait(), "Attach");
  says(store.AllocateStaging(0), "0 bytes");
  BlockWrite write{.key = key, .group = 1, .data = std::as_bytes(one)};
  says(store.Write(ns, std::span(&write, 1)).Wait(), "group 1 of 1");
  write = {.key = key, .part = 1, .data = std::as_bytes(one)};
  says(store.Write(ns, std::span(&write, 1)).Wait(), "part 1");
  NamespaceSpec spec;
  spec.groups.resize(9);
  says(store.Attach(spec), "9 groups, the limit is 8");
  ConnectOptions options = node.options();
  options.socket = std::string(200, 'x');
  says(Store::Connect(options), "at most 107");
  options = node.options();
  options.deadline_us = -5;
  says(Store::Connect(options), "deadline_us is -5");
}

TEST_F(Whole, NobodyThereIsGoneAndSaysHowToGoOn) {
  ConnectOptions options = node.options();
  options.socket += "-no";
  Result<Store> none = Store::Connect(options);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), Code::kGone);
  EXPECT_NE(none.error().message().find("cisternd"), std::string::npos) << none.error().message();
}

TEST_F(Whole, AfterTheNodeWentEveryCallIsGoneAndAnotherConnectionIsWarm) {
  PutChain(1, 2);
  const BlockKey key = KeyOf(1);
  const BlockRef ref{key};
  Lease lease = *store.Acquire(ns, std::span(&ref, 1)).Wait();
  const View view = lease.views()[0];
  node.Stop();
  auto all_gone = [&] {
    EXPECT_EQ(Read(store, 1), Code::kGone);
    EXPECT_EQ(store.Match(ns, std::span(&key, 1)).Wait().error().code(), Code::kGone);
    EXPECT_EQ(store.Acquire(ns, std::span(&ref, 1)).Wait().error().code(), Code::kGone);
    EXPECT_EQ(PutBlock(store, ns, 3, 2, kBytes).code(), Code::kGone);
    EXPECT_EQ(store.StatusJson().error().code(), Code::kGone);
    EXPECT_FALSE(lease.still_good());
  };
  all_gone();
  node.Start();
  all_gone();
  // What was mapped stays mapped.
  const std::vector<std::byte> body = BodyOf(1, kBytes);
  EXPECT_EQ(std::memcmp(view.data, body.data(), kBytes), 0);
  Store again = node.Connect();
  ns = AttachTest(again);
  EXPECT_EQ(Read(again, 1), Code::kOk);
  EXPECT_EQ(Read(again, 2), Code::kOk);
}

TEST_F(Whole, TheEventDescriptorIsReadableForAnswersAndForTheEnd) {
  PutChain(1, 1);
  pollfd events{.fd = store.event_fd(), .events = POLLIN, .revents = 0};
  auto readable = [&] { return poll(&events, 1, 30'000) == 1; };
  std::vector<std::uint64_t> ready;
  store.Poll(&ready);
  const BlockKey key = KeyOf(1);
  for (int round = 0; round < 100; ++round) {
    Ticket<std::uint32_t> ticket = store.Touch(ns, std::span(&key, 1));
    ready.clear();
    while (ready.empty()) {
      ASSERT_TRUE(readable());
      store.Poll(&ready);
    }
    EXPECT_EQ(ready, std::vector{ticket.id()});
    EXPECT_TRUE(ticket.ready());
    EXPECT_EQ(*ticket.Wait(), 1u);
    // A call that is waited for elsewhere does not take the signal.
    EXPECT_NE(StatusNumber(store, "leases"), UINT64_MAX);
  }
  Ticket<std::uint32_t> last = store.Touch(ns, std::span(&key, 1));
  EXPECT_EQ(*last.Wait(), 1u);
  store.Poll(nullptr);
  node.Stop();
  ASSERT_TRUE(readable());
  EXPECT_EQ(store.Touch(ns, std::span(&key, 1)).Wait().error().code(), Code::kGone);
}

TEST_F(Whole, AHandleIsUsedByManyThreads) {
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 50; ++i) {
        const std::uint64_t n = 1000 * (t + 1) + i;
        if (!PutBlock(store, ns, n, i == 0 ? std::nullopt : std::optional(n - 1), 4096).ok()) failed++;
        if (Read(store, n, 4096) != Code::kOk) failed++;
        const BlockRef ref{KeyOf(n)};
        Result<Lease> lease = store.Acquire(ns, std::span(&ref, 1)).Wait();
        if (!lease || !lease->still_good()) failed++;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

TEST_F(Whole, TouchesOfReadsReachTheEvictionOrder) {
  PutChain(1, 1);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(Read(store, 1), Code::kOk);
  Until([&] { return StatusNumber(store, "touches_applied") > 0; });
}

}  // namespace
}  // namespace cistern
