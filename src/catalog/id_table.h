// SPDX-License-Identifier: Apache-2.0
// A table from 64-bit key hashes to ids, four bytes each and without the key hash: the owner of the ids
// knows the key hashes. Made for tens of millions of ids that are added and removed one by one, so no call
// ever touches more than a few hundred of them: the key hash's high half chooses one of many subtables,
// whose number is fixed at the start so that a full one holds about 256, and each doubles by itself from 16
// when it is four fifths full. A full table takes about 8.5 bytes an id, no table more than about 10 an id
// present, but for the first few of a subtable.
//
// The bits of an entry that no id needs hold some of the key hash's, so that an entry of another key hash is
// rarely looked into further. Key hashes made equal on purpose make one subtable long and slow, and have no
// other effect: the store bounds how many blocks have one (OpenPuts::CheckHash).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/assert.h"
#include "catalog/slab.h"

namespace cistern::catalog {

// Memory of powers of two from 64 bytes to kMost, out of spans of 64 KiB that each serve one size. The
// pieces in use of a size always lie densely: when a piece is freed, the last one of its size moves into its
// place. So tables that double together leave no gaps. A span without a piece in use goes back to the
// system, and serves any size later.
class SpanPool final {
 public:
  static constexpr std::size_t kLeast = 64;
  static constexpr std::size_t kMost = 16 << 10;

  SpanPool() = default;
  SpanPool(const SpanPool&) = delete;
  SpanPool& operator=(const SpanPool&) = delete;

  // Memory that is not zeroed. Free reports the owner's number when the piece moves.
  void* Allocate(std::size_t bytes, std::uint32_t owner);
  // Frees a piece; the owner of the piece that moved into its place, kNoId for none.
  std::uint32_t Free(void* memory, std::size_t bytes);
  // Bytes of spans with a piece in use.
  std::size_t bytes() const { return spans_ * kSpanBytes; }

 private:
  static constexpr std::size_t kSpanBytes = 64 << 10;
  static constexpr std::size_t kAreaSpans = 64;
  static constexpr std::size_t kSizes = 9;

  // A span's pieces from its start, their owners from its end backwards.
  struct Size {
    std::vector<std::byte*> spans;
    std::uint32_t pieces = 0;
  };
  struct FreeMemory {
    void operator()(void* memory) const { std::free(memory); }
  };

  Size& SizeOf(std::size_t bytes);
  static std::uint32_t PiecesOf(std::size_t bytes) {
    return static_cast<std::uint32_t>(kSpanBytes / (bytes + sizeof(std::uint32_t)));
  }
  static std::uint32_t* Owner(std::byte* span, std::size_t piece) {
    return reinterpret_cast<std::uint32_t*>(span + kSpanBytes) - 1 - piece;
  }
  std::byte* NewSpan();

  std::array<Size, kSizes> sizes_;
  std::vector<std::byte*> idle_;  // given back to the system, or never used
  std::vector<std::unique_ptr<void, FreeMemory>> areas_;
  std::size_t next_area_spans_ = 1;
  std::size_t spans_ = 0;
};

// `KeyHashes` has `std::uint64_t key_hash(std::uint32_t id) const` and `void Prefetch(std::uint32_t id)
// const`, which prefetches the lines that key_hash(id) reads.
class IdTable final {
 public:
  // The number of ids for which the table is made. Ids are less than twice that, and some more.
  explicit IdTable(std::uint32_t most);
  ~IdTable();
  IdTable(const IdTable&) = delete;
  IdTable& operator=(const IdTable&) = delete;

  // The first id that may have this key hash and for which `is(id)` holds; kNoId when there is none.
  template <class Is>
  std::uint32_t Find(std::uint64_t key_hash, Is is) const {
    const Subtable& table = Of(key_hash);
    if (table.slots == nullptr) return kNoId;
    for (std::uint32_t at = Low(key_hash) & table.mask;; at = (at + 1) & table.mask) {
      const std::uint32_t slot = table.slots[at];
      if (slot == 0) return kNoId;
      if (((slot ^ Low(key_hash)) & ~id_mask_) != 0) continue;
      const std::uint32_t id = (slot & id_mask_) - 1;
      if (is(id)) return id;
    }
  }
  // Prefetches the line that Find reads first.
  void Prefetch(std::uint64_t key_hash) const {
    const Subtable& table = Of(key_hash);
    if (table.slots != nullptr) __builtin_prefetch(&table.slots[Low(key_hash) & table.mask]);
  }
  // The id is not in the table.
  template <class KeyHashes>
  void Add(std::uint32_t id, std::uint64_t key_hash, const KeyHashes& key_hashes) {
    CISTERN_ASSERT(id < id_mask_);
    Subtable& table = Of(key_hash);
    if (table.slots == nullptr || (table.used + 1) * 5 > (table.mask + 1) * 4) Double(table, key_hashes);
    Put(table, Low(key_hash) & table.mask, SlotOf(id, key_hash));
    ++table.used;
    ++size_;
  }
  // The id is in the table.
  template <class KeyHashes>
  void Remove(std::uint32_t id, std::uint64_t key_hash, const KeyHashes& key_hashes);

  std::uint32_t size() const { return size_; }
  // Bytes of memory in all.
  std::size_t bytes() const { return subtables_.size() * sizeof(Subtable) + pool_.bytes() + large_bytes_; }
  // Ids moved by the calls so far.
  std::uint64_t moved() const { return moved_; }

 private:
  static constexpr std::uint32_t kFullIds = 256;  // of a subtable
  static constexpr std::uint32_t kFirstSlots = SpanPool::kLeast / sizeof(std::uint32_t);
  static constexpr std::uint32_t kWave = 32;

  // An entry has an id plus one, 0 for none, and in its high bits some of the id's key hash.
  struct Subtable {
    std::uint32_t* slots;
    std::uint32_t mask;
    std::uint32_t used;
  };

  static std::uint32_t Low(std::uint64_t key_hash) { return static_cast<std::uint32_t>(key_hash); }
  Subtable& Of(std::uint64_t key_hash) { return subtables_[(key_hash >> 32) * subtables_.size() >> 32]; }
  const Subtable& Of(std::uint64_t key_hash) const {
    return subtables_[(key_hash >> 32) * subtables_.size() >> 32];
  }
  std::uint32_t SlotOf(std::uint32_t id, std::uint64_t key_hash) const {
    return (Low(key_hash) & ~id_mask_) | (id + 1);
  }
  void Put(const Subtable& table, std::uint32_t at, std::uint32_t slot) {
    while (table.slots[at] != 0) at = (at + 1) & table.mask;
    table.slots[at] = slot;
  }
  std::uint32_t* Allocate(std::size_t slots, const Subtable& owner);
  void Free(std::uint32_t* memory, std::size_t slots);
  template <class KeyHashes>
  void Double(Subtable& table, const KeyHashes& key_hashes);

  const std::uint32_t id_mask_;
  LazyArray<Subtable> subtables_;
  SpanPool pool_;
  std::size_t large_bytes_ = 0;
  std::uint32_t size_ = 0;
  std::uint64_t moved_ = 0;
};

template <class KeyHashes>
void IdTable::Double(Subtable& table, const KeyHashes& key_hashes) {
  const Subtable old = table;
  const std::uint32_t slots = old.slots == nullptr ? kFirstSlots : 2 * (old.mask + 1);
  table = {.slots = Allocate(slots, table), .mask = slots - 1, .used = old.used};
  std::fill_n(table.slots, slots, 0u);
  if (old.slots == nullptr) return;
  // Each id's key hash is a cache miss: a wave of them takes hardly longer than one.
  for (std::uint32_t from = 0; from <= old.mask; from += kWave) {
    const std::uint32_t end = std::min(from + kWave, old.mask + 1);
    for (std::uint32_t at = from; at < end; ++at) {
      if (old.slots[at] != 0) key_hashes.Prefetch((old.slots[at] & id_mask_) - 1);
    }
    for (std::uint32_t at = from; at < end; ++at) {
      if (old.slots[at] == 0) continue;
      Put(table, Low(key_hashes.key_hash((old.slots[at] & id_mask_) - 1)) & table.mask, old.slots[at]);
    }
  }
  moved_ += old.used;
  Free(old.slots, old.mask + std::size_t{1});
}

template <class KeyHashes>
void IdTable::Remove(std::uint32_t id, std::uint64_t key_hash, const KeyHashes& key_hashes) {
  Subtable& table = Of(key_hash);
  const std::uint32_t slot = SlotOf(id, key_hash);
  std::uint32_t hole = Low(key_hash) & table.mask;
  while (table.slots[hole] != slot) {
    CISTERN_ASSERT(table.slots[hole] != 0);
    hole = (hole + 1) & table.mask;
  }
  // Later entries move up where they stay reachable from their home, so that no tombstones pile up.
  for (std::uint32_t at = (hole + 1) & table.mask; table.slots[at] != 0; at = (at + 1) & table.mask) {
    const std::uint32_t home = Low(key_hashes.key_hash((table.slots[at] & id_mask_) - 1)) & table.mask;
    if (((at - home) & table.mask) < ((at - hole) & table.mask)) continue;
    table.slots[hole] = table.slots[at];
    hole = at;
  }
  table.slots[hole] = 0;
  --table.used;
  --size_;
}

}  // namespace cistern::catalog
