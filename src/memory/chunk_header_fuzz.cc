// SPDX-License-Identifier: Apache-2.0
// Headers, generations, directory, index and trailers that hold anything: recovery and reader must stay
// inside the arena, and what they accept must have checked. The input is a list of writes of words, some of
// which are made to fit so that the fuzzer gets past the checksums.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "arena/match.h"
#include "arena/protocol.h"
#include "arena/reader.h"
#include "arena/test_arena.h"
#include "memory/recovery.h"

namespace cistern::memory {
namespace {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  std::uint64_t Take(std::size_t bytes) {
    std::uint64_t value = 0;
    std::size_t count = bytes < left_ ? bytes : left_;
    std::memcpy(&value, data_, count);
    data_ += count;
    left_ -= count;
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

class Arena {
 public:
  void Run(Input input) {
    // What recovery and slots change by themselves: each run begins alike.
    for (std::uint32_t i = 0; i < kHeaders; ++i) {
      arena::ChunkHeader* header = node_.arena.header(i);
      for (auto* word :
           {&header->carve, &header->slot_bytes, &header->chunk_headers, &header->part_of, &header->check}) {
        Set(word, *word);
      }
    }
    while (!input.empty()) Write(input);
    Look();
    while (!before_.empty()) {
      *before_.back().first = before_.back().second;
      before_.pop_back();
    }
  }

 private:
  static constexpr std::uint32_t kHeaders = 3;

  void Set(std::uint64_t* word, std::uint64_t value) {
    before_.emplace_back(word, *word);
    *word = value;
  }

  void Write(Input& input) {
    std::uint64_t what = input.Take(1);
    arena::ChunkHeader* header = node_.arena.header(static_cast<std::uint32_t>(what >> 4) % kHeaders);
    std::uint64_t unit = input.Take(2) % arena::kUnitsPerHeader;
    if (what & 8) unit = unit % 32 * (node_.slot_bytes / arena::kUnitBytes);
    switch (what & 7) {
      case 0: Set(&header->carve, input.Take(2)); break;
      case 1: Set(&header->slot_bytes, input.Take(3) * 512); break;
      case 2: Set(&header->chunk_headers, input.Take(what & 8 ? 8 : 1)); break;
      case 3: Set(&header->part_of, input.Take(what & 8 ? 8 : 1)); break;
      case 4: Set(&header->generations[unit], input.Take(what & 8 ? 1 : 8)); break;
      case 5: {  // a check that fits
        std::uint64_t first = static_cast<std::uint64_t>(what >> 4) % kHeaders;
        Set(&header->check,
            arena::ChunkCheck(first, header->carve, header->slot_bytes, header->chunk_headers));
        break;
      }
      case 6: WriteEntry(input, header, static_cast<std::uint32_t>(what >> 4) % kHeaders, unit); break;
      case 7: {
        arena::IndexEntry* entry = node_.index.entry(input.Take(2) % node_.index.entry_count());
        arena::Fingerprint fingerprint =
            arena::FingerprintOf(arena::kTestIncarnation, 0, arena::TestKey(input.Take(1) % 4));
        if (what & 8) entry = node_.index.entry(node_.index.bucket(fingerprint, 0) + input.Take(1) % 32);
        Set(&entry->fingerprint[0], fingerprint.words[0]);
        Set(&entry->fingerprint[1], fingerprint.words[1]);
        Set(&entry->place_and_bytes, input.Take(8));
        Set(&entry->rest, input.Take(8));
        break;
      }
    }
  }

  // A directory entry of anything, with a CRC that fits.
  void WriteEntry(Input& input, arena::ChunkHeader* header, std::uint32_t number, std::uint64_t unit) {
    arena::DirectoryEntry entry{};
    entry.key_bytes = static_cast<std::uint8_t>(input.Take(1));
    entry.parent_bytes = static_cast<std::uint8_t>(input.Take(1));
    entry.body_bytes = static_cast<std::uint32_t>(input.Take(4));
    entry.parts = static_cast<std::uint32_t>(input.Take(2));
    entry.generation = input.Take(1);
    entry.crc = arena::DirectoryCrc(
        entry, node_.arena.geometry().place(number * arena::kHeaderSpanBytes + unit * arena::kUnitBytes));
    std::uint64_t words[sizeof(entry) / 8];
    std::memcpy(words, &entry, sizeof(entry));
    auto* shared = reinterpret_cast<std::uint64_t*>(&header->directory[unit]);
    for (std::size_t i = 0; i < std::size(words); ++i) Set(shared + i, words[i]);
    Set(&header->generations[unit], entry.generation);
  }

  void Look() {
    arena::Reader<arena::RealWords> reader(words_, node_.arena, node_.index);
    arena::ReadCall call = reader.Begin(0, 0);
    static arena::OpenRecord record;
    std::byte to[64];
    std::vector<BlockKey> keys;
    for (std::uint64_t i = 0; i < 4; ++i) {
      std::span<std::byte> pieces[] = {to};
      arena::RangeCopy ranges[] = {{{0, 0, sizeof(to)}, pieces}};
      keys.push_back(arena::TestKey(i));
      reader.Read(call, {keys.back()}, nullptr, ranges, record);
    }
    arena::MatchGroup groups[] = {{0, 0}, {1, 2}};
    arena::MatchPrefix(reader, call, keys, groups);

    Slots slots(words_, node_.arena);
    Recovery recovery(words_, slots);
    RecoveredBlock blocks[16];
    while (!recovery.done()) {
      std::size_t count = recovery.Next(blocks);
      for (std::size_t i = 0; i < count; ++i) {
        if (!slots.used(blocks[i].place)) std::abort();
        if (!arena::CheckPlace(words_, node_.arena, blocks[i].place, blocks[i].body_bytes)) std::abort();
        arena::OpenAt(words_, node_.arena, blocks[i].place, blocks[i].body_bytes, blocks[i].parts, record);
        arena::Retire(words_, node_.arena, blocks[i].place);
        slots.Free(blocks[i].place);
      }
    }
    slots.EndAdoption();
    if (slots.counts().free_headers != slots.counts().headers) std::abort();
    while (slots.Allocate(record::RecordBytes(1 << 20, 4096))) {
    }
  }

  arena::RealWords words_;
  arena::TestArena<arena::RealWords> node_{words_, 8192, {4096, kHeaders}};
  std::vector<std::pair<std::uint64_t*, std::uint64_t>> before_;
};

}  // namespace
}  // namespace cistern::memory

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static cistern::memory::Arena arena;
  arena.Run({data, size});
  return 0;
}
