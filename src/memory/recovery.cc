// SPDX-License-Identifier: Apache-2.0
#include "memory/recovery.h"

#include <algorithm>
#include <cstring>

#include "arena/protocol.h"
#include "record/seal.h"

namespace cistern::memory {
namespace {

constexpr std::uint64_t kAhead = 8;

bool ReadKey(const std::array<std::byte, 32>& bytes, std::uint8_t length, bool may_be_none, BlockKey* key) {
  if (length == 0) return may_be_none;
  if (length < BlockKey::kMinBytes || length > BlockKey::kMaxBytes) return false;
  key->length = length;
  std::memcpy(key->bytes.data(), bytes.data(), length);
  return true;
}

}  // namespace

Recovery::Recovery(arena::Words& words, Slots& slots) : words_(words), slots_(slots), arena_(slots.arena()) {}

std::size_t Recovery::Next(std::span<RecoveredBlock> blocks) {
  const arena::Geometry& geometry = arena_.geometry();
  std::size_t found = 0;
  std::uint64_t looks = 16 * blocks.size();
  while (!done() && looks > 0 && found < blocks.size()) {
    looks--;
    if (stage_ == Stage::kEnter) {
      EnterHeader();
      continue;
    }
    if (stage_ == Stage::kSweep) {
      const std::uint64_t generation = words_.LoadRelaxed(&arena_.header(header_)->generations[next_]);
      if (generation != 0 && generation % 2 == 0) {
        arena::Retire(words_, arena_,
                      geometry.place(header_ * arena::kHeaderSpanBytes + next_ * arena::kUnitBytes));
      }
      if (++next_ == arena::kUnitsPerHeader) LeaveHeader(1);
      continue;
    }
    const arena::Place place = geometry.place(header_ * arena::kHeaderSpanBytes + next_ * size_.bytes);
    const std::uint64_t generation = words_.Load(arena_.generation(place));
    PrefetchSlot(next_ + kAhead);
    if (generation != 0 && generation % 2 == 0) {
      if (Believe(place, generation, &blocks[found]) && slots_.AdoptUsed(place)) {
        counts_.believed++;
        counts_.last_sequence = std::max(counts_.last_sequence, blocks[found].sequence);
        counts_.last_born = std::max(counts_.last_born, blocks[found].born);
        found++;
      } else {
        counts_.refused++;
        arena::Retire(words_, arena_, place);
      }
    }
    if (++next_ == size_.chunk_headers * arena::kHeaderSpanBytes / size_.bytes)
      LeaveHeader(size_.chunk_headers);
  }
  return found;
}

// Entries of slots that follow each other are too far apart for the processor to guess.
void Recovery::PrefetchSlot(std::uint64_t slot) const {
  const arena::Place place = arena_.geometry().place(header_ * arena::kHeaderSpanBytes + slot * size_.bytes);
  if ((slot + 1) * size_.bytes > size_.chunk_headers * arena::kHeaderSpanBytes) return;
  const arena::DirectoryEntry* entry = arena_.directory(place);
  __builtin_prefetch(entry);
  __builtin_prefetch(reinterpret_cast<const std::byte*>(entry) + 64);
}

void Recovery::EnterHeader() {
  const arena::ChunkHeader* header = arena_.header(header_);
  const std::uint64_t carve = words_.Load(&header->carve);
  const std::uint64_t slot_bytes = words_.LoadRelaxed(&header->slot_bytes);
  const std::uint64_t chunk_headers = words_.LoadRelaxed(&header->chunk_headers);
  const std::uint64_t check = words_.LoadRelaxed(&header->check);
  const std::uint64_t part_of = words_.LoadRelaxed(&header->part_of);
  next_ = 0;
  if (carve != 0 && carve % 2 == 0) {
    size_ = {slot_bytes, static_cast<std::uint32_t>(chunk_headers)};
    bool believed = chunk_headers <= slots_.headers() - header_ &&
                    check == arena::ChunkCheck(header_, carve, slot_bytes, chunk_headers);
    // Readers find the chunk through these.
    for (std::uint64_t i = 0; believed && i < chunk_headers; ++i) {
      believed =
          words_.LoadRelaxed(&arena_.header(header_ + static_cast<std::uint32_t>(i))->part_of) == header_;
    }
    if (believed && slots_.AdoptChunk(header_, size_)) {
      stage_ = Stage::kChunk;
      return;
    }
    counts_.damaged_chunks++;
    arena::Uncarve(words_, arena_, header_, 1);
  }
  // A header that was used and has no chunk has odd generations alone, unless it was damaged: an even one
  // that is left would make a dropped block readable when the header is carved like that again.
  const bool never_used = (carve | slot_bytes | chunk_headers | check | part_of) == 0;
  if (never_used) {
    LeaveHeader(1);
  } else {
    stage_ = Stage::kSweep;
  }
}

void Recovery::LeaveHeader(std::uint32_t headers) {
  header_ += headers;
  next_ = 0;
  stage_ = Stage::kEnter;
}

bool Recovery::Believe(arena::Place place, std::uint64_t generation, RecoveredBlock* block) {
  arena::DirectoryEntry entry;
  arena::LoadWords(words_, reinterpret_cast<const std::byte*>(arena_.directory(place)),
                   std::as_writable_bytes(std::span(&entry, 1)));
  if (entry.crc != arena::DirectoryCrc(entry, place) || entry.generation != generation) {
    // Of a record that was retired, or of none: a partial copy's slot.
    counts_.damaged += entry.generation == 0 ? 0 : 1;
    return false;
  }
  *block = {};
  if (!ReadKey(entry.key, entry.key_bytes, false, &block->key)) return false;
  if (!ReadKey(entry.parent, entry.parent_bytes, true, &block->parent)) return false;
  if (entry.parts == 0 || entry.parts > record::kMaxParts) return false;
  if (!arena::CheckPlace(words_, arena_, place, entry.body_bytes)) return false;
  block->place = place;
  block->generation = generation;
  block->group = entry.group;
  block->parts = static_cast<std::uint16_t>(entry.parts);
  block->incarnation = entry.incarnation;
  block->body_bytes = entry.body_bytes;
  block->expiry = entry.expiry;
  block->born = entry.born;
  block->sequence = entry.sequence;
  block->conversation = entry.conversation;
  return true;
}

}  // namespace cistern::memory
