// SPDX-License-Identifier: Apache-2.0
// The one reader (R1): every process that reads records out of an arena, the node's own core included, does
// it here. It needs no lock and no message to the writer, and what it returns is exact or a miss:
//
//   (1) index entry -> place and length, range-checked       (2) carve and generation, odd is a miss
//   (3) trailer copied out, checked, compared                (4) body copied with check against that seal
//   (5) fence, carve and generation again: equal, or it starts over; three tries
//
// No call allocates, blocks or throws. A Reader is a value of a few words; each thread has its own scratch
// (OpenRecord).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "arena/geometry.h"
#include "arena/index.h"
#include "arena/layout.h"
#include "arena/protocol.h"
#include "base/assert.h"
#include "cistern/key.h"
#include "record/seal.h"
#include "record/segments.h"

namespace cistern::arena {

enum class ReadOutcome : std::uint8_t {
  kHit,
  kMiss,        // not here, no longer, or changed under each of three tries
  kBad,         // damaged, while the slot did not change: to be reported to the core
  kOutOfRange,  // the record is here and the asked range is not inside it
};

// What a reader loads once a call.
struct ReadCall {
  std::uint64_t incarnation = 0;  // of the namespace; 0: it is gone
  std::uint64_t now_s = 0;        // the later of the wall clock and the arena's high-water time
};

struct AskedBlock {
  const BlockKey& key;
  std::uint16_t group = 0;
  std::uint16_t parts = 1;  // of the group's blocks, as the namespace's spec says
};

// A range of a part and where it goes: the pieces' sizes sum up to range.bytes.
struct RangeCopy {
  record::PartRange range;
  std::span<const std::span<std::byte>> pieces;
};

// A record whose seal and stamp were proved, and the scratch that they were proved in: `seal` points into
// `trailer`, so it stays where it is. Large (a trailer's bound); reused, not made for each read.
struct OpenRecord {
  OpenRecord() = default;
  OpenRecord(const OpenRecord&) = delete;
  OpenRecord& operator=(const OpenRecord&) = delete;

  Place place = 0;
  std::uint64_t generation = 0;
  CheckedSlot slot;
  record::SealView seal;
  record::Stamp stamp;
  alignas(64) std::array<std::byte, RoundUp(record::kMaxTrailerBytes, 64)> trailer;
};

// Steps (2) and (3) for the record of `body_bytes` that is said to lie at `place`, made of `parts` parts,
// whatever record that is. kMiss: no slot, an odd generation, or a record that is not this place's and
// generation's. kBad: seal or stamp does not check. record.slot and record.generation are set unless there is
// no slot; the generation is 0 then.
template <class W>
ReadOutcome OpenAt(W& words, const ArenaView& arena, Place place, std::uint64_t body_bytes,
                   std::uint32_t parts, OpenRecord& record) {
  record.place = place;
  record.generation = 0;
  std::optional<CheckedSlot> slot = CheckPlace(words, arena, place, body_bytes);
  if (!slot) return ReadOutcome::kMiss;
  record.slot = *slot;
  record.generation = words.Load(arena.generation(place));
  if (record.generation == 0 || record.generation % 2 != 0) return ReadOutcome::kMiss;

  std::uint64_t bytes = RoundUp(record::TrailerBoundBytes(body_bytes, parts), 8);
  if (bytes > slot->trailer_room) bytes = slot->trailer_room;
  if (bytes > record.trailer.size()) return ReadOutcome::kMiss;
  std::span trailer = std::span(record.trailer).first(bytes);
  LoadWords(words, arena.slot(place) + slot->trailer_offset, trailer);
  auto seal = record::CheckSeal(trailer);
  if (!seal) return ReadOutcome::kBad;
  auto stamp = record::CheckStamp(trailer, *seal);
  if (!stamp) return ReadOutcome::kBad;
  if (stamp->region != place || stamp->region_epoch != record.generation) return ReadOutcome::kMiss;
  if (seal->body_bytes() != body_bytes) return ReadOutcome::kMiss;
  record.seal = *seal;
  record.stamp = *stamp;
  return ReadOutcome::kHit;
}

// Whether every segment of an opened record has the CRC that its seal says.
template <class W>
bool BodySound(W& words, const ArenaView& arena, const OpenRecord& record) {
  const std::byte* body = arena.slot(record.place);
  return record::SegmentsSound(
      record.seal, record::Segments(record.seal),
      [&](std::uint64_t offset, std::uint64_t bytes) { return words.Checksum(body + offset, bytes, 0); });
}

// Steps of the protocol. Tests name another policy to prove that leaving one out is found.
struct SoundReads {
  static constexpr bool kCheckBody = true;
  static constexpr bool kRecheck = true;
};

template <class W, class Policy = SoundReads>
class Reader final {
 public:
  static constexpr int kTries = 3;

  // `words` is borrowed.
  Reader(W& words, ArenaView arena, IndexView index) : words_(&words), arena_(arena), index_(index) {}

  const ArenaView& arena() const { return arena_; }
  const IndexView& index() const { return index_; }
  // Of slots that the node gives out now, or gave until a moment ago.
  std::uint64_t memory_bytes() const { return ServedHeaders(*words_, arena_) * kHeaderSpanBytes; }

  // namespace_slot < kMaxNamespaces
  ReadCall Begin(std::uint32_t namespace_slot, std::uint64_t wall_s) const {
    CISTERN_ASSERT(namespace_slot < kMaxNamespaces);
    ReadCall call;
    call.incarnation = words_->Load(&index_.header()->incarnations[namespace_slot]);
    std::uint64_t high_water = words_->Load(&arena_.header()->high_water_time);
    call.now_s = wall_s > high_water ? wall_s : high_water;
    return call;
  }

  // A hint: only Read or Open prove.
  std::optional<Found> Find(const ReadCall& call, std::uint16_t group, const BlockKey& key) const {
    if (call.incarnation == 0) return std::nullopt;
    std::optional<Found> found = FindEntry(*words_, index_, FingerprintOf(call.incarnation, group, key));
    if (found && found->expiry != 0 && call.now_s >= found->expiry) return std::nullopt;
    return found;
  }
  // Number of keys, from the first on, that have an entry; see index.h.
  std::size_t Run(const ReadCall& call, std::uint16_t group, std::span<const BlockKey> keys,
                  std::span<Found> found = {}) const {
    if (call.incarnation == 0) return 0;
    return LongestRun(*words_, index_, call.incarnation, group, keys, call.now_s, found);
  }
  // Prefetches the lines that Open will touch; for the next block while this one is copied.
  void Prefetch(const Found& found) const {
    const Geometry& geometry = arena_.geometry();
    if (geometry.offset(found.place) >= geometry.slots_bytes()) return;
    __builtin_prefetch(arena_.generation(found.place));
    const std::byte* trailer =
        arena_.slot(found.place) + record::TrailerOffset(found.body_bytes, geometry.alignment);
    for (int line = 0; line < 4; ++line) __builtin_prefetch(trailer + line * 64);
    words_->Ask(arena_.slot(found.place), found.body_bytes);
  }

  // Reads all the ranges, from one record, or nothing (then the destinations hold anything). `hint`, when not
  // null, is what Find or Run said about this block. Ends with the store fence, so that another thread that
  // is told may read the bytes.
  ReadOutcome Read(const ReadCall& call, const AskedBlock& block, const Found* hint,
                   std::span<const RangeCopy> ranges, OpenRecord& record) const {
    ReadOutcome result = ReadOutcome::kMiss;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      std::optional<Found> found = attempt == 0 && hint ? *hint : Find(call, block.group, block.key);
      if (!found) return ReadOutcome::kMiss;
      result = TryOpen(call, block, *found, record);
      for (std::size_t i = 0; i < ranges.size() && result == ReadOutcome::kHit; ++i) {
        result = CopyRange(record, ranges[i]);
      }
      words_->StoreFence();
      if (result != ReadOutcome::kMiss && StillGood(record)) return result;
    }
    return ReadOutcome::kMiss;
  }

  // For reads in steps: proves seal and stamp. After kHit any number of CopyRange calls; what they stored
  // counts once StillGood said so after the last of them.
  ReadOutcome Open(const ReadCall& call, const AskedBlock& block, const Found* hint,
                   OpenRecord& record) const {
    return Read(call, block, hint, {}, record);
  }

  // kHit, kOutOfRange or kBad; kBad means something only if StillGood afterwards. Streaming stores, no fence.
  ReadOutcome CopyRange(const OpenRecord& record, const RangeCopy& read) const {
    if (!record::InPart(record.seal, read.range)) return ReadOutcome::kOutOfRange;
    const bool sound = record::CopySegments<Policy::kCheckBody>(*words_, arena_.slot(record.place),
                                                                record.seal, read.range, read.pieces);
    return sound ? ReadOutcome::kHit : ReadOutcome::kBad;
  }

  // True if the slot is still as Open found it.
  bool StillGood(const OpenRecord& record) const {
    if (!Policy::kRecheck) return true;
    words_->LoadFence();
    return words_->Load(&arena_.header(record.slot.first_header)->carve) == record.slot.carve &&
           words_->Load(arena_.generation(record.place)) == record.generation;
  }

  // True if bytes read through a view since it was granted count (promise 1): to be asked after use. False
  // for a place outside the arena.
  bool CheckView(Place place, std::uint64_t generation) const {
    if (arena_.geometry().offset(place) >= arena_.geometry().slots_bytes()) return false;
    words_->LoadFence();
    return words_->Load(arena_.generation(place)) == generation;
  }

 private:
  // Steps (2) and (3) for the block that is asked for. kBad only where the entry and the slot agree about the
  // generation: then nothing but damage explains a trailer that does not check. The caller still has to see
  // the slot unchanged.
  ReadOutcome TryOpen(const ReadCall& call, const AskedBlock& block, const Found& found,
                      OpenRecord& record) const {
    Prefetch(found);
    ReadOutcome outcome = OpenAt(*words_, arena_, found.place, found.body_bytes, block.parts, record);
    if ((record.generation & kGenerationLowMask) != found.generation_low) return ReadOutcome::kMiss;
    if (outcome != ReadOutcome::kHit) return outcome;
    const record::SealView& seal = record.seal;
    if (seal.incarnation() != call.incarnation || seal.group() != block.group || !seal.HasKey(block.key) ||
        record::Expired(record.stamp, call.now_s)) {
      return ReadOutcome::kMiss;
    }
    return ReadOutcome::kHit;
  }

  W* words_;
  ArenaView arena_;
  IndexView index_;
};

}  // namespace cistern::arena
