// SPDX-License-Identifier: Apache-2.0
// Memory that is resized under clients that go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "../real_node.h"
#include "admin/test_http.h"
#include "base/units.h"

namespace cistern {
namespace {

using testing::HasSubstr;

constexpr std::size_t kBytes = 500'000;
constexpr std::uint64_t kMiB = 1 << 20;

std::uint64_t HeldBy(const RealNode& node) {
  struct stat info{};
  EXPECT_EQ(::stat((node.directory() + "/memory/default/arena").c_str(), &info), 0);
  return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

std::uint64_t Read(Store& store, const Namespace& ns, std::uint64_t first, std::uint64_t end,
                   std::uint64_t* wrong) {
  std::uint64_t had = 0;
  for (std::uint64_t n = first; n < end; ++n) {
    const Result<std::vector<std::byte>> body = store.Get(ns, KeyOf(n));
    if (!body) continue;
    ++had;
    if (*body != BodyOf(n, kBytes)) ++*wrong;
  }
  return had;
}

// Until it is as large as that, and what it had above is the host's again.
void AwaitMemory(Store& store, const RealNode& node, std::uint64_t bytes) {
  Until([&] {
    return StatusNumber(store, "bytes") == bytes && StatusNumber(store, "held_bytes") == bytes &&
           HeldBy(node) < bytes + bytes / 16 + kMiB;
  });
}

std::uint64_t SlotsOf(Store& store, std::uint64_t memory) {
  const Result<std::uint64_t> bytes = store.ResizeMemory(memory);
  EXPECT_TRUE(bytes.has_value()) << bytes.error().ToString();
  return bytes.value_or(0);
}

TEST(Resize, HalvedAndDoubledUnderLoadNoByteIsWrongAndWhatFitsIsThere) {
  RealNode node(256 * kMiB);
  Store operator_ = node.Connect();
  std::atomic<std::uint64_t> wrong = 0, read = 0, put = 0;
  std::atomic<bool> ends = false;
  // Blocks that stay in use, and fit into any of the sizes.
  Store store = node.Connect();
  const Namespace kept = AttachTest(store, "kept");
  std::vector<BlockKey> kept_keys;
  for (std::uint64_t n = 0; n < 20; ++n) {
    ASSERT_TRUE(PutBlock(store, kept, n, std::nullopt, kBytes).ok());
    kept_keys.push_back(KeyOf(n));
  }
  std::vector<std::thread> load;
  for (std::uint64_t engine = 0; engine < 2; ++engine) {
    load.emplace_back([&, engine] {
      Store own = node.Connect();
      const Namespace ns = AttachTest(own, Text("engine ", engine));
      const Namespace used = AttachTest(own, "kept");
      std::uint64_t bad = 0;
      for (std::uint64_t n = engine << 32; !ends; ++n) {
        put += PutBlock(own, ns, n, std::nullopt, kBytes).ok();
        const std::uint64_t before = std::min<std::uint64_t>(n - (engine << 32), 100);
        read += Read(own, ns, n - before, n - before + 1, &bad) + Read(own, ns, n, n + 1, &bad);
        // By who puts, so that no engine goes ahead of the uses while another thread of this test stands.
        if (n % 8 != 0) continue;
        EXPECT_TRUE(own.Touch(used, kept_keys).Wait().has_value());
      }
      wrong += bad;
    });
  }
  std::uint64_t bad = 0;
  for (const std::uint64_t mib : {128, 256, 96}) {
    SCOPED_TRACE(mib);
    const std::uint64_t slots = SlotsOf(operator_, mib * kMiB);
    const std::uint64_t until = put + 10;
    Until([&] {
      return put > until && StatusNumber(operator_, "bytes") == slots &&
             StatusNumber(operator_, "held_bytes") == slots;
    });
    EXPECT_EQ(Read(store, kept, 0, 20, &bad), 20u);
  }
  ends = true;
  for (std::thread& thread : load) thread.join();
  EXPECT_EQ(wrong + bad, 0u);
  EXPECT_GT(read, 0u);
}

TEST(Resize, WhatShrinkingMemoryHadIsTheHostsAgainAndGrowingIsThereAtOnce) {
  RealNode node(192 * kMiB);
  Store store = node.Connect();
  const std::uint64_t before = HeldBy(node);
  const std::uint64_t less = SlotsOf(store, 72 * kMiB);
  AwaitMemory(store, node, less);
  EXPECT_LT(HeldBy(node), before / 2);
  const std::uint64_t more = SlotsOf(store, 256 * kMiB);
  EXPECT_GT(more, 200 * kMiB);
  AwaitMemory(store, node, more);
  EXPECT_GT(HeldBy(node), more);
}

// More than a start takes at first.
TEST(Resize, ANodeServesWithItsFirstPieceAndHasTheWholeInTime) {
  RealNode node(700 * kMiB, [](node::NodeOptions& options) { options.http = "0"; });
  std::uint64_t wrong = 0;
  {
    Store store = node.Connect();
    const Namespace ns = AttachTest(store);
    for (std::uint64_t n = 0; n < 50; ++n) ASSERT_TRUE(PutBlock(store, ns, n, std::nullopt, kBytes).ok());
    EXPECT_EQ(StatusNumber(store, "wanted_bytes"), 672 * kMiB);
    AwaitMemory(store, node, 672 * kMiB);
    EXPECT_EQ(Read(store, ns, 0, 50, &wrong), 50u);
    admin::HttpAnswered ready;
    Until([&] { return (ready = admin::Get(node.http(), "/readyz")).status == 200; });
    EXPECT_EQ(ready.body, "ready: memory has 672MiB\n");
  }
  node.Stop();
  node.Start();
  Store store = node.Connect();
  EXPECT_EQ(StatusNumber(store, "held_bytes"), 672 * kMiB) << "warm at its size";
  EXPECT_EQ(Read(store, AttachTest(store), 0, 50, &wrong), 50u);
  EXPECT_EQ(wrong, 0u);
}

// More of the smallest blocks than twice the first piece holds: the store's tables are for all of memory.
TEST(Resize, P5MemoryBehindTheFirstPieceIsFilledWithTheSmallestBlocks) {
  constexpr std::uint64_t kBatch = 512, kBlocks = 150 * kBatch;
  constexpr std::size_t kSmall = 4096;  // a slot of 8 KiB: the first 256 MiB hold 32,768
  RealNode node(1024 * kMiB);
  Store store = node.Connect();
  const Namespace ns = AttachTest(store);
  Until([&] { return StatusNumber(store, "bytes") == StatusNumber(store, "wanted_bytes"); });
  std::vector<std::byte> body = BodyOf(1, kSmall);
  for (std::uint64_t first = 0; first < kBlocks; first += kBatch) {
    std::vector<BlockWrite> writes(kBatch);
    for (std::uint64_t i = 0; i < kBatch; ++i) {
      writes[i].key = KeyOf(first + i);
      writes[i].data = body;
    }
    const Result<WriteResult> written = store.Write(ns, writes).Wait();
    ASSERT_TRUE(written.has_value()) << first << ": " << written.error().ToString();
    for (const WriteOutcome& one : written->outcomes) ASSERT_EQ(one.code, Code::kOk) << written->message;
  }
  EXPECT_EQ(StatusNumber(store, "records"), kBlocks);
  EXPECT_TRUE(store.Get(ns, KeyOf(kBlocks - 1)).has_value());
}

TEST(Resize, ARestartTakesWhatItIsToldAndKeepsWhatFits) {
  std::uint64_t memory = 128 * kMiB;
  RealNode node(memory, [&](node::NodeOptions& options) { options.memory_bytes = memory; });
  std::uint64_t wrong = 0;
  {
    Store store = node.Connect();
    const Namespace ns = AttachTest(store);
    for (std::uint64_t n = 0; n < 150; ++n) ASSERT_TRUE(PutBlock(store, ns, n, std::nullopt, kBytes).ok());
  }
  node.Stop();
  node.Configure([](node::NodeOptions& options) { options.memory_bytes = 256 * kMiB; });
  node.Start();
  {
    Store store = node.Connect();
    EXPECT_GT(StatusNumber(store, "held_bytes"), 200 * kMiB);
    EXPECT_EQ(Read(store, AttachTest(store), 0, 150, &wrong), 150u);
  }
  node.Stop();
  node.Configure([](node::NodeOptions& options) { options.memory_bytes = 72 * kMiB; });
  node.Start();
  Store store = node.Connect();
  AwaitMemory(store, node, 64 * kMiB);
  const std::uint64_t there = Read(store, AttachTest(store), 0, 150, &wrong);
  EXPECT_GT(there, 120u);
  EXPECT_LT(there, 150u);
  EXPECT_EQ(wrong, 0u);
}

TEST(Resize, WhatCannotBeIsRefusedAndNothingChanges) {
  RealNode node(128 * kMiB);
  Store store = node.Connect();
  const std::uint64_t before = StatusNumber(store, "bytes");
  struct Case {
    std::uint64_t bytes;
    Code code;
    std::string says;
  };
  const std::vector<Case> cases = {{1 * kMiB, Code::kInvalid, "64MiB"},
                                   {2048 * kMiB, Code::kInvalid, "has room for"},
                                   {UINT64_MAX, Code::kInvalid, "has room for"},
                                   {0, Code::kInvalid, "64MiB"}};
  for (const Case& one : cases) {
    const Result<std::uint64_t> refused = store.ResizeMemory(one.bytes);
    ASSERT_FALSE(refused.has_value()) << one.bytes;
    EXPECT_EQ(refused.error().code(), one.code) << refused.error().ToString();
    EXPECT_THAT(refused.error().ToString(), HasSubstr(one.says));
  }
  EXPECT_EQ(StatusNumber(store, "bytes"), before);
  EXPECT_EQ(StatusNumber(store, "wanted_bytes"), before);
}

// Whichever of the two the node takes first, its memory has what its quotas reserve.
TEST(Resize, BesideAReloadMemoryHasWhatTheQuotasReserve) {
  RealNode node(128 * kMiB);
  Store store = node.Connect();
  node::NodeOptions with = node.Options();
  with.quotas = {{.pattern = "x", .reserve_bytes = 90 * kMiB}};
  for (int round = 0; round < 30 && !HasFailure(); ++round) {
    ASSERT_TRUE(node.Reload(node.Options()).has_value());
    std::thread reload([&] { EXPECT_TRUE(node.Reload(with).has_value()); });
    (void)store.ResizeMemory(72 * kMiB);
    reload.join();
    ASSERT_GE(StatusNumber(store, "wanted_bytes"), 90 * kMiB) << "round " << round;
  }
}

TEST(Resize, AReloadWithAnotherSizeIsTheSame) {
  RealNode node(128 * kMiB);
  Store store = node.Connect();
  node::NodeOptions read = node.Options();
  read.memory_bytes = 192 * kMiB;
  const Result<node::Reloaded> reloaded = node.Reload(read);
  ASSERT_TRUE(reloaded.has_value()) << reloaded.error().ToString();
  EXPECT_THAT(reloaded->changed, testing::Contains(HasSubstr("memory: 128MiB -> 192MiB")));
  AwaitMemory(store, node, 160 * kMiB);
  EXPECT_THAT(store.ConfigurationJson().value_or(""), HasSubstr(R"("memory","value":"192MiB")"));
  read.memory_bytes = 4096 * kMiB;
  EXPECT_FALSE(node.Reload(read).has_value());
  EXPECT_EQ(StatusNumber(store, "wanted_bytes"), 160 * kMiB);
}

}  // namespace
}  // namespace cistern
