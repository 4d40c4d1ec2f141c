// SPDX-License-Identifier: Apache-2.0
// A lower tier for simulation: records lie in a map, time is the executor's and chance comes from a seed. It
// shares with flash the record and nothing else, and keeps the promises of tier/tier.h in another way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/executor.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/task_group.h"
#include "tier/tier.h"

namespace cistern::tier {

// What outlives a tier: the records. A tier that goes without Close has crashed: each append that was not
// acknowledged is then there whole, or not at all, by chance.
class SimulatedMedia final {
 public:
  SimulatedMedia() = default;
  SimulatedMedia(const SimulatedMedia&) = delete;
  SimulatedMedia& operator=(const SimulatedMedia&) = delete;

  std::uint64_t id() const { return id_; }
  std::size_t records() const { return records_.size(); }
  // Bytes of the records with this first word.
  std::uint64_t bytes(std::uint32_t room) const;
  bool holds(const Location& location) const { return records_.contains(location); }
  // An append is under way.
  bool writing() const { return !unacknowledged_.empty(); }
  // Any of the records; none where there are none.
  std::optional<Location> Pick(std::uint64_t dice) const;
  // The process that writes is dead: what is left of its last step changes nothing. Until a tier is made
  // anew.
  void Stop() { stopped_ = true; }
  // Changes a bit of a record; false where there is none.
  bool Flip(const Location& location, std::uint64_t bit);

 private:
  friend class SimulatedTier;
  struct Record {
    TierEntry entry;
    std::vector<std::byte> bytes;
  };
  using Records = std::map<Location, Record>;

  bool stopped_ = false;
  std::uint64_t id_ = 0;
  std::uint64_t journal_id_ = 0;
  JournalMark mark_;
  std::uint32_t next_ = 1;  // second word of a location: none is ever used twice
  Records records_;
  std::map<std::uint32_t, Records> unacknowledged_;  // an append's, by the first of its numbers
};

enum class TierFault : std::uint8_t { kReadError, kWriteError, kFlip, kMisread, kNoRoom, kNoBudget };

struct SimulatedTierOptions {
  std::uint32_t unit = 512;
  std::uint32_t rooms = 8;  // at least 4
  std::uint64_t room_bytes = 256u << 10;
  std::int64_t least_us = 20, most_us = 2'000;  // of a read or a write
  // Chances, of a transfer unless said otherwise.
  struct Faults {
    double read_error = 0, write_error = 0;
    double flip = 0;     // of a bit, anywhere in what is read
    double misread = 0;  // another record's bytes
    double no_room = 0;  // of RoomFor's answers
    double no_budget = 0;
  } faults;
  // Asked beside the chances, where not empty: with the place, or none of an append, and of a recovery that
  // reads.
  std::function<bool(TierFault, const Location&)> suffers;
  Tier::WriteCosts costs{};  // as they are said to be
  // So many errors in a row, and the media leave service; 0: never.
  std::uint32_t most_errors = 0;
};

class SimulatedTier final : public Tier {
 public:
  struct Parts {  // borrowed; outlive the tier
    Executor& executor;
    SimulatedMedia& media;
    std::uint64_t seed = 0;
  };
  // Media that do not belong to the journal, or that it does not know, begin anew; so do those that know a
  // later state of it.
  SimulatedTier(Parts parts, SimulatedTierOptions options, const JournalView& journal);
  ~SimulatedTier() override;
  SimulatedTier(const SimulatedTier&) = delete;
  SimulatedTier& operator=(const SimulatedTier&) = delete;

  Executor& executor() const { return executor_; }

  void SetOwner(TierOwner& owner) override { owner_ = &owner; }
  std::vector<std::uint64_t> media_ids() const override;
  JournalMark newest_mark() const override { return newest_mark_; }
  Task<Status> Mark(JournalMark mark) override;
  Task<Status> Recover(Found found) override;
  void Adopt(const Location& location, std::uint64_t record_bytes) override;
  Room RoomFor(std::uint64_t record_bytes) const override;
  std::uint64_t max_append_bytes() const override { return options_.room_bytes / 4; }
  WriteCosts write_costs() const override { return options_.costs; }
  Task<Result<std::vector<Location>>> Append(std::span<const AppendRequest> records) override;
  Task<Status> MakeDurable() override;
  void Forget(const Location& location, std::uint64_t record_bytes) override;
  std::int64_t EstimateUs(const Location& location, std::uint64_t bytes) const override;
  Task<Result<FetchedRecord>> Fetch(Location location, std::span<std::byte> into,
                                    const Arrived* arrived) override;
  Task<Result<FetchedRecord>> FetchSome(Location location, std::uint64_t record_bytes,
                                        std::span<std::byte> trailer, std::uint64_t offset,
                                        std::span<std::byte> body) override;
  void ReportBad(const Location& location) override;
  std::string Describe(const Location& location) const override;
  std::string DescribeMedium(const Location& location) const override;
  void Reclaim(bool wanted) override;
  // Two rooms are to be free, one is being filled, one may be given up, and others are full but for a batch.
  std::uint64_t reservable_bytes() const override {
    return std::min(options_.rooms / 2, std::max(options_.rooms - 4, 1u)) * (options_.room_bytes / 4 * 3);
  }
  std::uint64_t oldest_sequence() const override;
  void Tick() override {}
  void Forgotten(const LocationRange& range) override;
  Task<void> Close() override;

  // ---- for tests ----
  void set_costs(const WriteCosts& costs) { options_.costs = costs; }
  void set_faults(const SimulatedTierOptions::Faults& faults) { options_.faults = faults; }
  // The media leave service; BringBack gives them back empty, with a new id. kBusy: the owner has not
  // forgotten what was on them, or transfers have not ended.
  void TakeOut();
  Status BringBack();
  bool in_service() const { return in_service_; }
  std::uint64_t live_bytes() const;
  std::uint64_t live_bytes(std::uint32_t room) const { return in_service_ ? rooms_[room].live_bytes : 0; }
  std::uint32_t free_rooms() const;
  const SimulatedTierOptions& options() const { return options_; }
  struct Counters {
    Counter appended_records, fetched_records, moved_records, reclaimed, bad_records, io_errors;
  };
  const Counters& counters() const { return counters_; }

 private:
  // Locations with the same first word.
  struct RoomState {
    bool taken = false;  // by a reclaim
    std::uint64_t used_bytes = 0;
    std::uint64_t live_bytes = 0;
    std::uint64_t least_sequence = UINT64_MAX;
    std::uint64_t opened = 0;  // the order of rooms
    std::uint32_t writers = 0;
    std::uint32_t readers = 0;

    bool free() const { return used_bytes == 0; }
  };
  class Transfer;

  Task<void> Delay();
  bool MayOpen(bool moving) const { return moving || free_rooms() > 1; }
  std::optional<std::uint32_t> ChooseRoom(std::uint64_t bytes, bool moving) const;
  Task<Result<std::vector<Location>>> Write(std::span<const AppendRequest> records, bool moving);
  SimulatedMedia::Record MakeRecord(const AppendRequest& request, const Location& location) const;
  bool Suffers(TierFault fault, double chance, const Location& location) const;
  // An error, which may be the last one of the media.
  void CountError();
  // Bytes of the record, or by chance something else.
  std::span<const std::byte> BytesFor(const Location& location);
  void MayFlip(const Location& location, std::span<std::byte> bytes);
  void Begin(std::uint64_t journal_id);

  bool Wanted() const;
  std::optional<std::uint32_t> TakeVictim();
  Task<void> RunReclaim();
  Task<void> GiveUp(std::uint32_t room, std::uint64_t id);
  Task<void> Move(std::span<const TierEntry> entries);
  Task<bool> Release(std::uint32_t room, std::uint64_t id);

  Executor& executor_;
  SimulatedMedia& media_;
  SimulatedTierOptions options_;
  mutable Random random_;
  TierOwner* owner_ = nullptr;
  JournalMark newest_mark_;
  std::vector<RoomState> rooms_;
  std::uint32_t open_;
  std::uint64_t opened_ = 0;
  std::uint32_t transfers_ = 0;
  bool in_service_ = true;
  bool forgotten_ = true;
  bool recovered_ = false;
  bool reclaiming_ = false;
  bool closing_ = false;
  std::uint64_t outs_ = 0;
  std::uint32_t errors_ = 0;  // in a row
  Counters counters_;
  Event ended_;  // a transfer has
  TaskGroup group_;
};

}  // namespace cistern::tier
