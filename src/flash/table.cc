// SPDX-License-Identifier: Apache-2.0
#include "flash/table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"

namespace cistern::flash {

namespace {
constexpr std::uint32_t kPagesAWrite = 16;
constexpr std::uint32_t kPagesARead = 16;
constexpr std::uint32_t kSliceEntries = 256;

// The pieces stay with the task.
Task<Status> WritePieces(Device& device, std::vector<std::span<const std::byte>> pieces,
                         std::uint64_t offset) {
  co_return co_await device.Write(pieces, offset);
}

}  // namespace

void Tables::Add(Region& region, const std::byte* entries, std::uint32_t count) {
  std::vector<Buffer>& pages = region.writing()->pages;
  for (std::uint32_t i = 0; i < count;) {
    const std::uint32_t in_page = region.entries() % kPageEntries;
    if (in_page == 0) pages.push_back(media_.pool().Take(kPageBytes));
    const std::uint32_t n = std::min(count - i, kPageEntries - in_page);
    std::memcpy(pages.back().data() + PageUsedBytes(in_page), entries + std::size_t{i} * kEntryBytes,
                std::size_t{n} * kEntryBytes);
    region.AddEntries(n);
    i += n;
  }
}

Task<void> Tables::Write(DeviceRegions& device, std::uint32_t number) {
  const Status status = co_await WriteWhole(device, number);
  if (status.ok() || !device.in_service()) co_return;
  media_.log().Log(LogLevel::kWarning, "flash device ", device.path(), ": the table of region ",
                   number - device.first(), " is not on it (", status.message(),
                   "); a restart reads the region");
  device.at(number).KeepPages();
}

Task<Status> Tables::WriteWhole(DeviceRegions& device, std::uint32_t number) {
  const Region& region = device.at(number);
  std::vector<Buffer>& pages = region.writing()->pages;
  const auto count = static_cast<std::uint32_t>(pages.size());
  std::vector<std::span<const std::byte>> pieces;
  std::uint64_t at = device.OffsetOf(number, region.used());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t entries = std::min(region.entries() - i * kPageEntries, kPageEntries);
    const auto page = pages[i].bytes().first(RoundUp(PageUsedBytes(entries), media_.unit()));
    EncodePageHead({region.epoch(), i, entries}, page);
    pieces.push_back(page);
    if (pieces.size() < kPagesAWrite && i + 1 < count) {
      co_await Yield();
      continue;
    }
    Status status = co_await device.device().Lend(pages, WritePieces(device.device(), pieces, at));
    if (!status.ok()) co_return status;
    for (const auto piece : pieces) {
      at += piece.size();
      media_.counters().device_written_bytes.Add(piece.size());
    }
    pieces.clear();
  }
  // Power lost now must not leave a locator without the table, or without the records, that it is of.
  if (Status status = co_await device.MakeDurable(); !status.ok()) co_return status;
  Buffer buffer = media_.pool().Take(media_.unit());
  EncodeLocator({region.epoch(), region.least_sequence(), region.used(), region.entries(), region.scanned()},
                buffer.bytes().first(media_.unit()));
  co_return co_await device.device().Write(buffer, media_.unit(),
                                           device.OffsetOf(number, media_.geometry().units() - 1));
}

void Tables::Decode(std::uint32_t region, const std::byte* entries, std::uint32_t count, std::uint32_t from,
                    std::uint32_t to, std::vector<tier::TierEntry>& out) const {
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto entry = DecodeEntry(entries + std::size_t{i} * kEntryBytes, region);
    if (!entry || entry->record_bytes % media_.unit() != 0) continue;
    const std::uint32_t unit = AddressOf(entry->location).unit;
    if (unit < from || unit + std::uint64_t{entry->record_bytes} / media_.unit() > to) continue;
    out.push_back(*entry);
  }
}

Task<Status> Tables::Read(DeviceRegions& device, std::uint32_t number, Turn& turn, const Found& found) {
  DeviceUse use(device);
  const Region& region = device.at(number);
  const std::uint32_t pages = PagesFor(region.entries());
  Buffer buffer = media_.pool().Take(std::uint64_t{std::min(pages, kPagesARead)} * kPageBytes);
  std::vector<tier::TierEntry> slice;
  std::uint32_t bad = 0;
  for (std::uint32_t first = 0; first < pages; first += kPagesARead) {
    const std::uint32_t count = std::min(pages - first, kPagesARead);
    const std::uint32_t entries = std::min(region.entries() - first * kPageEntries, count * kPageEntries);
    const auto bytes = buffer.bytes().first(RoundUp(TableBytes(entries), media_.unit()));
    const Status status = co_await device.device().Read(
        buffer, bytes.size(), device.OffsetOf(number, region.used()) + std::uint64_t{first} * kPageBytes);
    if (!device.in_service()) {
      bad += pages - first;
      break;
    }
    if (!status.ok()) {
      bad += count;
      continue;
    }
    while (turn.taken) co_await turn.free.Wait();
    turn.taken = true;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto page = bytes.subspan(std::size_t{i} * kPageBytes);
      const auto head = DecodePageHead(page.first(std::min<std::size_t>(page.size(), kPageBytes)));
      if (!head || head->epoch != region.epoch() || head->page != first + i) {
        ++bad;
        continue;
      }
      for (std::uint32_t at = 0; at < head->entries; at += kSliceEntries) {
        slice.clear();
        Decode(number, page.data() + PageUsedBytes(at), std::min(head->entries - at, kSliceEntries), 1,
               region.used(), slice);
        co_await found(slice);
        co_await Yield();
      }
    }
    turn.taken = false;
    turn.free.Pulse();
  }
  if (bad == 0) co_return Status();
  co_return Status(Code::kIoError, Text("flash device ", device.path(), ": region ", number - device.first(),
                                        ": ", bad, " of ", pages, " pages of its table cannot be read"));
}

Task<Status> Tables::Entries(DeviceRegions& device, std::uint32_t number, std::vector<tier::TierEntry>& all) {
  DeviceUse use(device);
  const Region& region = device.at(number);
  if (!device.in_service()) {
    co_return Status(Code::kIoError, Text("flash device ", device.path(), ": is out of service"));
  }
  all.reserve(region.entries());
  if (!region.pages().empty()) {
    for (std::uint32_t at = 0, page = 0; at < region.entries(); ++page) {
      const std::uint32_t count = std::min(region.entries() - at, kPageEntries);
      Decode(number, region.pages()[page].data() + PageUsedBytes(0), count, 1, region.used(), all);
      at += count;
      co_await Yield();
    }
    co_return Status();
  }
  Turn turn;
  const Found collect = [this, &all](std::span<const tier::TierEntry> slice) { return Collect(all, slice); };
  co_return co_await Read(device, number, turn, collect);
}

Task<void> Tables::Collect(std::vector<tier::TierEntry>& all, std::span<const tier::TierEntry> slice) {
  all.insert(all.end(), slice.begin(), slice.end());
  co_return;
}

}  // namespace cistern::flash
