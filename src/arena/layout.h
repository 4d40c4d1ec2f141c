// SPDX-License-Identifier: Apache-2.0
// What the processes of a host share: the arena file (header, chunk headers, slots) and the index file. One
// writer, the node; any number of readers with read-only mappings. docs/formats/arena.md says why each field
// is there. All words are little-endian and 8-byte aligned; all access goes through Words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cistern/key.h"

namespace cistern::arena {

inline constexpr std::uint64_t kArenaMagic = 0x414e4552'41534943;  // "CISARENA" in memory
inline constexpr std::uint64_t kIndexMagic = 0x58444e49'53494343;  // "CCISINDX" in memory
inline constexpr std::uint64_t kFormatVersion = 1;
inline constexpr std::uint64_t kUnitBytes = 4096;             // a generation stands for each
inline constexpr std::uint64_t kHeaderSpanBytes = 32u << 20;  // the bytes one header covers
inline constexpr std::uint64_t kUnitsPerHeader = kHeaderSpanBytes / kUnitBytes;
inline constexpr std::uint32_t kMinSlotsPerChunk = 8;

// First page of the arena file. `magic` is written last, so a file without it was never an arena.
struct ArenaHeader {
  std::uint64_t magic;
  std::uint64_t version;
  std::uint64_t alignment;        // of records, bytes: 512 or 4096; fixed at creation
  std::uint64_t header_count;     // 32 MiB spans, room included; the file is header + headers + spans
  std::uint64_t high_water_time;  // Unix seconds, never goes back (R10); readers load it once a call
  std::uint64_t boot_count;       // starts of a node on this file; a lease belongs to one
  std::uint64_t node_alive;       // boot_count while a node serves, 0 after an orderly end
  // What the node that used it last knew of its journal; all 0 before any did (docs/formats/journal.md).
  std::uint64_t journal_id;
  std::uint64_t journal_state;
  std::uint64_t journal_bytes;
  std::uint64_t journal_ended;
  std::uint64_t served_headers;  // spans from the first on that have memory; 0: all. The others are room
  std::uint64_t most_headers;    // the most of them that there were, where served_headers is not 0
  // Nanoseconds of the host's boot clock up to which the node's membership of its cell stands: strict
  // namespaces are read no longer than that. 0: of nodes from before the field, or it does not stand.
  std::uint64_t valid_until;
  // Checks the journal's id, state and bytes above; 0: of nodes from before the field.
  std::uint64_t journal_check;
  std::uint64_t reserved[497];
};
static_assert(sizeof(ArenaHeader) == 4096);

// One slot's identity for recovery (R1): believed as a seal is, when its CRC holds and `generation` is the
// slot's even generation. Stored word by word while the generation is odd.
struct DirectoryEntry {
  std::array<std::byte, 32> key;
  std::array<std::byte, 32> parent;
  std::uint8_t key_bytes;
  std::uint8_t parent_bytes;  // 0: the chain's first block
  std::uint16_t group;
  std::uint32_t reserved;     // 0
  std::uint64_t incarnation;  // of the namespace
  std::uint32_t body_bytes;
  std::uint32_t expiry;  // Unix seconds, 0 never
  std::uint64_t born;
  std::uint64_t generation;
  std::uint64_t sequence;
  std::uint64_t conversation;
  std::uint32_t parts;
  std::uint32_t
      crc;  // CRC32C of the 124 bytes before it, continued from the place: an entry counts only where it lies
};
static_assert(sizeof(DirectoryEntry) == 128);

// One header for each 32 MiB. A chunk larger than that uses the first header it covers for carve and slot
// size; the others name that header in part_of and keep their own carve odd. Generations and directory
// entries stand at the unit in which a slot starts, in the header that covers the unit, whatever the chunk's
// size; a slot has at least one unit, so no two slots share one.
struct ChunkHeader {
  std::uint64_t carve;          // even: the first header of a chunk; odd or 0: not, or being carved
  std::uint64_t slot_bytes;     // of the chunk that begins here
  std::uint64_t chunk_headers;  // headers (32 MiB spans) that it covers
  std::uint64_t part_of;        // index of the chunk's first header; its own index for the first
  std::uint64_t
      check;  // CRC32C of first header, even carve, slot_bytes, chunk_headers: recovery believes those
  std::uint64_t reserved[507];
  std::uint64_t generations[kUnitsPerHeader];  // 0: never filled; odd: free or being filled; even: whole
  DirectoryEntry directory[kUnitsPerHeader];
};
static_assert(sizeof(ChunkHeader) == 4096 + kUnitsPerHeader * (8 + 128));

// A hint of where a record is (R1). Four words; word 0 is zero in an empty entry and is written last and
// cleared first. `place` counts alignment units from the start of the slots.
struct IndexEntry {
  std::uint64_t fingerprint[2];   // of (incarnation, group, key); word 0 never 0
  std::uint64_t place_and_bytes;  // place << 32 | body bytes
  std::uint64_t rest;             // expiry << 32 | generation low 24 bits << 8
};
static_assert(sizeof(IndexEntry) == 32);

inline constexpr std::uint32_t kEntriesPerBucket = 32;
inline constexpr std::uint32_t kMaxNamespaces = 1024;

// First pages of the index file; the buckets follow at kIndexBucketsOffset.
struct IndexHeader {
  std::uint64_t magic;
  std::uint64_t version;
  std::uint64_t bucket_count;
  std::uint64_t reserved[509];
  std::uint64_t
      incarnations[kMaxNamespaces];  // by namespace slot; 0: not in use; changes with a namespace drop
};
inline constexpr std::uint64_t kIndexBucketsOffset = 16384;
static_assert(sizeof(IndexHeader) <= kIndexBucketsOffset);

}  // namespace cistern::arena
