// SPDX-License-Identifier: Apache-2.0
// After a start: what the regions hold. Headers and locators first, many at a time; then the tables of closed
// regions; then the batches of those that were open, which are closed by it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "flash/impl.h"

namespace cistern {

using flash::Buffer;
using flash::RoundUp;

namespace {

constexpr std::uint32_t kHeadReaders = 16;  // at a device
constexpr std::uint32_t kTableReaders = 8;
constexpr std::uint32_t kPagesARead = 16;
constexpr std::uint32_t kSliceEntries = 256;
constexpr std::uint32_t kScanBytes = 512u << 10;

bool AllZero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

// Drops its tasks where whoever waits for them is dropped.
class Tier::Impl::Helpers {
 public:
  explicit Helpers(Executor& executor) : group(executor) {}
  ~Helpers() { group.Drop(); }
  TaskGroup group;
};

// One at a time, in the order of asking: slices are given to the caller one after the other.
class Tier::Impl::Turns {
 public:
  bool taken = false;
  Event free;
};

struct Tier::Impl::Reader {
  std::vector<std::pair<std::uint32_t, flash::Locator>> closed;
  std::vector<std::uint32_t> open;
  std::vector<std::uint32_t> damaged;
  std::size_t next = 0;  // of `closed`
};

Task<void> Tier::Impl::ReadHeads(Member& member, std::uint32_t& next, Reader& reader) {
  Buffer buffer = pool_.Take(options_.unit);
  const auto unit = buffer.bytes().first(options_.unit);
  while (next < member.count && member.device.in_service()) {
    const std::uint32_t number = member.first + next++;
    Region& region = regions_[number];
    Status status = co_await member.device.Read(unit, OffsetOf(member, number, 0));
    const auto header = flash::DecodeRegionHeader(unit);
    if (!status.ok() || !header) {
      if (!status.ok() || !AllZero(unit)) reader.damaged.push_back(number);
      continue;
    }
    // Another life's, or one that was given up.
    if (header->device_id != member.id || header->epoch == 0) continue;
    if (header->region != number - member.first) {
      reader.damaged.push_back(number);
      continue;
    }
    region.epoch = header->epoch;
    region.first_sequence = header->first_sequence;
    region.state = State::kClosed;
    status = co_await member.device.Read(unit, OffsetOf(member, number, units() - 1));
    const auto locator = flash::DecodeLocator(unit);
    if (status.ok() && locator && locator->epoch == region.epoch && locator->table_unit >= 1 &&
        locator->table_unit + std::uint64_t{TableUnits(locator->entries)} < units()) {
      reader.closed.push_back({number, *locator});
    } else {
      reader.open.push_back(number);
    }
  }
}

void Tier::Impl::DecodeEntries(std::uint32_t region, const std::byte* entries, std::uint32_t count,
                               std::uint32_t from, std::uint32_t to, std::vector<FlashEntry>& out) const {
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto entry = flash::DecodeEntry(entries + std::size_t{i} * flash::kEntryBytes, region);
    if (!entry || entry->place.unit < from || entry->record_bytes % options_.unit != 0 ||
        entry->place.unit + std::uint64_t{entry->record_bytes} / options_.unit > to) {
      continue;
    }
    out.push_back(*entry);
  }
}

// Its pages, each checked for itself. kIoError: not all of them could be read.
Task<Status> Tier::Impl::ReadTable(Member& member, std::uint32_t number, Turns& turns, const Found& found) {
  User user(member);
  const Region& region = regions_[number];
  const std::uint32_t pages = flash::PagesFor(region.entries);
  Buffer buffer = pool_.Take(std::uint64_t{std::min(pages, kPagesARead)} * flash::kPageBytes);
  std::vector<FlashEntry> slice;
  std::uint32_t bad = 0;
  for (std::uint32_t first = 0; first < pages; first += kPagesARead) {
    const std::uint32_t count = std::min(pages - first, kPagesARead);
    const std::uint32_t entries =
        std::min(region.entries - first * flash::kPageEntries, count * flash::kPageEntries);
    const auto bytes = buffer.bytes().first(RoundUp(flash::TableBytes(entries), options_.unit));
    const Status status = co_await member.device.Read(
        bytes, OffsetOf(member, number, region.used) + std::uint64_t{first} * flash::kPageBytes);
    if (!status.ok()) {
      bad += count;
      continue;
    }
    while (turns.taken) co_await turns.free.Wait();
    turns.taken = true;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto page = bytes.subspan(std::size_t{i} * flash::kPageBytes);
      const auto head =
          flash::DecodePageHead(page.first(std::min<std::size_t>(page.size(), flash::kPageBytes)));
      if (!head || head->epoch != region.epoch || head->page != first + i) {
        ++bad;
        continue;
      }
      for (std::uint32_t at = 0; at < head->entries; at += kSliceEntries) {
        slice.clear();
        DecodeEntries(number, page.data() + flash::PageUsedBytes(at),
                      std::min(head->entries - at, kSliceEntries), 1, region.used, slice);
        if (!slice.empty()) co_await found(slice);
        co_await Yield();
      }
    }
    turns.taken = false;
    turns.free.Pulse();
  }
  if (bad == 0) co_return Status();
  co_return Status(Code::kIoError,
                   Text("flash device ", member.device.path(), ": region ", number - member.first, ": ", bad,
                        " of ", pages, " pages of its table cannot be read"));
}

Task<void> Tier::Impl::ReadTables(Reader& reader, Turns& turns, const Found& found) {
  while (reader.next < reader.closed.size()) {
    const auto [number, locator] = reader.closed[reader.next++];
    Member& member = MemberOf(number);
    Region& region = regions_[number];
    region.used = locator.table_unit;
    region.entries = region.reserved = locator.entries;
    region.scanned = locator.scanned;
    SetLeast(member, region, locator.least_sequence);
    const Status status = co_await ReadTable(member, number, turns, found);
    if (!status.ok()) {
      parts_.log.Log(LogLevel::kWarning, status.message(), "; what they name is lost");
    }
  }
}

// Follows the batches until one is not whole.
Task<Status> Tier::Impl::Scan(Member& member, std::uint32_t number, const Found& found) {
  Region& region = regions_[number];
  const std::uint32_t unit_bytes = options_.unit;
  Buffer buffer = pool_.Take(kScanBytes);
  std::uint32_t in_buffer = 0, in_buffer_units = 0;  // which units it holds
  std::uint32_t unit = 1;
  std::uint64_t least = UINT64_MAX;
  std::vector<FlashEntry> slice;
  region.entries = 0;
  for (;;) {
    std::span<const std::byte> head_bytes;
    std::expected<flash::BatchHead, flash::FlashFault> head = std::unexpected(flash::FlashFault::kShort);
    for (int tries = 0; tries < 2; ++tries) {
      head_bytes = {};
      if (unit >= in_buffer && unit < in_buffer + in_buffer_units) {
        head_bytes = buffer.bytes().subspan(std::size_t{unit - in_buffer} * unit_bytes,
                                            std::size_t{in_buffer + in_buffer_units - unit} * unit_bytes);
      }
      head = flash::DecodeBatchHead(head_bytes);
      if (head || head.error() != flash::FlashFault::kShort || tries == 1 || unit >= units() - 1) break;
      in_buffer = unit;
      in_buffer_units = std::min(kScanBytes / unit_bytes, units() - 1 - unit);
      const Status status = co_await member.device.Read(
          buffer.bytes().first(std::size_t{in_buffer_units} * unit_bytes), OffsetOf(member, number, unit));
      if (!status.ok()) {
        in_buffer_units = 0;
        break;
      }
    }
    if (!head || head->epoch != region.epoch || head->unit != unit) break;
    const auto head_units =
        static_cast<std::uint32_t>(RoundUp(flash::BatchHeadBytes(head->entries), unit_bytes) / unit_bytes);
    const std::uint64_t end = std::uint64_t{unit} + head->units;
    if (head->units <= head_units || end + TableUnits(region.entries + head->entries) + 1 > units()) break;
    const std::byte* entries = head_bytes.data() + flash::kBatchFixedBytes;
    Accept(region, entries, head->entries);
    slice.clear();
    DecodeEntries(number, entries, head->entries, unit + head_units, static_cast<std::uint32_t>(end), slice);
    for (const FlashEntry& entry : slice) least = std::min(least, entry.sequence);
    unit = static_cast<std::uint32_t>(end);
    if (!slice.empty()) co_await found(slice);
    co_await Yield();
  }
  region.used = unit;
  region.reserved = region.entries;
  SetLeast(member, region, least);
  co_return Status();
}

Task<void> Tier::Impl::CloseScanned(Member& member, std::uint32_t number) {
  Region& region = regions_[number];
  const Status status = co_await WriteTable(member, number);
  if (!status.ok()) {
    parts_.log.Log(LogLevel::kWarning, status.message(), "; the table of region ", number - member.first,
                   " is not on it, and a restart reads the region");
    region.pages = std::move(region.writing->pages);
  }
  EndWriting(member, number);
}

Task<Status> Tier::Impl::Recover(Found found) {
  Reader reader;
  {
    std::vector<std::uint32_t> next(members_.size(), 0);
    Helpers heads(executor());
    for (std::size_t i = 0; i < members_.size(); ++i) {
      for (std::uint32_t n = 0; n < kHeadReaders; ++n)
        heads.group.Spawn(ReadHeads(*members_[i], next[i], reader));
    }
    co_await heads.group.Close();
  }
  {
    Turns turns;
    Helpers tables(executor());
    for (std::uint32_t n = 0; n < kTableReaders; ++n) tables.group.Spawn(ReadTables(reader, turns, found));
    co_await tables.group.Close();
  }
  for (const std::uint32_t number : reader.open) {
    Member& member = MemberOf(number);
    if (!member.device.in_service()) continue;
    regions_[number].writing = std::make_unique<flash::Writing>();
    member.writing.push_back(number);
    regions_[number].scanned = true;
    Status status = co_await Scan(member, number, found);
    if (!status.ok()) co_return status;
    if (regions_[number].entries == 0) {
      // It was ready and nothing had come: free, once nothing can be found in it later either.
      (void)co_await WriteHeader(member, number, 0, 0);
      EndWriting(member, number);
      regions_[number].state = State::kFree;
      continue;
    }
    parts_.log.Log(LogLevel::kInfo, "flash device ", member.device.path(), ": region ", number - member.first,
                   " was open; ", regions_[number].entries, " records are found in it");
    co_await CloseScanned(member, number);
  }
  for (const std::uint32_t number : reader.damaged) {
    Member& member = MemberOf(number);
    if (!member.device.in_service()) continue;
    parts_.log.Log(LogLevel::kWarning, "flash device ", member.device.path(), ": the header of region ",
                   number - member.first, " cannot be read; the region is given up");
    (void)co_await WriteHeader(member, number, 0, 0);
  }
  for (const auto& member : members_) {
    if (!reader.open.empty() && member->device.in_service()) {
      const Status status = co_await member->device.Sync();
      if (!status.ok()) member->device.FailedFor("a table is not durable", status);
    }
    for (std::uint32_t i = 0; i < member->count; ++i) {
      const std::uint32_t number = member->first + i;
      if (regions_[number].state == State::kClosed) {
        IntoClosed(*member, number);
      } else {
        member->free.push_back(number);
      }
      if (i % 256 == 255) co_await Yield();
    }
  }
  co_return Status();
}

Task<Result<std::vector<FlashEntry>>> Tier::Impl::Entries(std::uint32_t number) {
  Member& member = MemberOf(number);
  User user(member);
  Region& region = regions_[number];
  std::vector<FlashEntry> all;
  all.reserve(region.entries);
  if (!member.device.in_service())
    co_return Error(Code::kIoError, Text("flash device ", member.device.path(), ": is out of service"));
  if (!region.pages.empty()) {
    for (std::uint32_t at = 0, page = 0; at < region.entries; ++page) {
      const std::uint32_t count = std::min(region.entries - at, flash::kPageEntries);
      DecodeEntries(number, region.pages[page].data() + flash::PageUsedBytes(0), count, 1, region.used, all);
      at += count;
      co_await Yield();
    }
    co_return all;
  }
  Turns turns;
  const Found collect = [this, &all](std::span<const FlashEntry> slice) { return Collect(all, slice); };
  const Status status = co_await ReadTable(member, number, turns, collect);
  if (!status.ok()) co_return Error(status);
  co_return all;
}

Task<void> Tier::Impl::Collect(std::vector<FlashEntry>& all, std::span<const FlashEntry> slice) {
  all.insert(all.end(), slice.begin(), slice.end());
  co_return;
}

}  // namespace cistern
