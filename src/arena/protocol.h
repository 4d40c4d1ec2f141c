// SPDX-License-Identifier: Apache-2.0
// The publish protocol (R1, R2): how the one writer changes what readers may be reading at the same time.
// A record passes through a slot as
//
//   BeginFill   odd generation (a free slot is odd already), fence: from here on no reader accepts the slot
//   RunFill     the copy with checksums, then the fence, on each thread that stored
//   Publish     trailer and directory, then the even generation with release: from here on readers accept it
//   Retire      the directory entry disowned, odd again. The index entry was cleared before; readers that are
//               still copying will notice
//
// Generations only grow: never 0 after the first fill, never repeated over the file's life, through
// re-carving and restarts. A crash between any two words leaves an odd generation, which is a free slot.
//
// Everything here is called by the core's thread but RunFill, which movers call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "arena/geometry.h"
#include "arena/index.h"
#include "arena/layout.h"
#include "base/assert.h"
#include "record/seal.h"
#include "record/verified_copy.h"

namespace cistern::arena {

// Stores `bytes` as shared words; its length is a multiple of 8, as is the target's address.
template <class W>
void StoreWords(W& words, std::byte* shared, std::span<const std::byte> bytes) {
  CISTERN_ASSERT(bytes.size() % 8 == 0);
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t value;
    std::memcpy(&value, bytes.data() + at, 8);
    words.Store(reinterpret_cast<std::uint64_t*>(shared + at), value);
  }
}

// Loads shared words whose consistency another word guards.
template <class W>
void LoadWords(W& words, const std::byte* shared, std::span<std::byte> bytes) {
  CISTERN_ASSERT(bytes.size() % 8 == 0);
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t value = words.LoadRelaxed(reinterpret_cast<const std::uint64_t*>(shared + at));
    std::memcpy(bytes.data() + at, &value, 8);
  }
}

// ---- chunks ----------------------------------------------------------------------------------------------

// Takes headers [first, first + count) out of whatever chunk they belonged to, which must lie inside them
// whole. No slot in it has an even generation and nobody holds one.
template <class W>
void Uncarve(W& words, const ArenaSpace& arena, std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t i = first; i < first + count; ++i) {
    std::uint64_t* carve = &arena.header(i)->carve;
    words.Store(carve, words.LoadRelaxed(carve) | 1);
  }
  words.StoreFence();
}

// The chunk header's facts of the chunk that begins there, for recovery to believe.
inline std::uint64_t ChunkCheck(std::uint64_t first, std::uint64_t carve, std::uint64_t slot_bytes,
                                std::uint64_t chunk_headers) {
  std::uint64_t words[4] = {first, carve, slot_bytes, chunk_headers};
  return record::Crc32c(words, sizeof(words));
}

// Makes one chunk of them, with slots of `slot_bytes` (IsSlotSize). At most 4 touches a header: the slots'
// generations are left as they are, odd or never used.
template <class W>
void Carve(W& words, const ArenaSpace& arena, std::uint32_t first, std::uint32_t count,
           std::uint64_t slot_bytes) {
  CISTERN_ASSERT(IsSlotSize(arena.geometry(), slot_bytes, count));
  Uncarve(words, arena, first, count);
  for (std::uint32_t i = first; i < first + count; ++i) words.Store(&arena.header(i)->part_of, first);
  ChunkHeader* chunk = arena.header(first);
  words.Store(&chunk->slot_bytes, slot_bytes);
  words.Store(&chunk->chunk_headers, count);
  std::uint64_t carve = words.LoadRelaxed(&chunk->carve) + 1;
  words.Store(&chunk->check, ChunkCheck(first, carve, slot_bytes, count));
  words.StoreRelease(&chunk->carve, carve);
}

// ---- slots -----------------------------------------------------------------------------------------------

// Makes the slot unreadable before its bytes change; returns the (even) generation that the record will have.
template <class W>
std::uint64_t BeginFill(W& words, const ArenaSpace& arena, Place place) {
  std::uint64_t* generation = arena.generation(place);
  std::uint64_t odd = words.LoadRelaxed(generation) | 1;
  words.Store(generation, odd);
  words.StoreFence();
  return odd + 1;
}

// What a mover does for a put or a move: copies `from`, a part or a stretch of it that begins with a segment,
// to `to` in a slot and leaves each segment's CRC32C in `crcs` (SegmentsOfPart of the sum of the pieces).
struct FillJob {
  std::byte* to = nullptr;
  std::span<const std::span<const std::byte>> from;
  std::span<std::uint32_t> crcs;
};

// Ends with the fence of R2 on the thread that stored; afterwards any thread may publish.
template <class W>
void RunFill(W& words, const FillJob& job) {
  std::byte* to = job.to;
  std::size_t segment = 0, filled = 0;
  std::uint32_t crc = 0;
  for (std::span<const std::byte> piece : job.from) {
    while (!piece.empty()) {
      std::size_t bytes =
          record::kSegmentBytes - filled < piece.size() ? record::kSegmentBytes - filled : piece.size();
      crc = words.CopyIn(to, piece.data(), bytes, crc, piece.size() - bytes);
      piece = piece.subspan(bytes);
      to += bytes;
      filled += bytes;
      if (filled < record::kSegmentBytes) continue;
      job.crcs[segment++] = crc;
      filled = 0;
      crc = 0;
    }
  }
  if (filled > 0) job.crcs[segment++] = crc;
  CISTERN_ASSERT(segment == job.crcs.size());
  words.StoreFence();
}

// A slot's facts about its record besides the bytes.
struct NewRecord {
  record::Seal seal;
  std::uint64_t sequence = 0;
  std::uint64_t born = 0;
  std::uint32_t expiry = 0;
  std::uint64_t conversation = 0;
};

// The stamp of a record in memory names the place and, as epoch, the generation: a record that lies elsewhere
// or was made for an earlier use of the slot is not this one, whatever its seal says.
inline record::Stamp StampInMemory(Place place, std::uint64_t generation, const NewRecord& record) {
  return {.region = place,
          .region_epoch = generation,
          .sequence = record.sequence,
          .born = record.born,
          .expiry = record.expiry,
          .conversation = record.conversation};
}

// The CRC of an entry that lies at `place`.
inline std::uint32_t DirectoryCrc(const DirectoryEntry& entry, Place place) {
  return record::Crc32c(&entry, offsetof(DirectoryEntry, crc), place);
}

inline DirectoryEntry DirectoryOf(Place place, std::uint64_t generation, std::uint64_t body_bytes,
                                  const NewRecord& record) {
  DirectoryEntry entry{};
  std::memcpy(entry.key.data(), record.seal.key.bytes.data(), entry.key.size());
  std::memcpy(entry.parent.data(), record.seal.parent.bytes.data(), entry.parent.size());
  entry.key_bytes = record.seal.key.length;
  entry.parent_bytes = record.seal.parent.length;
  entry.group = record.seal.group;
  entry.incarnation = record.seal.incarnation;
  entry.body_bytes = static_cast<std::uint32_t>(body_bytes);
  entry.expiry = record.expiry;
  entry.born = record.born;
  entry.generation = generation;
  entry.sequence = record.sequence;
  entry.conversation = record.conversation;
  entry.parts = static_cast<std::uint32_t>(record.seal.part_bytes.size());
  entry.crc = DirectoryCrc(entry, place);
  return entry;
}

// Seal and stamp behind the body; only the trailer's own bytes, not the rest of its alignment unit.
template <class W>
void StoreTrailer(W& words, const ArenaSpace& arena, Place place, std::uint64_t generation,
                  std::uint64_t body_bytes, const NewRecord& record) {
  alignas(8) std::array<std::byte, RoundUp(record::kMaxTrailerBytes, 8)> buffer;
  auto parts = static_cast<std::uint32_t>(record.seal.part_bytes.size());
  auto segments = static_cast<std::uint32_t>(record.seal.segment_crcs.size());
  std::span trailer = std::span(buffer).first(RoundUp(record::TrailerBytes(segments, parts), 8));
  record::EncodeTrailer(record.seal, StampInMemory(place, generation, record), trailer);
  StoreWords(words, arena.slot(place) + record::TrailerOffset(body_bytes, arena.geometry().alignment),
             trailer);
}

// `generation` is what BeginFill returned; every mover that stored into the slot has fenced and reported
// back. The record fits the slot.
template <class W>
void Publish(W& words, const ArenaSpace& arena, Place place, std::uint64_t generation,
             const NewRecord& record) {
  CISTERN_ASSERT(words.LoadRelaxed(arena.generation(place)) == generation - 1);
  const std::uint64_t body_bytes = record::BodyBytesOf(record.seal);
  StoreTrailer(words, arena, place, generation, body_bytes, record);
  DirectoryEntry entry = DirectoryOf(place, generation, body_bytes, record);
  StoreWords(words, reinterpret_cast<std::byte*>(arena.directory(place)),
             std::as_bytes(std::span(&entry, 1)));
  words.StoreRelease(arena.generation(place), generation);
}

// As Publish, for readers that are told of the place alone: some segments of the body are present and stored
// to no more, and others that the seal names may follow. The directory entry is none, so that a restart
// finds no record here.
template <class W>
void PublishPassing(W& words, const ArenaSpace& arena, Place place, std::uint64_t generation,
                    const NewRecord& record) {
  CISTERN_ASSERT(words.LoadRelaxed(arena.generation(place)) == generation - 1);
  words.Store(&arena.directory(place)->generation, 0);  // a node may have been killed as it published here
  StoreTrailer(words, arena, place, generation, record::BodyBytesOf(record.seal), record);
  words.StoreRelease(arena.generation(place), generation);
}

// Ends the record. Its index entry was cleared before (R9). The directory entry stops to be one first: the
// odd generation differs from the record's in a single bit, and a flip of that must not bring it back at a
// restart.
template <class W>
void Retire(W& words, const ArenaSpace& arena, Place place) {
  words.Store(&arena.directory(place)->generation, 0);
  std::uint64_t* generation = arena.generation(place);
  words.StoreRelease(generation, words.LoadRelaxed(generation) | 1);
}

// ---- header ----------------------------------------------------------------------------------------------

// Headers, from the first on, that have memory; what follows is room to grow into.
template <class W>
std::uint32_t ServedHeaders(W& words, const ArenaView& arena) {
  const std::uint64_t served = words.LoadRelaxed(&arena.header()->served_headers);
  const std::uint32_t all = arena.geometry().header_count;
  return served == 0 || served > all ? all : static_cast<std::uint32_t>(served);
}

// Of headers that get memory: before the first of them is carved. Of headers that are to lose it: after the
// last slot in them was freed and before it goes.
template <class W>
void SetServedHeaders(W& words, const ArenaSpace& arena, std::uint32_t headers) {
  CISTERN_ASSERT(headers > 0 && headers <= arena.geometry().header_count);
  // Generations of headers that were served once stay for ever.
  std::uint64_t* most = &arena.header()->most_headers;
  const std::uint32_t before = ServedHeaders(words, arena);
  for (const std::uint32_t served : {before, headers}) {
    if (words.LoadRelaxed(most) < served) words.Store(most, std::uint64_t{served});
  }
  words.StoreRelease(&arena.header()->served_headers, std::uint64_t{headers});
}

// R10: time does not go back over the arena's life. Returns the later of the two.
template <class W>
std::uint64_t AdvanceTime(W& words, const ArenaSpace& arena, std::uint64_t wall_s) {
  std::uint64_t* high_water = &arena.header()->high_water_time;
  std::uint64_t before = words.LoadRelaxed(high_water);
  if (wall_s <= before) return before;
  words.StoreRelease(high_water, wall_s);
  return wall_s;
}

// Strict namespaces: up to when they are read, on the boot clock.
template <class W>
void SetValidUntil(W& words, const ArenaSpace& arena, std::int64_t boot_ns) {
  words.StoreRelease(&arena.header()->valid_until, static_cast<std::uint64_t>(boot_ns < 0 ? 0 : boot_ns));
}

// `boot_ns` was read after the call began: then no read that begins later than the term's end passes.
template <class W>
bool IsValid(W& words, const ArenaView& arena, std::int64_t boot_ns) {
  return static_cast<std::uint64_t>(boot_ns) < words.Load(&arena.header()->valid_until);
}

template <class W>
void SetIncarnation(W& words, const IndexSpace& index, std::uint32_t namespace_slot,
                    std::uint64_t incarnation) {
  words.StoreRelease(&index.header()->incarnations[namespace_slot], incarnation);
}

}  // namespace cistern::arena
