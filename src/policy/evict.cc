// SPDX-License-Identifier: Apache-2.0
#include "policy/evict.h"

#include "base/assert.h"

namespace cistern::policy {

void Lru::Reserve(EntryId entries) {
  CISTERN_ASSERT(entries <= kMaxEntries);
  if (entries > links_.size()) links_.resize(entries, Link{kAbsent, kEnd, 0});
}

void Lru::Insert(EntryId id, SizeClass size_class) {
  CISTERN_ASSERT(id < kMaxEntries && !Contains(id));
  // resize() alone may grow to the exact size each time; the amortised growth is asked for here.
  if (id >= links_.capacity()) links_.reserve(id + std::size_t{id} / 2 + 64);
  if (id >= links_.size()) links_.resize(std::size_t{id} + 1, Link{kAbsent, kEnd, 0});
  links_[id].when = size_class;
  LinkWarmest(id);
}

void Lru::InsertCold(EntryId id) {
  if (Parked(id)) return;
  if (!Contains(id)) Insert(id);
  Unlink(id);
  LinkColdest(id);
}

void Lru::Touch(EntryId id) {
  CISTERN_ASSERT(Contains(id));
  if (Parked(id)) {
    --parked_;
  } else {
    if (links_[id].when >> 8 == next_ - 1) return;
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

std::optional<EntryId> Lru::Coldest(SizeClass size_class) const {
  const EntryId coldest = ends_[size_class].coldest;
  return coldest == kEnd ? std::nullopt : std::optional(coldest);
}

std::optional<EntryId> Lru::Warmest(SizeClass size_class) const {
  const EntryId warmest = ends_[size_class].warmest;
  return warmest == kEnd ? std::nullopt : std::optional(warmest);
}

std::optional<EntryId> Lru::Coldest() const {
  return ColdestOf([](SizeClass) { return true; });
}

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

void Lru::LinkWarmest(EntryId id) {
  const SizeClass on = size_class(id);
  Ends& ends = ends_[on];
  links_[id] = {.colder = ends.warmest, .warmer = kEnd, .when = next_++ << 8 | on};
  (ends.warmest == kEnd ? ends.coldest : links_[ends.warmest].warmer) = id;
  ends.warmest = id;
  NoteSizeClass(on);
  ++listed_;
}

void Lru::LinkColdest(EntryId id) {
  const SizeClass on = size_class(id);
  const std::optional<EntryId> coldest = Coldest();
  const std::uint64_t when = coldest ? links_[*coldest].when >> 8 : next_;
  Ends& ends = ends_[on];
  links_[id] = {.colder = kEnd, .warmer = ends.coldest, .when = (when - 1) << 8 | on};
  (ends.coldest == kEnd ? ends.warmest : links_[ends.coldest].colder) = id;
  ends.coldest = id;
  NoteSizeClass(on);
  ++listed_;
}

void Lru::Unlink(EntryId id) {
  const Link link = links_[id];
  const SizeClass on = size_class(id);
  Ends& ends = ends_[on];
  (link.colder == kEnd ? ends.coldest : links_[link.colder].warmer) = link.warmer;
  (link.warmer == kEnd ? ends.warmest : links_[link.warmer].colder) = link.colder;
  NoteSizeClass(on);
  --listed_;
}

void Lru::NoteSizeClass(SizeClass size_class) {
  const std::uint64_t bit = std::uint64_t{1} << (size_class % 64);
  if (ends_[size_class].coldest == kEnd) {
    in_use_[size_class / 64] &= ~bit;
  } else {
    in_use_[size_class / 64] |= bit;
  }
}

}  // namespace cistern::policy
