// SPDX-License-Identifier: Apache-2.0
// An arena and its index in private memory, with a writer that puts one-part blocks where the test says. For
// tests of this folder and of those above it.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "arena/index.h"
#include "arena/protocol.h"

namespace cistern::arena {

inline constexpr std::uint64_t kTestIncarnation = 42;

inline BlockKey TestKey(std::uint64_t number) {
  BlockKey key;
  key.length = 16;
  std::mt19937_64 random(number);
  for (int i = 0; i < 16; ++i) key.bytes[i] = static_cast<std::uint8_t>(random());
  return key;
}

inline std::vector<std::byte> BodyOf(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> body(bytes);
  std::mt19937_64 random(seed);
  for (std::byte& byte : body) byte = static_cast<std::byte>(random());
  return body;
}

template <class W>
class TestArena {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  // Zeroed and aligned to a page; untouched pages cost nothing.
  static std::unique_ptr<std::byte, Free> Allocate(std::uint64_t bytes) {
    void* memory = nullptr;
    CISTERN_ASSERT(posix_memalign(&memory, kSlotsBoundary, bytes) == 0);
    return std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(memory));
  }

  W& words_;
  Geometry geometry_;
  std::unique_ptr<std::byte, Free> arena_memory_, index_memory_;

 public:
  static constexpr std::uint64_t kBuckets = 64;

  // Chunk 0 is carved; the others are not.
  explicit TestArena(W& words, std::uint64_t first_slot_bytes = 72u << 12, Geometry geometry = {4096, 2})
      : words_(words),
        geometry_(geometry),
        arena_memory_(Allocate(geometry.file_bytes())),
        index_memory_(Allocate(kIndexBucketsOffset + kBuckets * kEntriesPerBucket * sizeof(IndexEntry))),
        arena(arena_memory_.get(), geometry),
        index(index_memory_.get(), kBuckets),
        writer(words, index),
        slot_bytes(first_slot_bytes) {
    std::memset(arena_memory_.get(), 0, geometry.header_offset(geometry.header_count));
    std::memset(index_memory_.get(), 0,
                kIndexBucketsOffset + kBuckets * kEntriesPerBucket * sizeof(IndexEntry));
    Carve(words, arena, 0, 1, slot_bytes);
    SetIncarnation(words, index, 0, kTestIncarnation);
  }

  Place place(std::uint32_t slot) const { return geometry_.place(slot * slot_bytes); }

  // A whole put of one part into a slot of chunk 0.
  bool Put(const BlockKey& key, const BlockKey& parent, std::span<const std::byte> body, std::uint32_t slot,
           std::uint16_t group = 0, std::uint32_t expiry = 0) {
    std::uint64_t generation = BeginFill(words_, arena, place(slot));
    std::vector<std::uint32_t> crcs(record::SegmentsOfPart(body.size()));
    std::span<const std::byte> pieces[] = {body};
    RunFill(words_, {arena.slot(place(slot)), pieces, crcs});
    std::uint32_t part_bytes[] = {static_cast<std::uint32_t>(body.size())};
    NewRecord record;
    record.seal = {.incarnation = kTestIncarnation,
                   .group = group,
                   .key = key,
                   .parent = parent,
                   .put_id = {1, 2},
                   .part_bytes = part_bytes,
                   .segment_crcs = crcs};
    record.sequence = ++sequence_;
    record.born = 7;
    record.expiry = expiry;
    Publish(words_, arena, place(slot), generation, record);
    Found found{place(slot), part_bytes[0], expiry,
                static_cast<std::uint32_t>(generation) & kGenerationLowMask};
    return Enter(key, group, found);
  }

  // An index entry alone.
  void Index(const BlockKey& key, std::uint16_t group) { CISTERN_ASSERT(Enter(key, group, {})); }

  void Remove(const BlockKey& key, std::uint32_t slot, std::uint16_t group = 0) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].key != key || entries_[i].group != group) continue;
      writer.Clear(entries_[i].number);
      entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    Retire(words_, arena, place(slot));
  }

  ArenaSpace arena;
  IndexSpace index;
  IndexWriter<W> writer;
  std::uint64_t slot_bytes;

 private:
  struct Entry {
    BlockKey key;
    std::uint16_t group;
    std::uint64_t number;
  };

  bool Enter(const BlockKey& key, std::uint16_t group, const Found& found) {
    std::optional<std::uint64_t> number = writer.Insert(FingerprintOf(kTestIncarnation, group, key), found);
    if (number) entries_.push_back({key, group, *number});
    return number.has_value();
  }

  std::vector<Entry> entries_;
  std::uint64_t sequence_ = 0;
};

}  // namespace cistern::arena
