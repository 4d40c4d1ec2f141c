// SPDX-License-Identifier: Apache-2.0
#include "sim_words.h"

#include <algorithm>
#include <cstring>

#include "arena/layout.h"

namespace cistern::storm {

bool SimWords::EntryEnds(const std::uint64_t* word) const {
  const auto at = reinterpret_cast<std::uintptr_t>(word) - reinterpret_cast<std::uintptr_t>(entries_);
  return at < entries_bytes_ && at % sizeof(arena::IndexEntry) == offsetof(arena::IndexEntry, rest);
}

std::uint64_t SimWords::Get(const std::uint64_t* word) {
  scheduler_.Pause();
  if (EntryEnds(word) && scheduler_.random().Below(slow_odds_) == 0)
    scheduler_.StandStill(std::uint32_t{1} << scheduler_.random().Below(9));
  words_++;
  if (Actor* actor = scheduler_.current(); actor != nullptr && !actor->stores().empty()) {
    if (auto own = actor->stores().Own(word)) return *own;
  }
  damage_.Loaded(word, sizeof(*word));
  return *word;
}

void SimWords::Set(std::uint64_t* word, std::uint64_t value) {
  scheduler_.Pause();
  words_++;
  if (Actor* actor = scheduler_.current()) {
    actor->stores().Store(word, value);
  } else {
    *word = value;
  }
}

void SimWords::StoreFence() {
  scheduler_.Pause();
  if (Actor* actor = scheduler_.current()) actor->stores().DrainAll();
}

std::size_t SimWords::TileOf(std::size_t bytes) {
  if (bytes <= 512) return bytes;
  std::size_t tile = bytes > 16 * StoreBuffer::kTileBytes || (scheduler_.random().Next() & 3) != 0
                         ? StoreBuffer::kTileBytes
                         : 512;
  return std::min(tile, bytes);
}

std::uint32_t SimWords::CopyOut(void* to, const void* from, std::size_t bytes, std::uint32_t crc,
                                std::size_t) {
  Actor* actor = scheduler_.current();
  auto* target = static_cast<std::byte*>(to);
  auto* source = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    scheduler_.Pause();
    words_++;
    std::size_t tile = TileOf(bytes);
    if (actor != nullptr) actor->stores().Show(source, tile);
    damage_.Loaded(source, tile);
    crc = record::ChosenKernels().copy_cached(target, source, tile, crc, 0);
    target += tile;
    source += tile;
    bytes -= tile;
  }
  return crc;
}

std::uint32_t SimWords::CopyIn(void* to, const void* from, std::size_t bytes, std::uint32_t crc,
                               std::size_t) {
  Actor* actor = scheduler_.current();
  auto* target = static_cast<std::byte*>(to);
  auto* source = static_cast<const std::byte*>(from);
  alignas(64) std::byte loaded[StoreBuffer::kTileBytes];
  while (bytes > 0) {
    scheduler_.Pause();
    words_++;
    std::size_t tile = TileOf(bytes);
    if (actor == nullptr || !actor->dead()) source_(source, tile);
    crc = record::ChosenKernels().copy_cached(loaded, source, tile, crc, 0);
    if (actor != nullptr) {
      actor->stores().Stream(target, loaded, tile);
    } else {
      std::memcpy(target, loaded, tile);
    }
    target += tile;
    source += tile;
    bytes -= tile;
  }
  return crc;
}

std::uint32_t SimWords::Checksum(const void* from, std::size_t bytes, std::uint32_t crc) {
  Actor* actor = scheduler_.current();
  auto* source = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    scheduler_.Pause();
    words_++;
    std::size_t tile = TileOf(bytes);
    if (actor != nullptr) actor->stores().Show(source, tile);
    damage_.Loaded(source, tile);
    crc = record::Crc32c(source, tile, crc);
    source += tile;
    bytes -= tile;
  }
  return crc;
}

}  // namespace cistern::storm
