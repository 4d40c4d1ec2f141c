// SPDX-License-Identifier: Apache-2.0
// Where things lie in an arena file: header, headers, then the slots from a 2 MiB boundary on. Offsets are
// pure arithmetic; an ArenaView adds the base address of a mapping. A place is a slot's offset from the start
// of the slots in alignment units, which is how the index, leases and completions name a record.
//
// Places come from shared words, so whoever reads through one goes through CheckPlace first: it proves with
// the chunk's carve and slot size that the place is a slot's start and that the record lies inside the slot.
// Nothing that it returns can lead out of the mapping, whatever the shared words say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "arena/layout.h"
#include "arena/words.h"
#include "base/assert.h"
#include "record/seal.h"

namespace cistern::arena {

using Place = std::uint32_t;

inline constexpr std::uint64_t kSlotsBoundary = 2u << 20;  // slots and files come in large pages

constexpr std::uint64_t RoundUp(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A plain value. `alignment` is 512 or 4096 and `header_count` at least 1 and at most MaxHeaders(alignment).
struct Geometry {
  std::uint32_t alignment = 4096;
  std::uint32_t header_count = 0;

  static constexpr std::uint32_t MaxHeaders(std::uint32_t alignment) {
    return static_cast<std::uint32_t>((std::uint64_t{alignment} << 32) / kHeaderSpanBytes);
  }
  // The largest arena whose file takes at most `bytes`; header_count 0 when none does.
  static constexpr Geometry Within(std::uint64_t bytes, std::uint32_t alignment) {
    std::uint64_t headers = bytes / (kHeaderSpanBytes + sizeof(ChunkHeader));
    if (headers > MaxHeaders(alignment)) headers = MaxHeaders(alignment);
    Geometry geometry{alignment, static_cast<std::uint32_t>(headers)};
    while (geometry.header_count > 0 && geometry.file_bytes() > bytes) geometry.header_count--;
    return geometry;
  }
  constexpr bool valid() const {
    return (alignment == 512 || alignment == 4096) && header_count > 0 &&
           header_count <= MaxHeaders(alignment);
  }

  constexpr std::uint64_t header_offset(std::uint32_t header) const {
    return sizeof(ArenaHeader) + std::uint64_t{header} * sizeof(ChunkHeader);
  }
  constexpr std::uint64_t slots_offset() const {
    return RoundUp(header_offset(header_count), kSlotsBoundary);
  }
  constexpr std::uint64_t slots_bytes() const { return std::uint64_t{header_count} * kHeaderSpanBytes; }
  constexpr std::uint64_t file_bytes() const { return slots_offset() + slots_bytes(); }

  // From places to bytes of the slots and back.
  constexpr std::uint64_t offset(Place place) const { return std::uint64_t{place} * alignment; }
  constexpr Place place(std::uint64_t slots_offset_bytes) const {
    return static_cast<Place>(slots_offset_bytes / alignment);
  }
  constexpr std::uint32_t header_of(Place place) const {
    return static_cast<std::uint32_t>(offset(place) / kHeaderSpanBytes);
  }
  constexpr std::uint32_t unit_of(Place place) const {
    return static_cast<std::uint32_t>(offset(place) % kHeaderSpanBytes / kUnitBytes);
  }

  // The smallest slot: one generation's unit, and a body unit with its trailer.
  constexpr std::uint64_t min_slot_bytes() const {
    return 2 * alignment > kUnitBytes ? 2 * alignment : kUnitBytes;
  }
  // R3: of an index for `headers` of the arena, half full when each slot in them is the smallest. Slots of 64
  // KiB fill it no further in eight times the memory.
  constexpr std::uint64_t bucket_count(std::uint32_t headers) const {
    return 2 * (headers * kHeaderSpanBytes / min_slot_bytes()) / kEntriesPerBucket;
  }
  constexpr std::uint64_t index_bytes(std::uint32_t headers) const {
    return RoundUp(kIndexBucketsOffset + bucket_count(headers) * kEntriesPerBucket * sizeof(IndexEntry),
                   kSlotsBoundary);
  }
  constexpr std::uint64_t bucket_count() const { return bucket_count(header_count); }
  constexpr std::uint64_t index_bytes() const { return index_bytes(header_count); }

  // Bytes of memory that a header takes, with its slots.
  static constexpr std::uint64_t header_memory_bytes() { return sizeof(ChunkHeader) + kHeaderSpanBytes; }

  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// What CheckPlace proved. Offsets are from the slot's start.
struct CheckedSlot {
  std::uint32_t first_header = 0;  // of the chunk
  std::uint64_t carve = 0;         // even, loaded with acquire before anything that the rest is made from
  std::uint64_t slot_bytes = 0;
  std::uint64_t trailer_offset = 0;
  std::uint64_t trailer_room =
      0;  // bytes from there to the slot's end, at least those of the smallest trailer
};

// An arena in this process's memory, to read. Borrows the mapping; a plain value.
class ArenaView {
 public:
  // `base` is aligned to a page and maps geometry.file_bytes().
  ArenaView(const std::byte* base, Geometry geometry) : base_(base), geometry_(geometry) {}

  const Geometry& geometry() const { return geometry_; }
  const ArenaHeader* header() const { return At<ArenaHeader>(0); }
  // header < header_count
  const ChunkHeader* header(std::uint32_t header) const {
    CISTERN_ASSERT(header < geometry_.header_count);
    return At<ChunkHeader>(geometry_.header_offset(header));
  }
  // The place is inside the slots.
  const std::uint64_t* generation(Place place) const {
    return &header(geometry_.header_of(place))->generations[geometry_.unit_of(place)];
  }
  const DirectoryEntry* directory(Place place) const {
    return &header(geometry_.header_of(place))->directory[geometry_.unit_of(place)];
  }
  const std::byte* slot(Place place) const {
    return base_ + geometry_.slots_offset() + geometry_.offset(place);
  }

 private:
  template <class T>
  const T* At(std::uint64_t offset) const {
    return reinterpret_cast<const T*>(base_ + offset);
  }

  const std::byte* base_;
  Geometry geometry_;
};

// The same to its one writer.
class ArenaSpace final : public ArenaView {
 public:
  ArenaSpace(std::byte* base, Geometry geometry) : ArenaView(base, geometry) {}

  ArenaHeader* header() const { return const_cast<ArenaHeader*>(ArenaView::header()); }
  ChunkHeader* header(std::uint32_t number) const {
    return const_cast<ChunkHeader*>(ArenaView::header(number));
  }
  std::uint64_t* generation(Place place) const {
    return const_cast<std::uint64_t*>(ArenaView::generation(place));
  }
  DirectoryEntry* directory(Place place) const {
    return const_cast<DirectoryEntry*>(ArenaView::directory(place));
  }
  std::byte* slot(Place place) const { return const_cast<std::byte*>(ArenaView::slot(place)); }
};

// Whether `slot_bytes` is a size that slots of this geometry have.
constexpr bool IsSlotSize(const Geometry& geometry, std::uint64_t slot_bytes, std::uint64_t chunk_headers) {
  return slot_bytes >= geometry.min_slot_bytes() && slot_bytes % geometry.alignment == 0 &&
         slot_bytes <= chunk_headers * kHeaderSpanBytes;
}

// The slot of a record with `body_bytes` at `place`, or none: not in the arena, in no chunk, in a chunk that
// is being carved, not a slot's start, or a record that such a slot cannot hold. Loads three words.
template <class W>
std::optional<CheckedSlot> CheckPlace(W& words, const ArenaView& arena, Place place,
                                      std::uint64_t body_bytes) {
  const Geometry& geometry = arena.geometry();
  std::uint64_t offset = geometry.offset(place);
  if (offset >= geometry.slots_bytes() || body_bytes == 0) return std::nullopt;
  std::uint32_t header = geometry.header_of(place);
  std::uint64_t first = words.LoadRelaxed(&arena.header(header)->part_of);
  if (first > header) return std::nullopt;
  const ChunkHeader* chunk = arena.header(static_cast<std::uint32_t>(first));
  CheckedSlot slot;
  slot.first_header = static_cast<std::uint32_t>(first);
  slot.carve = words.Load(&chunk->carve);
  if (slot.carve == 0 || slot.carve % 2 != 0) return std::nullopt;
  slot.slot_bytes = words.LoadRelaxed(&chunk->slot_bytes);
  std::uint64_t chunk_headers = words.LoadRelaxed(&chunk->chunk_headers);
  if (chunk_headers > geometry.header_count - first || header - first >= chunk_headers) return std::nullopt;
  if (!IsSlotSize(geometry, slot.slot_bytes, chunk_headers)) return std::nullopt;
  std::uint64_t within = offset - first * kHeaderSpanBytes;
  if (within % slot.slot_bytes != 0) return std::nullopt;
  if (within + slot.slot_bytes > chunk_headers * kHeaderSpanBytes) return std::nullopt;
  if (body_bytes > slot.slot_bytes) return std::nullopt;
  slot.trailer_offset = record::TrailerOffset(body_bytes, geometry.alignment);
  if (slot.trailer_offset + geometry.alignment > slot.slot_bytes) return std::nullopt;
  slot.trailer_room = slot.slot_bytes - slot.trailer_offset;
  return slot;
}

}  // namespace cistern::arena
