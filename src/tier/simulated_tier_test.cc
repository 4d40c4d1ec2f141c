// SPDX-License-Identifier: Apache-2.0
// The simulated tier keeps the promises of a lower tier: what storms that stand on it rely on.
#include "tier/simulated_tier.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/random_bytes.h"
#include "record/segments.h"
#include "record/verified_copy.h"

namespace cistern::tier {
namespace {

constexpr std::uint64_t kJournal = 5;
constexpr std::uint32_t kBodyBytes = 3000;

BlockKey KeyOf(std::uint64_t number) {
  BlockKey key;
  key.length = 16;
  std::memcpy(key.bytes.data(), &number, sizeof(number));
  return key;
}

// An owner that keeps what the test says.
class Owner final : public TierOwner {
 public:
  explicit Owner(Executor& executor) : executor_(executor) {}
  Executor& executor() const { return executor_; }

  Task<bool> Keep(const TierEntry& entry, std::uint64_t, std::uint64_t) override {
    asked.push_back(entry.location);
    if (keep && live.contains(entry.location)) co_return true;
    Forget(entry.location);
    co_return false;
  }
  std::optional<MoveStamp> StampOf(const TierEntry& entry) override {
    if (!live.contains(entry.location)) return std::nullopt;
    return MoveStamp{++sequence, 0};
  }
  void Moved(const TierEntry& entry, Location to) override {
    live[to] = entry.record_bytes;
    numbers[to] = numbers[entry.location];
    Forget(entry.location);
  }
  Task<void> Lose(LocationRange range) override {
    std::vector<Location> lost;
    for (const auto& [location, bytes] : live) {
      if (range.contains(location)) lost.push_back(location);
    }
    for (const Location& location : lost) Forget(location);
    co_return;
  }
  Task<void> Reclaimed() override {
    ++reclaimed;
    co_return;
  }
  void DeviceOut(LocationRange range) override { out = range; }
  void Forget(const Location& location) {
    const auto found = live.find(location);
    if (found == live.end()) return;
    tier->Forget(location, found->second);
    live.erase(found);
  }

  Tier* tier = nullptr;
  std::map<Location, std::uint64_t> live;  // bytes
  std::map<Location, std::uint64_t> numbers;
  std::vector<Location> asked;
  std::optional<LocationRange> out;
  bool keep = false;
  std::uint64_t sequence = 0;
  std::uint64_t reclaimed = 0;

 private:
  Executor& executor_;
};

class SimulatedTierTest : public testing::Test {
 protected:
  SimulatedTierTest() { options_.room_bytes = 16u << 10; }
  ~SimulatedTierTest() override { tier_.reset(); }

  void Start() {
    tier_.reset();
    owner_ = std::make_unique<Owner>(executor_);
    owner_->sequence = sequence_ += 1000;
    tier_ = std::make_unique<SimulatedTier>(SimulatedTier::Parts{executor_, media_, ++lives_}, options_,
                                            JournalView{kJournal, known_, {}});
    owner_->tier = tier_.get();
    tier_->SetOwner(*owner_);
    known_ = tier_->media_ids();
    ASSERT_TRUE(Run(tier_->Recover([this](std::span<const TierEntry> entries) {
                  return Found(executor_, entries);
                })).ok());
  }
  Task<void> Found(Executor&, std::span<const TierEntry> entries) {
    for (const TierEntry& entry : entries) {
      tier_->Adopt(entry.location, entry.record_bytes);
      owner_->live[entry.location] = entry.record_bytes;
      std::memcpy(&owner_->numbers[entry.location], entry.key.bytes.data(), 8);
    }
    co_return;
  }
  // Until nothing is left to do.
  void Idle() {
    for (;;) {
      while (executor_.has_ready()) executor_.RunReady(100);
      if (executor_.next_timer().IsNever()) return;
      clock_.AdvanceTo(executor_.next_timer());
      executor_.FireTimers();
    }
  }
  template <class T>
  T Run(Task<T> task) {
    Idle();
    EXPECT_TRUE(task.done());
    return task.Take();
  }

  Task<Result<Location>> AppendTask(Executor&, std::uint64_t number) {
    std::vector<std::byte> body(record::TrailerOffset(kBodyBytes, options_.unit));
    FillRandom(number, body);
    const std::vector<std::uint32_t> parts(1, kBodyBytes);
    std::vector<std::uint32_t> crcs(1, record::Crc32c(body.data(), kBodyBytes));
    AppendRequest request;
    request.body = body.data();
    request.seal.incarnation = 7;
    request.seal.key = KeyOf(number);
    request.seal.part_bytes = parts;
    request.seal.segment_crcs = crcs;
    request.sequence = ++owner_->sequence;
    auto locations = co_await tier_->Append(std::span(&request, 1));
    if (!locations) co_return Error(locations.error());
    owner_->live[locations->front()] = record::RecordBytes(kBodyBytes, options_.unit);
    owner_->numbers[locations->front()] = number;
    co_return locations->front();
  }
  Result<Location> Append(std::uint64_t number) { return Run(AppendTask(executor_, number)); }
  // kMiss also where the body fails.
  Task<Status> FetchTask(Executor&, Location location, std::uint64_t number) {
    std::vector<std::byte> record(record::RecordBytes(kBodyBytes, options_.unit));
    const auto fetched = co_await tier_->Fetch(location, record, nullptr);
    if (!fetched) co_return fetched.error();
    const auto crc = [&](std::uint64_t offset, std::uint64_t bytes) {
      return record::Crc32c(record.data() + offset, bytes);
    };
    if (!record::SegmentsSound(fetched->seal, record::Segments(fetched->seal), crc)) {
      co_return Status(Code::kMiss, "body");
    }
    EXPECT_TRUE(fetched->seal.HasKey(KeyOf(number)));
    std::vector<std::byte> expected(record::TrailerOffset(kBodyBytes, options_.unit));
    FillRandom(number, expected);
    EXPECT_EQ(std::memcmp(expected.data(), record.data(), kBodyBytes), 0);
    co_return Status();
  }
  Status Fetch(Location location, std::uint64_t number) {
    return Run(FetchTask(executor_, location, number));
  }

  SimulatedClock clock_;
  Executor executor_{clock_};
  SimulatedMedia media_;
  SimulatedTierOptions options_;
  std::vector<std::uint64_t> known_;
  std::unique_ptr<Owner> owner_;
  std::unique_ptr<SimulatedTier> tier_;
  std::uint64_t lives_ = 0;
  std::uint64_t sequence_ = 0;
};

TEST_F(SimulatedTierTest, AppendedRecordsAreFetchedExactAndFoundAfterAClose) {
  Start();
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_TRUE(Append(n).has_value());
  for (const auto& [location, number] : owner_->numbers) EXPECT_TRUE(Fetch(location, number).ok());
  Run(tier_->Close());
  const auto before = owner_->numbers;
  Start();
  EXPECT_EQ(owner_->numbers, before);
  for (const auto& [location, number] : owner_->numbers) EXPECT_TRUE(Fetch(location, number).ok());
  EXPECT_EQ(tier_->live_bytes(), 10 * record::RecordBytes(kBodyBytes, options_.unit));
}

TEST_F(SimulatedTierTest, R7ACrashKeepsWhatWasAcknowledgedAndTheRestWholeOrNotAtAll) {
  std::size_t kept = 0;
  for (int life = 0; life < 40; ++life) {
    known_.clear();
    Start();
    ASSERT_TRUE(Append(1).has_value());
    {
      Task<Result<Location>> under_way = AppendTask(executor_, 2);
      EXPECT_FALSE(under_way.done());
    }
    Start();
    std::set<std::uint64_t> found;
    for (const auto& [location, number] : owner_->numbers) {
      EXPECT_TRUE(Fetch(location, number).ok());
      found.insert(number);
    }
    EXPECT_TRUE(found.contains(1));
    kept += found.contains(2);
  }
  EXPECT_GT(kept, 5u);
  EXPECT_LT(kept, 35u);
}

TEST_F(SimulatedTierTest, AFullTierRefusesAndReclaimMakesRoomMovingWhatTheOwnerKeeps) {
  Start();
  std::uint64_t n = 0;
  while (Append(n).has_value()) ASSERT_LT(++n, 1000u);
  EXPECT_EQ(tier_->RoomFor(4096), Tier::Room::kNoRoom);
  // Everything kept: it moves, and no room is won.
  owner_->keep = true;
  const std::uint64_t oldest = tier_->oldest_sequence();
  tier_->Reclaim(true);
  while (tier_->counters().moved_records.value() == 0) {
    executor_.RunReady(1);
    if (!executor_.has_ready()) {
      clock_.AdvanceTo(executor_.next_timer());
      executor_.FireTimers();
    }
  }
  owner_->keep = false;
  Idle();
  EXPECT_GT(tier_->oldest_sequence(), oldest);
  EXPECT_GT(owner_->reclaimed, 0u);
  EXPECT_EQ(tier_->RoomFor(4096), Tier::Room::kYes);
  for (std::size_t i = 1; i < owner_->asked.size(); ++i) {
    const Location before = owner_->asked[i - 1], now = owner_->asked[i];
    EXPECT_TRUE(now.high != before.high || now.low < before.low) << "leaves first";
  }
  const auto live = owner_->live;
  EXPECT_FALSE(live.empty());
  for (const auto& [location, bytes] : live) EXPECT_TRUE(Fetch(location, owner_->numbers[location]).ok());
}

TEST_F(SimulatedTierTest, R10WhatAReclaimGaveUpStaysAwayAfterACrash) {
  Start();
  for (std::uint64_t n = 0; Append(n).has_value(); ++n) ASSERT_LT(n, 1000u);
  const std::uint64_t before = media_.records();
  tier_->Reclaim(true);
  Idle();
  ASSERT_GT(owner_->reclaimed, 0u);
  const auto live = owner_->live;
  EXPECT_LT(live.size(), before);
  const std::uint64_t oldest = tier_->oldest_sequence();
  Start();
  EXPECT_EQ(owner_->live, live);
  EXPECT_EQ(tier_->oldest_sequence(), oldest);
}

TEST_F(SimulatedTierTest, P1FlippedBitsAndOtherRecordsBytesAreAMiss) {
  Start();
  const Location first = *Append(1), second = *Append(2);
  for (std::uint64_t bit = 0; bit < 8 * record::RecordBytes(kBodyBytes, options_.unit); bit += 97) {
    ASSERT_TRUE(media_.Flip(first, bit));
    const Status status = Fetch(first, 1);
    EXPECT_TRUE(status.ok() || status.code() == Code::kMiss);
    if (bit / 8 < kBodyBytes) {
      EXPECT_EQ(status.code(), Code::kMiss) << bit;
    }
    ASSERT_TRUE(media_.Flip(first, bit));
  }
  EXPECT_TRUE(Fetch(first, 1).ok());
  tier_->set_faults({.flip = 0.5, .misread = 0.5});
  int missed = 0;
  for (int i = 0; i < 100; ++i) missed += Fetch(second, 2).code() == Code::kMiss;
  EXPECT_GT(missed, 20);
  EXPECT_LT(missed, 90);
}

TEST_F(SimulatedTierTest, FailedTransfersAreIoErrorsAndNothingOfThemIsAcknowledged) {
  Start();
  const Location there = *Append(1);
  tier_->set_faults({.read_error = 1, .write_error = 1, .no_budget = 1});
  EXPECT_EQ(Fetch(there, 1).code(), Code::kIoError);
  EXPECT_EQ(Append(2).error().code(), Code::kIoError);
  EXPECT_EQ(tier_->RoomFor(4096), Tier::Room::kNoBudget);
  tier_->set_faults({.no_room = 1});
  EXPECT_EQ(tier_->RoomFor(4096), Tier::Room::kNoRoom);
  EXPECT_TRUE(Fetch(there, 1).ok());
  EXPECT_EQ(tier_->live_bytes(), record::RecordBytes(kBodyBytes, options_.unit));
}

TEST_F(SimulatedTierTest, ErrorsInARowTakeTheMediaOut) {
  options_.most_errors = 3;
  Start();
  const Location there = *Append(1);
  tier_->set_faults({.read_error = 1});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Fetch(there, 1).code(), Code::kIoError);
  tier_->set_faults({});
  EXPECT_TRUE(Fetch(there, 1).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(tier_->in_service());
    tier_->ReportBad(there);
  }
  EXPECT_FALSE(tier_->in_service());
  EXPECT_TRUE(owner_->out.has_value());
}

TEST_F(SimulatedTierTest, RecoveryThatCannotReadTakesTheMediaOutAndTheStartGoesOn) {
  Start();
  ASSERT_TRUE(Append(1).has_value());
  Run(tier_->Close());
  options_.suffers = [](TierFault fault, const Location&) { return fault == TierFault::kReadError; };
  Start();
  EXPECT_FALSE(tier_->in_service());
  EXPECT_TRUE(owner_->out.has_value());
  EXPECT_EQ(tier_->RoomFor(4096), Tier::Room::kNoDevice);
}

TEST_F(SimulatedTierTest, MediaOfADeadProcessStayAsTheyAre) {
  Start();
  ASSERT_TRUE(Append(1).has_value());
  media_.Stop();
  EXPECT_FALSE(Append(2).has_value());
  EXPECT_EQ(media_.records(), 1u);
  EXPECT_FALSE(media_.writing());
  Start();
  EXPECT_EQ(owner_->live.size(), 1u);
  EXPECT_TRUE(Append(3).has_value());
}

TEST_F(SimulatedTierTest, MediaThatWereTakenOutComeBackEmptyOnceTheOwnerForgot) {
  Start();
  const Location there = *Append(1);
  const std::vector<std::uint64_t> ids = tier_->media_ids();
  Task<Status> reading = FetchTask(executor_, there, 1);
  tier_->TakeOut();
  ASSERT_TRUE(owner_->out.has_value());
  EXPECT_TRUE(owner_->out->contains(there));
  EXPECT_EQ(tier_->EstimateUs(there, 4096), Tier::kNever);
  EXPECT_EQ(tier_->RoomFor(4096), Tier::Room::kNoDevice);
  EXPECT_TRUE(tier_->media_ids().empty());
  EXPECT_EQ(tier_->BringBack().code(), Code::kBusy);
  tier_->Forgotten(*owner_->out);
  EXPECT_EQ(tier_->BringBack().code(), Code::kBusy) << "a read has not ended";
  EXPECT_EQ(Run(std::move(reading)).code(), Code::kIoError);
  EXPECT_TRUE(tier_->BringBack().ok());
  EXPECT_NE(tier_->media_ids(), ids);
  EXPECT_EQ(Fetch(there, 1).code(), Code::kMiss);
  EXPECT_TRUE(Append(2).has_value());
}

TEST_F(SimulatedTierTest, MediaThatTheJournalDoesNotKnowBeginAnew) {
  Start();
  ASSERT_TRUE(Append(1).has_value());
  Run(tier_->Close());
  known_ = {media_.id() + 1};
  Start();
  EXPECT_TRUE(owner_->live.empty());
  EXPECT_EQ(media_.records(), 0u);
}

}  // namespace
}  // namespace cistern::tier
