// SPDX-License-Identifier: Apache-2.0
#include "policy/evict.h"

#include "base/assert.h"

namespace cistern::policy {

void Lru::Reserve(EntryId entries) {
  CISTERN_ASSERT(entries <= kMaxEntries);
  links_.Reserve(entries);
}

void Lru::MakeRoomFor(EntryId id, Shelf shelf) {
  CISTERN_ASSERT(id < kMaxEntries && !Contains(id));
  links_.Make(id).when = shelf;
  if (shelf < ends_.size()) return;
  ends_.resize((shelf / 64 + std::size_t{1}) * 64, Ends{kEnd, kEnd});
  in_use_.resize(ends_.size() / 64);
}

void Lru::Insert(EntryId id, Shelf shelf) {
  MakeRoomFor(id, shelf);
  LinkWarmest(id);
}

void Lru::InsertCold(EntryId id, Shelf shelf) {
  MakeRoomFor(id, shelf);
  LinkColdest(id);
}

void Lru::Touch(EntryId id) {
  CISTERN_ASSERT(Contains(id));
  if (Parked(id)) {
    --parked_;
  } else {
    if (links_[id].when >> kShelfBits == next_ - 1) return;
    Unlink(id);
  }
  LinkWarmest(id);
}

void Lru::Remove(EntryId id) {
  CISTERN_ASSERT(Contains(id));
  if (Parked(id)) {
    --parked_;
  } else {
    Unlink(id);
  }
  links_[id].colder = kAbsent;
}

void Lru::Reshelve(EntryId id, Shelf shelf) {
  CISTERN_ASSERT(Contains(id));
  const bool parked = Parked(id);
  if (!parked) Unlink(id);
  const std::uint64_t when = links_[id].when >> kShelfBits << kShelfBits | shelf;
  const EntryId state = links_[id].colder;
  links_[id].colder = kAbsent;
  MakeRoomFor(id, shelf);
  links_[id] = {.colder = state, .warmer = kEnd, .when = when};
  if (!parked) LinkWarmest(id, when);
}

std::optional<EntryId> Lru::Coldest() const { return ColdestAmong(0, ends_.size()); }

void Lru::Park(EntryId id) {
  CISTERN_ASSERT(Contains(id));
  if (Parked(id)) return;
  Unlink(id);
  links_[id].colder = kParked;
  ++parked_;
}

void Lru::Unpark(EntryId id) {
  CISTERN_ASSERT(Contains(id));
  if (!Parked(id)) return;
  --parked_;
  LinkColdest(id);
}

void Lru::LinkWarmest(EntryId id) { LinkWarmest(id, next_++ << kShelfBits | shelf(id)); }

void Lru::LinkWarmest(EntryId id, std::uint64_t when) {
  links_[id].when = when;
  const Shelf on = shelf(id);
  Ends& ends = ends_[on];
  links_[id] = {.colder = ends.warmest, .warmer = kEnd, .when = when};
  (ends.warmest == kEnd ? ends.coldest : links_[ends.warmest].warmer) = id;
  ends.warmest = id;
  NoteShelf(on);
  ++listed_;
}

void Lru::LinkColdest(EntryId id) {
  const Shelf on = shelf(id);
  const std::optional<EntryId> coldest = Coldest();
  const std::uint64_t when = coldest ? links_[*coldest].when >> kShelfBits : next_;
  Ends& ends = ends_[on];
  links_[id] = {.colder = kEnd, .warmer = ends.coldest, .when = (when - 1) << kShelfBits | on};
  (ends.coldest == kEnd ? ends.warmest : links_[ends.coldest].colder) = id;
  ends.coldest = id;
  NoteShelf(on);
  ++listed_;
}

void Lru::Unlink(EntryId id) {
  const Link link = links_[id];
  const Shelf on = shelf(id);
  Ends& ends = ends_[on];
  (link.colder == kEnd ? ends.coldest : links_[link.colder].warmer) = link.warmer;
  (link.warmer == kEnd ? ends.warmest : links_[link.warmer].colder) = link.colder;
  NoteShelf(on);
  --listed_;
}

void Lru::NoteShelf(Shelf shelf) {
  const std::uint64_t bit = std::uint64_t{1} << (shelf % 64);
  if (ends_[shelf].coldest == kEnd) {
    in_use_[shelf / 64] &= ~bit;
  } else {
    in_use_[shelf / 64] |= bit;
  }
}

}  // namespace cistern::policy
