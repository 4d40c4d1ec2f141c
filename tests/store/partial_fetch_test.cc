// SPDX-License-Identifier: Apache-2.0
// Segments that pass through memory: exact or not there at all, gone with their block, in nobody's way.
#include <gtest/gtest.h>

#include <algorithm>

#include "flash_store.h"
#include "store/block_store_fixture.h"

namespace cistern {
namespace {

constexpr std::uint64_t kKiB = 1u << 10;
constexpr std::uint64_t kSegment = 64 * kKiB;
constexpr std::uint64_t kBlock = 6 * kSegment;
constexpr std::int64_t kLeaseUs = 60'000'000;

class PartialFetchTest : public store::BlockStoreTest {
 protected:
  static store::TestTier OnDevice(std::uint64_t region_bytes, std::uint64_t bytes) {
    flash::FlashOptions flash;
    flash.region_bytes = region_bytes;
    flash.devices.push_back({"flash0", bytes});
    return OnFlash(flash);
  }
  static store::TestStoreOptions With(Promotion promote) {
    store::TestStoreOptions options;
    options.store.max_blocks = 4;
    options.store.max_lower_blocks = 4096;
    options.store.read_ahead_bytes = 0;
    options.store.lower.promote = promote;
    options.tier = OnDevice(2u << 20, 32u << 20);
    return options;
  }
  // Blocks of six segments on flash, four at most in memory, and none read to stay there at the first asking.
  void Begin(Promotion promote = Promotion::kSecondHit, std::uint64_t blocks = 12) {
    Make(With(promote));
    for (std::uint64_t n = 0; n < blocks; ++n) {
      ASSERT_EQ(Put(n, n == 0 ? std::nullopt : std::optional(n - 1), kBlock), store::State::kPublished);
      t->Settle();
    }
    ASSERT_FALSE(Here(0));
  }
  Task<Result<store::AcquireGrant>> Ask(std::uint64_t n, record::SegmentSpan segments,
                                        std::int64_t worth_us = kNoWorthLimit) {
    names_.push_back(std::make_unique<catalog::BlockName>(catalog::BlockName{store::Key(n), 0, segments}));
    return t->store->Acquire(Me(), ns.slot, std::span(names_.back().get(), 1), kLeaseUs, Soon(), worth_us);
  }
  store::AcquireGrant Get(std::uint64_t n, record::SegmentSpan segments,
                          std::int64_t worth_us = kNoWorthLimit) {
    auto grant = t->Run(Ask(n, segments, worth_us));
    EXPECT_TRUE(grant.has_value());
    return *grant;
  }
  void Release(const store::AcquireGrant& grant) {
    EXPECT_TRUE(t->store->Release(Me(), grant.lease).ok());
    t->Tick();
  }
  // As a client reads what it has a view of, and as it finds out that this is no view of it any more.
  std::optional<std::vector<std::byte>> Through(const store::ViewGrant& view, std::uint64_t n,
                                                record::SegmentSpan segments) {
    arena::Reader<arena::RealWords> reader(t->words, t->arena, t->index);
    const arena::ReadCall call = reader.Begin(ns.slot, t->clock.Wall().seconds);
    const arena::Found found{
        .place = view.place,
        .body_bytes = static_cast<std::uint32_t>(view.bytes),
        .generation_low = static_cast<std::uint32_t>(view.generation) & arena::kGenerationLowMask};
    std::vector<std::byte> bytes(segments.count * kSegment);
    auto record = std::make_unique<arena::OpenRecord>();
    const std::span<std::byte> pieces[] = {bytes};
    const arena::RangeCopy range{{0, segments.first * kSegment, bytes.size()}, pieces};
    const auto outcome = reader.Read(call, {store::Key(n), 0}, &found, std::span(&range, 1), *record);
    if (outcome != decltype(outcome)::kHit) return std::nullopt;
    return bytes;
  }
  std::vector<std::byte> Wanted(std::uint64_t n, record::SegmentSpan segments) {
    const std::vector<std::byte> body = store::Body(n, kBlock);
    const auto from = body.begin() + static_cast<std::ptrdiff_t>(segments.first * kSegment);
    return {from, from + static_cast<std::ptrdiff_t>(segments.count * kSegment)};
  }
  void ExpectExact(const store::AcquireGrant& grant, std::uint64_t n, record::SegmentSpan segments) {
    ASSERT_EQ(grant.views[0].code, Code::kOk);
    EXPECT_TRUE(Through(grant.views[0], n, segments) == Wanted(n, segments));
  }
  std::uint64_t DeviceReads() { return FlashOf(*t).devices()[0].read_bytes; }
  std::uint64_t Passed() { return t->store->counters().passed_segments.value(); }

 private:
  std::vector<std::unique_ptr<catalog::BlockName>> names_;
};

TEST_F(PartialFetchTest, WhoAsksForASegmentOfABlockThatDoesNotStayReadsThatSegment) {
  Begin();
  const std::uint64_t before = DeviceReads();
  const store::AcquireGrant grant = Get(0, {2, 1});
  ExpectExact(grant, 0, {2, 1});
  EXPECT_EQ(DeviceReads() - before, kSegment + 4 * kKiB) << "and the seal";
  EXPECT_EQ(Passed(), 1u);
  EXPECT_FALSE(Here(0)) << "no entry leads there";
  EXPECT_FALSE(Through(grant.views[0], 0, {3, 1}).has_value()) << "what is not there fails its seal";
  Release(grant);
}

TEST_F(PartialFetchTest, SharesOfOneBlockMeetInOneSlot) {
  Begin();
  const store::AcquireGrant first = Get(0, {0, 2});
  Release(first);
  const std::uint64_t before = DeviceReads();
  const store::AcquireGrant second = Get(0, {1, 2});
  EXPECT_EQ(second.views[0].place, first.views[0].place);
  ExpectExact(second, 0, {0, 3});
  EXPECT_EQ(DeviceReads() - before, kSegment + 4 * kKiB) << "one of the two was there";
  const store::AcquireGrant third = Get(0, {0, 3}, 0);
  ExpectExact(third, 0, {0, 3});
  EXPECT_EQ(DeviceReads() - before, kSegment + 4 * kKiB) << "all of it was there, and took no time";
  EXPECT_FALSE(Here(0));
}

TEST_F(PartialFetchTest, SharesAskedForAtOnceComeBesideEachOther) {
  Begin();
  const std::uint64_t before = DeviceReads();
  std::vector<Task<Result<store::AcquireGrant>>> asked;
  for (std::uint32_t rank = 0; rank < 6; ++rank) asked.push_back(Ask(3, {rank, 1}));
  asked.push_back(Ask(3, {1, 2}));
  std::vector<store::AcquireGrant> grants;
  for (auto& one : asked) {
    auto grant = t->Run(std::move(one));
    ASSERT_TRUE(grant.has_value());
    grants.push_back(*grant);
  }
  for (std::uint32_t rank = 0; rank < 6; ++rank) ExpectExact(grants[rank], 3, {rank, 1});
  ExpectExact(grants[6], 3, {1, 2});
  EXPECT_EQ(DeviceReads() - before, 6 * (kSegment + 4 * kKiB)) << "each segment once";
}

TEST_F(PartialFetchTest, MoreThanHalfOfABlockBringsAllOfIt) {
  Begin();
  const store::AcquireGrant grant = Get(0, {0, 4});
  ExpectExact(grant, 0, {0, 6});
  EXPECT_EQ(Passed(), 0u);
  EXPECT_TRUE(Here(0));
}

TEST_F(PartialFetchTest, WhatIsToStayComesWholeWhateverIsAskedFor) {
  Begin(Promotion::kAll);
  const store::AcquireGrant grant = Get(0, {0, 1});
  ExpectExact(grant, 0, {0, 6});
  EXPECT_EQ(Passed(), 0u);
}

TEST_F(PartialFetchTest, P3WhereTheWholeWouldBeLateTheSegmentsAreNot) {
  Begin(Promotion::kAll);
  const flash::FlashTier& tier = FlashOf(*t);
  const tier::Location somewhere{1, 1};
  const std::int64_t some = tier.EstimateUs(somewhere, kSegment), all = tier.EstimateUs(somewhere, kBlock);
  ASSERT_LT(some, all / 2);
  EXPECT_EQ(Get(0, {0, 6}, all / 2).views[0].code, Code::kTooLate);
  const store::AcquireGrant grant = Get(0, {5, 1}, all / 2);
  if (grant.views[0].code == Code::kOk) ExpectExact(grant, 0, {5, 1});
  t->Settle();
  EXPECT_EQ(Passed(), 1u) << "it was tried";
}

TEST_F(PartialFetchTest, WhoComesAgainForAllOfItHasItInMemoryAndTheViewsOfThePassageEnd) {
  Begin();
  const store::AcquireGrant some = Get(0, {2, 1});
  const store::AcquireGrant all = Get(0, {});
  ExpectExact(all, 0, {0, 6});
  EXPECT_NE(all.views[0].place, some.views[0].place);
  EXPECT_NE(t->Generation(some.views[0].place), some.views[0].generation);
  EXPECT_TRUE(Through(some.views[0], 0, {2, 1}) == Wanted(0, {2, 1})) << "found by the index from now on";
  Release(some);
  Release(all);
  EXPECT_TRUE(Exact(0, kBlock));
}

TEST_F(PartialFetchTest, P1ABitThatRottedInASegmentIsAMissAndInAnotherIsNobodysHarm) {
  Begin();
  const std::string path = "flash0/flash";
  const std::uint64_t bytes = t->disk.Bytes(path).size();
  const std::vector<std::byte> wanted = Wanted(3, {4, 1});
  std::optional<std::uint64_t> at;
  for (std::uint64_t offset = 0; offset + kSegment <= bytes && !at; offset += 4096) {
    if (std::memcmp(t->disk.Bytes(path).data() + offset, wanted.data(), kSegment) == 0) at = offset;
  }
  ASSERT_TRUE(at.has_value());
  t->disk.Flip(path, *at + 4321, std::byte{16});
  const store::AcquireGrant other = Get(3, {0, 2});
  ExpectExact(other, 3, {0, 2});
  EXPECT_EQ(Get(3, {4, 1}).views[0].code, Code::kMiss);
  t->Tick();
  EXPECT_EQ(Match(0, 11), 3u) << "it goes with what descends from it";
  EXPECT_FALSE(Through(other.views[0], 3, {0, 2}).has_value());
}

TEST_F(PartialFetchTest, R10ARecordDroppedDuringItsPartialFetchIsGoneWhenTheDropReturns) {
  Begin();
  const store::AcquireGrant grant = Get(5, {1, 1});
  ASSERT_EQ(grant.views[0].code, Code::kOk);
  auto coming = Ask(5, {3, 1});
  EXPECT_EQ(*Drop(4), 8u);
  EXPECT_NE(t->Generation(grant.views[0].place), grant.views[0].generation);
  EXPECT_FALSE(Through(grant.views[0], 5, {1, 1}).has_value());
  EXPECT_EQ(t->Run(std::move(coming))->views[0].code, Code::kMiss);
  t->Settle();
  EXPECT_EQ(Put(4, 3, kBlock), store::State::kPublished);
  EXPECT_EQ(Put(5, 4, kBlock), store::State::kPublished);
}

TEST_F(PartialFetchTest, P7AKillWhileSegmentsPassFindsTheBlocksOnFlashAlone) {
  Begin();
  const store::AcquireGrant grant = Get(0, {1, 1});
  ASSERT_EQ(grant.views[0].code, Code::kOk);
  {
    const auto dropped = Ask(0, {3, 2});  // its reads are under way
  }
  t->Kill();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneGroup());
  EXPECT_NE(t->Generation(grant.views[0].place), grant.views[0].generation);
  EXPECT_FALSE(Here(0));
  EXPECT_EQ(Match(0, 11), 12u);
  const store::AcquireGrant again = Get(0, {});
  ExpectExact(again, 0, {0, 6});
}

TEST_F(PartialFetchTest, P5PartialCopiesTakeAnEighthOfMemoryAtMostAndLeaveItForAPut) {
  Begin(Promotion::kSecondHit, 40);
  const std::uint64_t slots = t->geometry.slots_bytes();
  for (std::uint64_t n = 0; n < 40; ++n) {
    const store::AcquireGrant grant = Get(n, {0, 1});
    ASSERT_EQ(grant.views[0].code, Code::kOk) << n;
    Release(grant);
  }
  // Four blocks are resident at most, each in a slot of less than twice its size.
  EXPECT_LE(t->slots->counts().used_bytes, slots / 8 + 4 * 2 * kBlock);
  // What is leased does not go; what is idle does.
  const store::AcquireGrant leased = Get(0, {3, 1});
  for (std::uint64_t n = 100; n < 100 + 2 * slots / kBlock; ++n) {
    ASSERT_EQ(Put(n, std::nullopt, kBlock), store::State::kPublished) << n;
    t->Settle();
  }
  ExpectExact(leased, 0, {3, 1});
}

// All the rest of memory is leased, and the segment too when it has come.
TEST_F(PartialFetchTest, P5APutThatWaitedForASegmentOnItsWayIsBusyOnceItCame) {
  store::TestStoreOptions options = With(Promotion::kSecondHit);
  options.store.max_blocks = 0;
  options.tier = OnDevice(2u << 20, 256u << 20);
  Make(options);
  std::vector<catalog::BlockName> names;
  for (std::uint64_t n = 0; n == 0 || Here(0); ++n) {
    ASSERT_LT(n, 1'000u);
    ASSERT_EQ(Put(n, std::nullopt, kBlock), store::State::kPublished);
    t->Settle();
    names.push_back({store::Key(n), 0});
  }
  t->movers->paused = true;
  auto segment = Ask(0, {0, 1});
  for (int turns = 0; t->movers->waiting.empty(); ++turns) {
    ASSERT_LT(turns, 10'000);
    t->loop->Turn();
  }
  std::erase_if(names,
                [&](const catalog::BlockName& name) { return !t->Read(ns.slot, name.key).has_value(); });
  const auto rest = t->Run(t->store->Acquire(Me(2), ns.slot, names, kLeaseUs, Soon()));
  ASSERT_TRUE(rest.has_value() && rest->lease != 0);
  auto put = t->store->Write(Me(3), ns.slot, {Part(5'000, std::nullopt, kBlock)}, Soon());
  const auto run = [&] {
    while (t->loop->executor().has_ready()) t->loop->executor().RunReady(1);
  };
  run();
  ASSERT_FALSE(put.done());
  t->movers->paused = false;
  t->movers->MoveOne(0);
  run();
  ASSERT_TRUE(segment.done() && put.done()) << "no time went by";
  EXPECT_EQ(put.Take()[0].status.code(), Code::kBusy);
}

TEST_F(PartialFetchTest, P5PassagesOfAnotherSizeKeepNoPutOut) {
  constexpr std::uint64_t kBytes = kSegment + 4 * kKiB, kCount = 160;
  store::TestStoreOptions options = With(Promotion::kSecondHit);
  options.headers = 4;
  options.store.max_blocks = 0;
  options.tier = OnDevice(4u << 20, 512u << 20);
  Make(options);
  std::vector<catalog::BlockName> names;
  for (std::uint64_t n = 0; n < kCount; ++n) {
    ASSERT_EQ(Put(n, std::nullopt, kBytes), store::State::kPublished);
    names.push_back({store::Key(n), 0, {1, 1}});
  }
  t->Settle();
  constexpr std::uint64_t kOther = 1000 * kKiB;
  std::uint64_t next = 1000;
  const std::uint64_t fill = 2 * t->geometry.slots_bytes() / kOther;
  for (; next < 1000 + fill; ++next) {
    ASSERT_EQ(Put(next, std::nullopt, kOther), store::State::kPublished);
    t->Settle();
  }
  for (std::uint64_t n = 0; n < kCount; ++n) ASSERT_FALSE(Here(n)) << n;
  auto grant = t->Run(t->store->Acquire(Me(), ns.slot, names, kLeaseUs, Soon()));
  ASSERT_TRUE(grant.has_value());
  for (const store::ViewGrant& view : grant->views) ASSERT_EQ(view.code, Code::kOk);
  ASSERT_EQ(Passed(), kCount) << "all of them pass";
  Release(*grant);
  for (std::uint64_t i = 0; i < fill / 2; ++i, ++next) {
    auto put = t->store->Write(Me(), ns.slot, {Part(next, std::nullopt, kOther)}, Soon());
    // The clock stands as long as something is ready.
    for (std::size_t steps = 10'000; steps > 0 && !put.done(); --steps) t->loop->executor().RunReady(1);
    ASSERT_TRUE(put.done()) << i;
    ASSERT_EQ(t->Run(std::move(put))[0].state, store::State::kPublished) << i;
    t->Settle();
  }
}

TEST_F(PartialFetchTest, AReportOfABlockThatIsNotInMemoryHarmsNobody) {
  Begin();
  const store::AcquireGrant grant = Get(0, {1, 1});
  const catalog::BlockName names[] = {{store::Key(0), 0}, {store::Key(1), 0}};
  ASSERT_TRUE(Hold(0, 1, kLeaseUs, Me()).has_value()) << "so that its record is known";
  EXPECT_TRUE(t->Run(t->store->ReportBad(ns.slot, names)).ok());
  EXPECT_EQ(t->Generation(grant.views[0].place), grant.views[0].generation) << "it is sound";
  EXPECT_EQ(Match(0, 11), 12u);
  t->arena.slot(grant.views[0].place)[kSegment + 77] ^= std::byte{1};
  EXPECT_TRUE(t->Run(t->store->ReportBad(ns.slot, names)).ok());
  EXPECT_NE(t->Generation(grant.views[0].place), grant.views[0].generation) << "it is read anew";
  ExpectExact(Get(0, {}), 0, {0, 6});
}

// Parts whose borders lie inside of units: what is read for one of them has a share of its neighbours'.
TEST_F(PartialFetchTest, R10AViewOfSegmentsEndsWithItsBlocksTime) {
  Make(With(Promotion::kSecondHit));
  store::PartWrite mortal = Part(0, {}, kBlock);
  mortal.ttl_s = 30;
  ASSERT_EQ(WriteOne(std::move(mortal)).state, store::State::kPublished);
  t->Settle();
  for (std::uint64_t n = 1; n < 12; ++n) {
    ASSERT_EQ(Put(n, n - 1, kBlock), store::State::kPublished);
    t->Settle();
  }
  const store::AcquireGrant grant = Get(0, {1, 2});
  ASSERT_EQ(grant.views[0].code, Code::kOk);
  ASSERT_FALSE(Here(0));
  t->Advance(20'000'000);
  EXPECT_EQ(t->Generation(grant.views[0].place), grant.views[0].generation);
  t->Advance(11'000'000);
  EXPECT_NE(t->Generation(grant.views[0].place), grant.views[0].generation);
}

TEST_F(PartialFetchTest, P1WhatADeviceReadsWrongForOneRankHarmsNoOther) {
  constexpr std::uint64_t kPartBytes = 70'000;
  NamespaceSpec spec = store::OneGroup("ranks");
  spec.groups[0].part_bytes = {kPartBytes, kPartBytes, kPartBytes, kPartBytes};
  Make(With(Promotion::kSecondHit), spec);
  for (std::uint64_t n = 0; n < 8; ++n) {
    std::vector<store::PartWrite> parts;
    for (std::uint16_t rank = 0; rank < 4; ++rank) {
      parts.push_back(Part(n, n == 0 ? std::nullopt : std::optional(n - 1), kPartBytes));
      parts.back().part = rank;
      parts.back().put_id = {2, n + 1};
    }
    for (const store::PartOutcome& outcome : Write(std::move(parts), Me())) ASSERT_TRUE(outcome.status.ok());
    t->Settle();
  }
  const store::AcquireGrant first = Get(0, {0, 2});
  ASSERT_EQ(first.views[0].code, Code::kOk);
  const std::byte* slot = t->arena.slot(first.views[0].place);
  const std::vector<std::byte> body = store::Body(0, kPartBytes);
  ASSERT_EQ(std::memcmp(slot, body.data(), kPartBytes), 0);
  // The next rank's read begins in the unit where the first part ends, and every byte of it is wrong.
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) -> io::Fault {
    const bool read = request.kind == io::IoRequest::Kind::kRead && path == "flash0/flash";
    return read ? io::Fault{io::FaultKind::kElsewhere, 16u << 20} : io::Fault{};
  });
  const store::AcquireGrant second = Get(0, {2, 2});
  t->disk.set_faults({});
  EXPECT_EQ(second.views[0].code, Code::kMiss);
  EXPECT_EQ(std::memcmp(slot, body.data(), kPartBytes), 0);
}

TEST_F(PartialFetchTest, ANamespaceThatIsDroppedWhileItsSegmentsPassCostsNoDevice) {
  Begin(Promotion::kSecondHit, 60);
  std::uint64_t reads = 0;
  t->disk.set_faults([&](const io::IoRequest& request, const std::string& path) -> io::Fault {
    const bool read = request.kind == io::IoRequest::Kind::kRead && path == "flash0/flash";
    return read ? io::Fault{io::FaultKind::kDelay, 20 * ++reads} : io::Fault{};
  });
  std::vector<Task<Result<store::AcquireGrant>>> asked;
  for (std::uint64_t n = 0; n < 50; ++n) asked.push_back(Ask(n, {1, 1}));
  auto dropped = t->store->DropNamespace(ns.slot);
  for (auto& one : asked) {
    auto grant = t->Run(std::move(one));
    EXPECT_TRUE(grant.has_value());
  }
  ASSERT_TRUE(t->Run(std::move(dropped)).has_value());
  t->disk.set_faults({});
  t->Settle();
  EXPECT_TRUE(FlashOf(*t).devices()[0].in_service);
  EXPECT_EQ(FlashOf(*t).devices()[0].bad_records, 0u);
  EXPECT_EQ(FlashOf(*t).live_bytes(), 0u);
  EXPECT_EQ(t->slots->counts().used_slots, 0u);
}

TEST_F(PartialFetchTest, WhoAsksForWhatIsOnItsWayIsNotRefused) {
  Begin();
  auto first = Ask(0, {1, 1});
  const store::AcquireGrant second = Get(0, {1, 1}, 0);
  EXPECT_EQ(second.views[0].ready_in_us, 0);
  ExpectExact(*t->Run(std::move(first)), 0, {1, 1});
}

}  // namespace
}  // namespace cistern
