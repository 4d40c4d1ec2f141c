// SPDX-License-Identifier: Apache-2.0
// A store whose node is in this process: leases that it gives on the caller's thread, without ring and wake.
#include <atomic>
#include <filesystem>

#include "../real_node.h"
#include "base/random.h"

namespace cistern {
namespace {

constexpr std::size_t kBytes = 64u << 10;

class Embedded : public ::testing::TestWithParam<std::string> {
 protected:
  void Start(std::uint64_t memory_bytes, std::uint32_t poll_us = 50) {
    directory_ = (std::filesystem::temp_directory_path() / "cistern-embedded-XXXXXX").string();
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    OpenOptions options;
    options.memory_bytes = memory_bytes;
    options.memory_dir = directory_ + "/memory";
    options.poll_us = poll_us;
    options.loop = GetParam();
    Result<Store> opened = Store::Open(options);
    if (!opened && GetParam() == "io_uring") GTEST_SKIP() << opened.error().ToString();
    ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
    store.emplace(std::move(*opened));
    ns = AttachTest(*store);
  }
  void TearDown() override {
    store.reset();
    std::filesystem::remove_all(directory_);
  }
  std::vector<BlockRef> PutBlocks(std::uint64_t first, std::uint64_t count) {
    std::vector<BlockRef> refs;
    for (std::uint64_t n = first; n < first + count; ++n) {
      EXPECT_TRUE(PutBlock(*store, ns, n, std::nullopt, kBytes).ok());
      refs.push_back({KeyOf(n)});
    }
    return refs;
  }

  std::optional<Store> store;
  Namespace ns;

 private:
  std::string directory_;
};

INSTANTIATE_TEST_SUITE_P(Loops, Embedded, testing::Values("io_uring", "epoll"),
                         [](const auto& which) { return which.param; });

TEST_P(Embedded, ViewsAreTheBlocksBytesAndADropEndsThem) {
  ASSERT_NO_FATAL_FAILURE(Start(64u << 20));
  if (!store) return;
  std::vector<BlockRef> refs = PutBlocks(1, 3);
  refs.push_back({KeyOf(999)});
  Result<Lease> lease = store->Acquire(ns, refs, {.lease_us = kMaxLeaseUs}).Wait();
  ASSERT_TRUE(lease.has_value()) << lease.error().ToString();
  ASSERT_EQ(lease->views().size(), 4u);
  for (std::uint64_t n = 1; n <= 3; ++n) {
    const View& view = lease->views()[n - 1];
    ASSERT_EQ(view.bytes, kBytes);
    EXPECT_EQ(std::memcmp(view.data, BodyOf(n, kBytes).data(), kBytes), 0);
  }
  EXPECT_EQ(lease->views()[3].code, Code::kMiss);
  EXPECT_EQ(StatusNumber(*store, "leases"), 1u);
  EXPECT_EQ(StatusNumber(*store, "leased_blocks"), 3u);
  EXPECT_TRUE(lease->still_good());
  EXPECT_EQ(*store->Drop(ns, std::span(&refs[0].key, 1)).Wait(), 1u);
  EXPECT_FALSE(lease->still_good());
  EXPECT_TRUE(lease->still_good(1));
  lease->Release();
  Until([&] { return StatusNumber(*store, "leased_blocks") == 0; });
  EXPECT_EQ(StatusNumber(*store, "leases"), 0u);
}

// Every place of the ring is taken by an answer that nobody took: a call through it would be kBusy.
TEST_P(Embedded, ALeaseNeedsNoPlaceInTheRing) {
  ASSERT_NO_FATAL_FAILURE(Start(64u << 20));
  if (!store) return;
  const std::vector<BlockRef> refs = PutBlocks(1, 2);
  std::vector<Ticket<std::uint32_t>> tickets;
  for (std::uint32_t i = 0; i < 256; ++i) tickets.push_back(store->Touch(ns, std::span(&refs[0].key, 1)));
  Ticket<std::uint32_t> past = store->Touch(ns, std::span(&refs[0].key, 1));
  EXPECT_EQ(past.Wait().error().code(), Code::kBusy);
  // The core may be in a turn too long to wait for, and the ring is asked then.
  Until([&] {
    Result<Lease> lease = store->Acquire(ns, refs).Wait();
    return lease && lease->views()[1].data != nullptr;
  });
}

TEST_P(Embedded, WhatIsWrongWithAnAcquireIsSaidAsThroughTheRing) {
  ASSERT_NO_FATAL_FAILURE(Start(64u << 20));
  if (!store) return;
  const std::vector<BlockRef> refs = PutBlocks(1, 1);
  const BlockRef missing{KeyOf(9)};
  EXPECT_EQ(store->Acquire(ns, std::span(&missing, 1)).Wait().error().code(), Code::kMiss);
  BlockRef long_key{KeyOf(1)};
  long_key.key.length = BlockKey::kMaxBytes + 1;
  EXPECT_EQ(store->Acquire(ns, std::span(&long_key, 1)).Wait().error().code(), Code::kInvalid);
  Namespace old = ns;
  ASSERT_TRUE(store->DropNamespace(ns).Wait().has_value());
  EXPECT_EQ(store->Acquire(old, refs).Wait().error().code(), Code::kMiss);
  EXPECT_EQ(store->Acquire(ns, refs).Wait().error().code(), Code::kMiss);
}

TEST_P(Embedded, ALeaseThatOutlivesItsStoreIsNotGoodAndItsEndHarmless) {
  ASSERT_NO_FATAL_FAILURE(Start(64u << 20));
  if (!store) return;
  const std::vector<BlockRef> refs = PutBlocks(1, 2);
  Result<Lease> lease = store->Acquire(ns, refs, {.lease_us = kMaxLeaseUs}).Wait();
  ASSERT_TRUE(lease.has_value());
  store.reset();
  EXPECT_FALSE(lease->still_good());
  lease->Release();
}

TEST_P(Embedded, P4ALeaseEndsByItsDeadline) {
  ASSERT_NO_FATAL_FAILURE(Start(64u << 20));
  if (!store) return;
  const std::vector<BlockRef> refs = PutBlocks(1, 2);
  Result<Lease> lease = store->Acquire(ns, refs, {.lease_us = 1}).Wait();
  ASSERT_TRUE(lease.has_value());
  Until([&] { return StatusNumber(*store, "leased_blocks") == 0; });
  EXPECT_FALSE(lease->still_good());
}

// Threads lease, compare and release while another one puts more than memory holds, over a core that sleeps
// whenever it may: what is still good has the block's bytes, and every lease ends.
TEST_P(Embedded, P1ViewsHoldWhileMemoryTurnsOver) {
  ASSERT_NO_FATAL_FAILURE(Start(64u << 20, 0));
  if (!store) return;
  constexpr std::uint64_t kBlocks = 1'100;
  constexpr int kReaders = 2;
  PutBlocks(0, 100);
  std::atomic<std::uint64_t> put = 100;
  std::atomic<std::uint64_t> good = 0, wrong = 0;
  std::vector<std::jthread> readers;
  for (int reader = 0; reader < kReaders; ++reader) {
    readers.emplace_back([&, reader] {
      Random random(static_cast<std::uint64_t>(reader));
      std::vector<BlockRef> refs(16);
      std::vector<std::uint64_t> numbers(16);
      while (put < kBlocks) {
        for (std::size_t i = 0; i < refs.size(); ++i) {
          numbers[i] = put - 1 - random.Below(100);
          refs[i].key = KeyOf(numbers[i]);
        }
        Result<Lease> lease = store->Acquire(ns, refs, {.lease_us = kMaxLeaseUs}).Wait();
        if (!lease) continue;
        const std::size_t at = random.Below(refs.size());
        const View& view = lease->views()[at];
        const bool same =
            view.data != nullptr && std::memcmp(view.data, BodyOf(numbers[at], kBytes).data(), kBytes) == 0;
        // Nothing is dropped here and no lease is past its deadline, so a view stays good.
        if (view.data != nullptr && !(same && lease->still_good(at))) wrong++;
        good += same;
      }
    });
  }
  for (; put < kBlocks; ++put) {
    EXPECT_TRUE(PutBlock(*store, ns, put, std::nullopt, kBytes).ok());
  }
  readers.clear();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(good, 0u);
  Until([&] { return StatusNumber(*store, "leased_blocks") == 0; });
  EXPECT_EQ(StatusNumber(*store, "leases"), 0u);
}

}  // namespace
}  // namespace cistern
