// SPDX-License-Identifier: Apache-2.0
// The tier's inside: opening (open.cc), appending (append.cc), reading and reclaim (tier.cc), recovery
// (recovery.cc).
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/task_group.h"
#include "flash/budget.h"
#include "flash/region.h"
#include "flash/tier.h"

namespace cistern {

class Tier::Impl final {
 public:
  using Region = flash::Region;
  using Member = flash::Member;
  using State = flash::Region::State;
  using Found = std::function<Task<void>(std::span<const FlashEntry>)>;

  Impl(Parts parts, FlashOptions options, std::uint64_t journal_id, std::vector<std::uint64_t> known);
  ~Impl();

  Executor& executor() const { return parts_.executor(); }

  // open.cc
  Task<Status> Open();
  Task<Status> BringBack(std::string path);
  Status TakeOut(const std::string& path);

  // recovery.cc
  Task<Status> Recover(Found found);
  Task<Result<std::vector<FlashEntry>>> Entries(std::uint32_t region);

  // append.cc
  Room RoomFor(std::uint64_t record_bytes) const;
  Task<Result<std::vector<FlashPlace>>> Append(std::span<const Outgoing> records, Purpose purpose);
  Task<void> Close();

  // tier.cc
  void Adopt(const FlashPlace& place, std::uint64_t record_bytes);
  void Forget(const FlashPlace& place, std::uint64_t record_bytes);
  std::int64_t EstimateUs(const FlashPlace& place, std::uint64_t bytes) const;
  Task<Result<Fetched>> Fetch(FlashPlace place, std::span<std::byte> into) {
    return FetchSome(place, into.size(), into, 0, {});
  }
  Task<Result<Fetched>> FetchSome(FlashPlace place, std::uint64_t record_bytes, std::span<std::byte> trailer,
                                  std::uint64_t offset, std::span<std::byte> body);
  void ReportBad(const FlashPlace& place);
  bool WantsReclaim() const;
  std::optional<std::uint32_t> TakeVictim();
  Task<Status> Release(std::uint32_t region);
  void GiveBack(std::uint32_t region);
  std::uint64_t oldest_sequence() const;
  void Tick();
  void Forgotten(std::uint32_t first_region);

  std::uint32_t free_regions() const;
  std::uint64_t live_bytes() const;
  std::vector<DeviceState> devices() const;
  std::vector<std::uint64_t> device_ids() const;
  std::uint64_t capacity_bytes() const;
  std::uint64_t budget_left_bytes() const { return budget_.Left(parts_.loop.clock().Now()); }
  std::uint32_t regions() const { return static_cast<std::uint32_t>(regions_.size()); }
  std::uint64_t region_bytes() const { return region_bytes_; }
  std::uint64_t live_bytes(std::uint32_t region) const { return regions_.at(region).live_bytes; }
  const Counters& counters() const { return counters_; }
  void set_hook(DeviceOut hook) { hook_ = std::move(hook); }

 private:
  // Holds on to a device while a task uses it, so that it is not brought back meanwhile.
  class User {
   public:
    explicit User(Member& member) : member_(member) { ++member_.users; }
    ~User() { --member_.users; }
    User(const User&) = delete;
    User& operator=(const User&) = delete;

   private:
    Member& member_;
  };
  class Reading;
  class Appending;

  // What a look at a device found, before anything is touched.
  struct Look {
    File file;
    std::string file_path;
    bool create = false;
    bool block_device = false;
    std::uint64_t size_bytes = 0;  // as it is
    std::optional<flash::Superblock> superblock;
    bool foreign = false;
    Status taken;  // not ok: somebody has its lock, and nothing was read
  };
  // What a batch takes.
  struct Layout {
    std::uint32_t head_units = 0;
    std::uint32_t units = 0;
    std::uint64_t trailer_bytes = 0;
    std::uint64_t record_bytes = 0;
    std::uint64_t least_sequence = UINT64_MAX;
    std::vector<std::uint32_t> at;       // of each record, in units from the batch's start
    std::vector<std::uint32_t> trailer;  // of each record, in bytes
  };
  class Turns;

  std::uint32_t units() const { return static_cast<std::uint32_t>(region_bytes_ / options_.unit); }
  std::uint32_t TableUnits(std::uint32_t entries) const {
    return static_cast<std::uint32_t>(flash::RoundUp(flash::TableBytes(entries), options_.unit) /
                                      options_.unit);
  }
  Member& MemberOf(std::uint32_t region) const;
  std::uint64_t OffsetOf(const Member& member, std::uint32_t region, std::uint32_t unit) const {
    return flash::kSuperBytes + (region - member.first) * region_bytes_ + std::uint64_t{unit} * options_.unit;
  }
  // Null for no region or one whose device is out.
  Region* Find(std::uint32_t region);
  void SetLeast(Member& member, Region& region, std::uint64_t least);
  void IntoClosed(Member& member, std::uint32_t region);
  void OutOfClosed(Member& member, std::uint32_t region);
  void DeviceLeft(Member& member);
  Task<Status> WriteHeader(Member& member, std::uint32_t region, std::uint64_t epoch, std::uint64_t first);

  // open.cc
  Task<Result<Look>> LookAt(std::size_t at);
  Task<Status> Lock(File& file, const std::string& path);
  Status CheckLimits(const File& file, const std::string& path) const;
  Status ChooseRegionBytes(const std::vector<Look>& looks);
  Status CheckLook(std::size_t at, const Look& look) const;
  Task<Status> Create(std::size_t at, Look& look);
  Task<Status> Start(std::size_t at, Look& look);
  bool Believed(const flash::Superblock& superblock, std::string* why) const;
  Task<Status> Format(Member& member, std::uint64_t id);
  Task<Status> EmptyNewRegions(Member& member, std::uint32_t from);
  std::uint64_t WantedBytes(std::size_t at, const Look& look) const;

  // append.cc
  Result<Layout> LayOut(std::span<const Outgoing> records) const;
  bool Fits(const Region& region, const Layout& layout, std::size_t records) const;
  Member* Choose(const Layout& layout, std::size_t records, const Member* avoid, Purpose purpose);
  // Whether a region may be opened for that.
  bool MayOpen(Purpose purpose) const;
  std::uint32_t Reserve(Member& member, const Layout& layout, std::size_t records, std::uint32_t* unit);
  void Prepare(Member& member, std::uint64_t first_sequence);
  Task<void> WriteFirst(Member& member, std::uint32_t region);
  Task<void> EmptyAgain(Member& member, std::uint32_t region);
  void LetGo(Member& member, std::uint32_t region);
  Task<Status> WriteBatch(Member& member, std::uint32_t region, std::uint32_t unit, const Layout& layout,
                          std::span<const Outgoing> records);
  Task<Status> Transmit(Member& member, std::uint32_t region, std::uint32_t unit, const Layout& layout,
                        std::span<const Outgoing> records, flash::Buffer& buffer);
  void BatchEnded(Member& member, std::uint32_t region, flash::Batch& batch);
  void Accept(Region& region, const std::byte* entries, std::uint32_t count);
  void FailWriting(flash::Writing& writing);
  void BeginClosing(Member& member, std::uint32_t region);
  void WriterLeft(Member& member, std::uint32_t region);
  Task<void> CloseRegion(Member& member, std::uint32_t region);
  Task<Status> WriteTable(Member& member, std::uint32_t region);
  void EndWriting(Member& member, std::uint32_t region);

  // recovery.cc
  struct Reader;
  class Helpers;
  Task<void> ReadHeads(Member& member, std::uint32_t& next, Reader& reader);
  Task<void> ReadTables(Reader& reader, Turns& turns, const Found& found);
  Task<Status> ReadTable(Member& member, std::uint32_t region, Turns& turns, const Found& found);
  Task<Status> Scan(Member& member, std::uint32_t region, const Found& found);
  Task<void> CloseScanned(Member& member, std::uint32_t region);
  Task<void> Collect(std::vector<FlashEntry>& all, std::span<const FlashEntry> slice);
  void DecodeEntries(std::uint32_t region, const std::byte* entries, std::uint32_t count, std::uint32_t from,
                     std::uint32_t to, std::vector<FlashEntry>& out) const;

  Parts parts_;
  FlashOptions options_;
  const std::uint64_t journal_id_;
  const std::vector<std::uint64_t> known_;
  std::uint64_t region_bytes_ = 0;
  flash::BufferPool pool_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<Region> regions_;
  std::size_t turn_ = 0;  // of the members, for appends
  std::uint64_t next_epoch_ = 0;
  flash::Budget budget_;
  std::multiset<std::uint64_t> appending_;  // the least sequence of each append that is under way
  Counters counters_;
  DeviceOut hook_;
  bool closing_ = false;
  Event writing_ended_;
  TaskGroup group_;
};

}  // namespace cistern
