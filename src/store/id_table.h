// SPDX-License-Identifier: Apache-2.0
// Ids by 64-bit tags, four bytes each and no tag: whoever owns the ids knows the tags. Made for tens of
// millions of ids that come and go one by one, so no call ever touches more than a few hundred of them: the
// tag's high half chooses one of many subtables, whose number is fixed at the start so that a full one holds
// about 256, and each doubles by itself from 16 when it is four fifths full. A full table takes about 8.5
// bytes an id, none ever more than about 10 of those that are in it but for the first few a subtable.
//
// The bits of a slot that no id needs hold some of the tag's, so that a slot of another tag is rarely looked
// into further. Tags that whoever chooses them makes equal make one subtable long and slow, nothing else.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/assert.h"
#include "store/slab.h"

namespace cistern {

// Memory of powers of two from 64 bytes to kMost, out of spans of 64 KiB that each serve one size. What is
// used of a size always lies densely: where a piece is given back the last one of its size is moved into its
// place. So tables that double together leave nothing behind them. A span of which nothing is used goes back
// to the system, and serves any size later.
class SpanPool final {
 public:
  static constexpr std::size_t kLeast = 64;
  static constexpr std::size_t kMost = 16 << 10;

  SpanPool() = default;
  SpanPool(const SpanPool&) = delete;
  SpanPool& operator=(const SpanPool&) = delete;

  // Not zeroed. The owner's number is what Free says when the piece is moved.
  void* Allocate(std::size_t bytes, std::uint32_t owner);
  // The owner of what lies at `memory` from now on; kNoId when that is nobody.
  std::uint32_t Free(void* memory, std::size_t bytes);
  // Of spans of which something is used.
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

// `Tags` has `std::uint64_t tag(std::uint32_t id) const` and `void Prefetch(std::uint32_t id) const`, which
// asks ahead for what tag(id) looks at.
class IdTable final {
 public:
  // As many ids as that are served best. Ids are below twice as many, and some more.
  explicit IdTable(std::uint32_t most);
  ~IdTable();
  IdTable(const IdTable&) = delete;
  IdTable& operator=(const IdTable&) = delete;

  // The first id that may be of this tag for which `is(id)` holds; kNoId when there is none.
  template <class Is>
  std::uint32_t Find(std::uint64_t tag, Is is) const {
    const Subtable& table = Of(tag);
    if (table.slots == nullptr) return kNoId;
    for (std::uint32_t at = Low(tag) & table.mask;; at = (at + 1) & table.mask) {
      const std::uint32_t slot = table.slots[at];
      if (slot == 0) return kNoId;
      if (((slot ^ Low(tag)) & ~id_mask_) != 0) continue;
      const std::uint32_t id = (slot & id_mask_) - 1;
      if (is(id)) return id;
    }
  }
  // What Find looks at first.
  void Prefetch(std::uint64_t tag) const {
    const Subtable& table = Of(tag);
    if (table.slots != nullptr) __builtin_prefetch(&table.slots[Low(tag) & table.mask]);
  }
  // The id is not in the table.
  template <class Tags>
  void Add(std::uint32_t id, std::uint64_t tag, const Tags& tags) {
    CISTERN_ASSERT(id < id_mask_);
    Subtable& table = Of(tag);
    if (table.slots == nullptr || (table.used + 1) * 5 > (table.mask + 1) * 4) Double(table, tags);
    Put(table, Low(tag) & table.mask, SlotOf(id, tag));
    ++table.used;
    ++size_;
  }
  // The id is in the table.
  template <class Tags>
  void Remove(std::uint32_t id, std::uint64_t tag, const Tags& tags);

  std::uint32_t size() const { return size_; }
  // Of memory, in all.
  std::size_t bytes() const { return subtables_.size() * sizeof(Subtable) + pool_.bytes() + large_bytes_; }
  // How many ids the calls so far have moved.
  std::uint64_t moved() const { return moved_; }

 private:
  static constexpr std::uint32_t kFullIds = 256;  // of a subtable
  static constexpr std::uint32_t kFirstSlots = SpanPool::kLeast / sizeof(std::uint32_t);
  static constexpr std::uint32_t kWave = 32;

  // A slot has an id plus one, 0 for none, below bits of the id's tag.
  struct Subtable {
    std::uint32_t* slots;
    std::uint32_t mask;
    std::uint32_t used;
  };

  static std::uint32_t Low(std::uint64_t tag) { return static_cast<std::uint32_t>(tag); }
  Subtable& Of(std::uint64_t tag) { return subtables_[(tag >> 32) * subtables_.size() >> 32]; }
  const Subtable& Of(std::uint64_t tag) const { return subtables_[(tag >> 32) * subtables_.size() >> 32]; }
  std::uint32_t SlotOf(std::uint32_t id, std::uint64_t tag) const {
    return (Low(tag) & ~id_mask_) | (id + 1);
  }
  void Put(const Subtable& table, std::uint32_t at, std::uint32_t slot) {
    while (table.slots[at] != 0) at = (at + 1) & table.mask;
    table.slots[at] = slot;
  }
  std::uint32_t* Allocate(std::size_t slots, const Subtable& owner);
  void Free(std::uint32_t* memory, std::size_t slots);
  template <class Tags>
  void Double(Subtable& table, const Tags& tags);

  const std::uint32_t id_mask_;
  LazyArray<Subtable> subtables_;
  SpanPool pool_;
  std::size_t large_bytes_ = 0;
  std::uint32_t size_ = 0;
  std::uint64_t moved_ = 0;
};

template <class Tags>
void IdTable::Double(Subtable& table, const Tags& tags) {
  const Subtable old = table;
  const std::uint32_t slots = old.slots == nullptr ? kFirstSlots : 2 * (old.mask + 1);
  table = {.slots = Allocate(slots, table), .mask = slots - 1, .used = old.used};
  std::fill_n(table.slots, slots, 0u);
  if (old.slots == nullptr) return;
  // Every id's tag is a cache miss: a wave of them takes hardly longer than one.
  for (std::uint32_t from = 0; from <= old.mask; from += kWave) {
    const std::uint32_t end = std::min(from + kWave, old.mask + 1);
    for (std::uint32_t at = from; at < end; ++at) {
      if (old.slots[at] != 0) tags.Prefetch((old.slots[at] & id_mask_) - 1);
    }
    for (std::uint32_t at = from; at < end; ++at) {
      if (old.slots[at] == 0) continue;
      Put(table, Low(tags.tag((old.slots[at] & id_mask_) - 1)) & table.mask, old.slots[at]);
    }
  }
  moved_ += old.used;
  Free(old.slots, old.mask + std::size_t{1});
}

template <class Tags>
void IdTable::Remove(std::uint32_t id, std::uint64_t tag, const Tags& tags) {
  Subtable& table = Of(tag);
  const std::uint32_t slot = SlotOf(id, tag);
  std::uint32_t hole = Low(tag) & table.mask;
  while (table.slots[hole] != slot) {
    CISTERN_ASSERT(table.slots[hole] != 0);
    hole = (hole + 1) & table.mask;
  }
  // What follows moves up where that keeps it reachable from its home, so that no tombstones pile up.
  for (std::uint32_t at = (hole + 1) & table.mask; table.slots[at] != 0; at = (at + 1) & table.mask) {
    const std::uint32_t home = Low(tags.tag((table.slots[at] & id_mask_) - 1)) & table.mask;
    if (((at - home) & table.mask) < ((at - hole) & table.mask)) continue;
    table.slots[hole] = table.slots[at];
    hole = at;
  }
  table.slots[hole] = 0;
  --table.used;
  --size_;
}

}  // namespace cistern
