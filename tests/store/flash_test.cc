// SPDX-License-Identifier: Apache-2.0
// What left memory is found on flash, read back exactly, and outlives a kill, a reboot and a power cut.
#include "test_flash_store.h"

namespace cistern {
namespace {

TEST_F(FlashStoreTest, P1WhatLeftMemoryIsReadBackExactly) {
  Make(With(8));
  PutChainSlowly(0, 63);
  EXPECT_LE(Occupied().records, 8u);
  EXPECT_EQ(Match(0, 63), 64u);
  for (std::uint64_t n = 0; n < 64; ++n) EXPECT_TRUE(Gets(n)) << n;
  EXPECT_GE(Count(Counters().demoted), 56u);
  EXPECT_GE(Count(Counters().fetched), 56u);
  EXPECT_EQ(Count(Counters().cut_bad), 0u);
}

TEST_F(FlashStoreTest, R4WhatLiesOnFlashAloneIsPresent) {
  Make(With(4));
  PutChainSlowly(0, 15);
  ASSERT_FALSE(Here(0));
  EXPECT_EQ(Put(0, std::nullopt), store::State::kPresent);
  EXPECT_TRUE(Gets(0));
}

TEST_F(FlashStoreTest, P7ARebootFindsWhatWasWritten) {
  Make(With(8));
  PutChainSlowly(0, 63);
  Reboot();
  EXPECT_EQ(Match(0, 63), 64u);
  for (std::uint64_t n = 0; n < 64; ++n) EXPECT_TRUE(Gets(n)) << n;
}

TEST_F(FlashStoreTest, P7AKillLosesNeitherMemoryNorFlash) {
  Make(With(8));
  PutChainSlowly(0, 63);
  Restart();
  EXPECT_EQ(Match(0, 63), 64u);
  for (std::uint64_t n = 0; n < 64; ++n) EXPECT_TRUE(Gets(n)) << n;
}

TEST_F(FlashStoreTest, APowerCutLosesOnlyCache) {
  Make(With(8));
  PutChainSlowly(0, 31);
  t->LosePower();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneGroup());
  const std::uint32_t matched = Match(0, 31);
  for (std::uint64_t n = 0; n < 32; ++n) {
    const auto body = Get(n);
    if (body) {
      EXPECT_EQ(*body, store::Body(n, 4096)) << n;
    }
    if (n >= matched) {
      EXPECT_FALSE(body.has_value()) << n;
    }
  }
}

TEST_F(FlashStoreTest, OneReadServesManyWaiters) {
  Make(With(4));
  PutChainSlowly(0, 15);
  const std::uint64_t before = Count(Counters().fetched);
  const catalog::BlockName name{store::Key(0), 0};
  std::vector<Task<Result<store::AcquireGrant>>> asked;
  for (int i = 0; i < 5; ++i) {
    asked.push_back(t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon()));
  }
  for (auto& one : asked) {
    auto grant = t->Run(std::move(one));
    ASSERT_TRUE(grant.has_value());
    EXPECT_EQ(grant->views[0].code, Code::kOk);
  }
  EXPECT_EQ(Count(Counters().fetched), before + 1);
}

TEST_F(FlashStoreTest, P3WhatWouldComeTooLateIsRefusedAtOnce) {
  Make(With(4));
  PutChainSlowly(0, 15);
  const catalog::BlockName name{store::Key(0), 0};
  auto grant = t->Run(t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon(), 0));
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->views[0].code, Code::kTooLate);
  EXPECT_GT(grant->views[0].ready_in_us, 0);
  EXPECT_TRUE(Gets(0));
}

// Of an engine of three ranks, each of which asks for its share of both groups.
TEST_F(FlashStoreTest, ABlockThatWouldComeTooLateIsOneMissWhateverSharesAreAskedFor) {
  NamespaceSpec spec = store::OneGroup();
  spec.groups = {{.name = "a"}, {.name = "b"}};
  Make(With(8, 64 * kMiB, 1, kMiB), spec);
  for (std::uint64_t n = 0; n < 16; ++n) {
    std::vector<store::PartWrite> parts = {Part(n, std::nullopt, 200'000), Part(n, std::nullopt, 200'000)};
    parts[1].group = 1;
    for (const store::PartOutcome& outcome : Write(std::move(parts), Me()))
      ASSERT_EQ(outcome.state, store::State::kPublished) << n;
    t->Settle();
  }
  ASSERT_FALSE(Here(0, 0) || Here(0, 1) || Here(1, 0) || Here(1, 1));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    std::vector<catalog::BlockName> names;
    for (const std::uint64_t n : {0, 1}) {
      for (const std::uint16_t group : {0, 1}) names.push_back({store::Key(n), group, {rank, 1}});
    }
    const auto grant = t->Run(t->store->Acquire(Me(), ns.slot, names, 1'000'000, Soon(), 0));
    ASSERT_TRUE(grant.has_value());
    for (const store::ViewGrant& view : grant->views) EXPECT_EQ(view.code, Code::kTooLate);
  }
  EXPECT_EQ(Count(Counters().fetch_refused), 12u);
  EXPECT_EQ(Count(Counters().miss_too_late), 2u);
}

TEST_F(FlashStoreTest, AMatchSaysWhatIsInTheLowerTierAndReadsAhead) {
  store::TestStoreOptions options = With(4);
  options.store.read_ahead_bytes = 3 * 4096;
  Make(options);
  PutChainSlowly(0, 15);
  ASSERT_FALSE(Here(0));
  std::vector<BlockKey> chain;
  for (std::uint64_t n = 0; n < 16; ++n) chain.push_back(store::Key(n));
  const auto runs = t->Run(t->store->MatchRest(ns.slot, 0, chain));
  ASSERT_TRUE(runs.has_value());
  ASSERT_FALSE(runs->empty());
  EXPECT_EQ(runs->front().where, Where::kFlash);
  EXPECT_GT(runs->front().ready_in_us, 0);
  t->Settle();
  EXPECT_EQ(Count(Counters().read_ahead), 3u);
  EXPECT_TRUE(Here(0));
  EXPECT_TRUE(Here(2));
}

TEST_F(FlashStoreTest, WhatIsReadAheadCountsOnceHoweverOftenItIsMatchedMeanwhile) {
  store::TestStoreOptions options = With(4);
  options.store.read_ahead_bytes = 3 * 4096;
  Make(options);
  PutChainSlowly(0, 15);
  SlowDevice(20'000);
  const std::uint64_t fetched = Count(Counters().fetched);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Match(0, 15), 16u);
  ASSERT_EQ(Count(Counters().fetched), fetched) << "they are on their way";
  t->disk.set_faults({});
  t->Settle();
  EXPECT_EQ(Count(Counters().fetched), fetched + 3);
  EXPECT_EQ(Count(Counters().read_ahead), 3u);
}

TEST_F(FlashStoreTest, P1BitsThatRottedOnTheMediaAreAMiss) {
  Make(With(4));
  PutChainSlowly(0, 15);
  // Every byte of the first records, one after the other: some of it is in block 3.
  const std::string path = "flash0/flash";
  const std::uint64_t bytes = t->disk.Bytes(path).size();
  const std::vector<std::byte> wanted = store::Body(3, 4096);
  std::optional<std::uint64_t> at;
  for (std::uint64_t offset = 0; offset + 4096 <= bytes && !at; offset += 4096) {
    if (std::memcmp(t->disk.Bytes(path).data() + offset, wanted.data(), 4096) == 0) at = offset;
  }
  ASSERT_TRUE(at.has_value());
  t->disk.Flip(path, *at + 1234, std::byte{4});
  EXPECT_FALSE(Get(3).has_value());
  EXPECT_EQ(Match(0, 15), 3u) << "and what descends from it is gone";
  EXPECT_TRUE(Gets(2));
  EXPECT_EQ(Put(3, 2), store::State::kPublished);
  EXPECT_TRUE(Gets(3));
}

TEST_F(FlashStoreTest, WhatFallsBehindOnFlashCanStillBeFetched) {
  Make(With(4), store::FullAndWindow());
  const auto both = [&](std::uint64_t n, std::optional<std::uint64_t> parent) {
    store::PartWrite full = Part(n, parent), local = Part(n, parent);
    local.group = 1;
    WriteOne(full);
    WriteOne(local);
    t->Settle();
  };
  for (std::uint64_t n = 0; n < 8; ++n) both(n, n == 0 ? std::nullopt : std::optional(n - 1));
  ASSERT_FALSE(Here(4, 1));
  both(100, 5);
  const catalog::BlockName name{store::Key(4), 1};
  auto grant = t->Run(t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon()));
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->views[0].code, Code::kOk);
}

// Flash has room for more than the forest has blocks, as where the host has little memory beside it.
TEST_F(FlashStoreTest, EachBlockMayHaveARecordInEachOfItsGroups) {
  constexpr std::uint64_t kBlocks = 5000;
  store::TestStoreOptions options = With(0, 128 * kMiB, 1, kMiB);
  options.store.max_lower_blocks = 64;
  NamespaceSpec spec = store::OneGroup();
  spec.groups = {{.name = "a"}, {.name = "b"}};
  Make(options, spec);
  for (std::uint64_t n = 0; n < kBlocks; ++n) {
    bodies_.clear();
    std::vector<store::PartWrite> parts = {Part(n, std::nullopt), Part(n, std::nullopt)};
    parts[1].group = 1;
    for (const store::PartOutcome& outcome : Write(std::move(parts), Me())) {
      ASSERT_EQ(outcome.state, store::State::kPublished) << n << ": " << outcome.status.ToString();
    }
    if (n % 100 == 99) t->Settle();
  }
  EXPECT_EQ(Occupied().blocks, kBlocks);
  Restart(spec);
  EXPECT_EQ(Occupied().blocks, kBlocks);
  EXPECT_TRUE(Gets(0) && Gets(kBlocks - 1));
}

TEST_F(FlashStoreTest, APutNeverWaitsForADevice) {
  Make(With(8));
  PutChainSlowly(0, 7);
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) -> io::Fault {
    const bool write =
        request.kind == io::IoRequest::Kind::kWrite && path.find("flash0/flash") != std::string::npos;
    return write ? io::Fault{io::FaultKind::kDelay, 60'000'000} : io::Fault{};
  });
  const Instant before = t->clock.Now();
  for (std::uint64_t n = 100; n < 164; ++n) ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished) << n;
  EXPECT_LT(t->clock.Now().UsSince(before), 60'000'000);
  EXPECT_GT(Count(Counters().evicted_unwritten), 0u);
  t->disk.set_faults({});
}

TEST_F(FlashStoreTest, TheScrubberFindsWhatRotted) {
  store::TestStoreOptions options = With(4);
  options.store.scrub_bytes_per_s = 1 * kMiB;
  Make(options);
  PutChainSlowly(0, 15);
  const std::vector<std::byte> wanted = store::Body(5, 4096);
  const std::string path = "flash0/flash";
  for (std::uint64_t offset = 0; offset + 4096 <= t->disk.Bytes(path).size(); offset += 4096) {
    if (std::memcmp(t->disk.Bytes(path).data() + offset, wanted.data(), 4096) == 0) {
      t->disk.Flip(path, offset, std::byte{1});
      break;
    }
  }
  for (int i = 0; i < 100 && Match(0, 15) > 5; ++i) {
    t->clock.AdvanceUs(100'000);
    t->Settle();
  }
  EXPECT_EQ(Match(0, 15), 5u);
}

TEST_F(FlashStoreTest, TheScrubberGoesRoundAtWhateverRate) {
  store::TestStoreOptions options = With(4);
  Make(options);
  PutChainSlowly(0, 15);
  for (const std::uint64_t rate : {std::uint64_t{100'000'000'000'000}, UINT64_MAX}) {
    options.store.scrub_bytes_per_s = rate;
    t->store->SetOptions(options.store);
    const std::uint64_t rounds = Count(Counters().scrub_rounds);
    for (int i = 0; i < 8; ++i) TickOnceLater();
    EXPECT_GT(Count(Counters().scrub_rounds), rounds + 4) << rate;
  }
}

}  // namespace
}  // namespace cistern
