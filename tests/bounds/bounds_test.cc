// SPDX-License-Identifier: Apache-2.0
// Promise 5: everything is bounded; past a bound the answer is kBusy at once, and who comes within it again
// is served.
#include <sys/resource.h>

#include "../real_node.h"
#include "client/connection.h"
#include "wire/protocol.h"

namespace cistern {
namespace {

constexpr std::size_t kBytes = 64u << 10;

class Bounds : public ::testing::Test {
 protected:
  Status Put(std::uint64_t number) { return PutBlock(store, ns, number, std::nullopt, kBytes); }

  RealNode node{80u << 20};  // two chunks of 32 MiB
  Store store = node.Connect();
  Namespace ns = AttachTest(store);
};

TEST_F(Bounds, FullMemoryEvictsAndUnderLeasesIsBusy) {
  constexpr std::uint64_t kMany = 2000;  // of which memory holds less than 1,024
  for (std::uint64_t n = 0; n < kMany; ++n) ASSERT_TRUE(Put(n).ok()) << n;
  EXPECT_GT(StatusNumber(store, "evicted"), kMany - 1024);
  std::vector<Lease> leases;
  const auto lease = [&](Store& from, std::uint64_t number) {
    const BlockRef ref{KeyOf(number)};
    Result<Lease> got = from.Acquire(ns, std::span(&ref, 1), {.lease_us = kMaxLeaseUs}).Wait();
    if (!got) return got.error();
    leases.push_back(std::move(*got));
    return Status();
  };
  // One owner has its share, and what is left serves others.
  Status refused;
  std::uint64_t held = 0;
  for (std::uint64_t n = 0; n < kMany; ++n) {
    const Status status = lease(store, n);
    if (status.ok()) held = n;
    if (status.code() == Code::kBusy) refused = status;
  }
  EXPECT_EQ(refused.code(), Code::kBusy);
  EXPECT_NE(refused.message().find("for this owner"), std::string::npos) << refused.message();
  EXPECT_GT(leases.size(), 700u);
  EXPECT_LT(leases.size(), 800u);
  std::uint64_t next = kMany;
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(Put(next++).ok());
  // Owner after owner takes its share of the rest; then nothing may go.
  ConnectOptions options = node.options();
  options.staging_bytes = 128u << 10;
  std::vector<Store> owners;
  Status status;
  while (status.ok() && owners.size() < 12) {
    owners.push_back(*Store::Connect(options));
    for (Status leased; leased.ok() && status.ok(); ++next) {
      status = PutBlock(owners.back(), ns, next, std::nullopt, kBytes);
      if (status.ok()) leased = lease(owners.back(), next);
    }
  }
  EXPECT_EQ(status.code(), Code::kBusy) << status.ToString();
  EXPECT_FALSE(status.message().empty());
  EXPECT_GT(owners.size(), 2u);
  for (const Lease& one : leases) EXPECT_TRUE(one.still_good());
  EXPECT_EQ(*store.Get(ns, KeyOf(held)), BodyOf(held, kBytes));
  leases.clear();
  Until([&] { return StatusNumber(store, "leases") == 0; });
  EXPECT_TRUE(Put(9999).ok());
}

TEST_F(Bounds, P4ALeaseThatIsNeverReleasedEnds) {
  ASSERT_TRUE(Put(1).ok());
  const BlockRef ref{KeyOf(1)};
  Lease lease = *store.Acquire(ns, std::span(&ref, 1), {.lease_us = 100'000}).Wait();
  Until([&] { return StatusNumber(store, "leases") == 0; });
  EXPECT_FALSE(lease.still_good());
}

TEST_F(Bounds, TheQueueOfCallsIsBusyPastItsLimit) {
  ASSERT_TRUE(Put(1).ok());
  const BlockKey key = KeyOf(1);
  std::vector<Ticket<std::uint32_t>> tickets;
  for (std::uint32_t i = 0; i < wire::kRingEntries; ++i)
    tickets.push_back(store.Touch(ns, std::span(&key, 1)));
  Result<std::uint32_t> past = store.Touch(ns, std::span(&key, 1)).Wait();
  ASSERT_FALSE(past.has_value());
  EXPECT_EQ(past.error().code(), Code::kBusy);
  EXPECT_NE(past.error().message().find("256 calls"), std::string::npos) << past.error().message();
  // What needs no call goes on.
  EXPECT_EQ(*store.Get(ns, key), BodyOf(1, kBytes));
  for (Ticket<std::uint32_t>& ticket : tickets) EXPECT_EQ(*ticket.Wait(), 1u);
  tickets.clear();
  EXPECT_TRUE(store.Touch(ns, std::span(&key, 1)).Wait().has_value());
}

TEST_F(Bounds, LeasesThatAreLetGoOfTogetherLeaveRoomForCalls) {
  ASSERT_TRUE(Put(1).ok());
  const BlockKey key = KeyOf(1);
  const BlockRef ref{key};
  std::vector<Lease> leases;
  while (leases.size() < 1000) {
    std::vector<Ticket<Lease>> tickets;
    for (int i = 0; i < 200; ++i)
      tickets.push_back(store.Acquire(ns, std::span(&ref, 1), {.lease_us = kMaxLeaseUs}));
    for (Ticket<Lease>& ticket : tickets) leases.push_back(*ticket.Wait());
  }
  leases.clear();
  for (int i = 0; i < 100; ++i) {
    const Result<std::uint32_t> touched = store.Touch(ns, std::span(&key, 1)).Wait();
    ASSERT_TRUE(touched.has_value()) << i << ": " << touched.error().ToString();
  }
  Until([&] { return StatusNumber(store, "leases") == 0; });
}

TEST_F(Bounds, TheArgumentAreaIsBusyPastItsSize) {
  const std::vector<BlockKey> keys(20'000, KeyOf(1));
  Ticket<std::uint32_t> first = store.Touch(ns, keys);
  Result<std::uint32_t> second = store.Touch(ns, keys).Wait();
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), Code::kBusy);
  EXPECT_TRUE(first.Wait().has_value());
}

TEST_F(Bounds, StagingIsBusyPastItsBudget) {
  std::vector<Staging> taken;
  Result<Staging> more = store.AllocateStaging(1u << 20);
  for (; more.has_value() && taken.size() < 100; more = store.AllocateStaging(1u << 20))
    taken.push_back(*more);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code(), Code::kBusy) << more.error().ToString();
  EXPECT_LE(taken.size(), 6u);  // four fifths of an eighth of 64 MiB
  EXPECT_GE(taken.size(), 5u);
  // R13: what other sessions start with is out of the same budget, and something is left for them.
  std::vector<Store> others;
  Result<Store> other = Store::Connect(node.options());
  EXPECT_TRUE(other.has_value());
  for (; other.has_value() && others.size() < 8; other = Store::Connect(node.options()))
    others.push_back(std::move(*other));
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code(), Code::kBusy);
  EXPECT_NE(other.error().message().find("1048576 bytes asked for"), std::string::npos)
      << other.error().message();
  taken.clear();
  more = Error(Code::kMiss, "");
  EXPECT_TRUE(store.AllocateStaging(1u << 20).has_value());
  EXPECT_TRUE(Put(1).ok());
}

// Four fifths of an eighth of 64 MiB, of which a session has 1 MiB: no two of these have room beside each
// other, but for the first two.
TEST_F(Bounds, StagingOfEarlierCallsMakesRoomForALargerOne) {
  for (const std::uint64_t mib : {2, 3, 4, 5, 2, 4}) {
    const Result<Staging> staging = store.AllocateStaging(mib << 20);
    EXPECT_TRUE(staging.has_value()) << mib << " MiB: " << staging.error().ToString();
  }
}

TEST_F(Bounds, PutsThatStayPendingAreBusyPastTheirLimit) {
  const std::vector<std::byte> body(512);
  std::uint64_t held = 0, busy = 0;
  for (std::uint64_t call = 0; call < 80; ++call) {
    std::vector<BlockWrite> writes;
    for (std::uint64_t i = 0; i < 64; ++i)
      writes.push_back({.key = KeyOf(call * 64 + i), .put_id = {1, call * 64 + i + 1}, .data = body});
    Result<WriteResult> result = store.Write(ns, writes, {.held = true}).Wait();
    ASSERT_TRUE(result.has_value()) << result.error().ToString();
    for (const WriteOutcome& outcome : result->outcomes) {
      held += outcome.code == Code::kOk;
      busy += outcome.code == Code::kBusy;
    }
  }
  EXPECT_EQ(held, 3276u);  // of 8 KiB each: four fifths of the half of 64 MiB are what one owner may have
  EXPECT_EQ(held + busy, 80u * 64);
  // So the next one can put.
  Store other = node.Connect();
  const Namespace others = AttachTest(other, "others");
  EXPECT_TRUE(PutBlock(other, others, 1, std::nullopt, kBytes).ok());
  std::vector<PutId> puts;
  for (std::uint64_t n = 1; n <= held + busy; ++n) puts.push_back({1, n});
  EXPECT_EQ(*store.Abandon(ns, puts).Wait(), held);
  EXPECT_TRUE(Put(99'999).ok());
}

// 1.1 MiB each beside 128 MiB of memory: a thousand of them would be nine times what the node was given.
TEST(Sessions, R13AsManyAsMemoryHasRoomForAreServedAndOneMoreIsBusy) {
  constexpr std::uint32_t kSessions = 32;
  RealNode node;
  Store store = node.Connect();
  Namespace ns = AttachTest(store);
  std::vector<client::Connection> sessions;
  ConnectOptions options = node.options();
  options.staging_bytes = 4096;  // 32 times 1 MiB would take more than this node's budget of that
  for (std::uint32_t i = 1; i < kSessions; ++i) {
    Result<client::Connection> session = client::ConnectToNode(options);
    ASSERT_TRUE(session.has_value()) << i << ": " << session.error().ToString();
    sessions.push_back(std::move(*session));
  }
  Result<client::Connection> past = client::ConnectToNode(options);
  ASSERT_FALSE(past.has_value());
  EXPECT_EQ(past.error().code(), Code::kBusy);
  EXPECT_NE(past.error().message().find("the limit is 32"), std::string::npos) << past.error().message();
  EXPECT_EQ(StatusNumber(store, "sessions"), kSessions);
  ASSERT_TRUE(PutBlock(store, ns, 1, std::nullopt, kBytes).ok());
  EXPECT_EQ(*store.Get(ns, KeyOf(1)), BodyOf(1, kBytes));
  sessions.clear();
  Until([&] { return StatusNumber(store, "sessions") == 1; });
  Result<client::Connection> again = client::ConnectToNode(options);
  EXPECT_TRUE(again.has_value()) << again.error().ToString() << "; "
                                 << store.StatusJson().value_or("no status");
}

}  // namespace
}  // namespace cistern
