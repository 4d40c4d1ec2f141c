// SPDX-License-Identifier: Apache-2.0
#include "policy/evict.h"

#include <array>

#include "base/assert.h"
#include "base/nearest.h"

namespace cistern {
namespace {

constexpr std::array<std::string_view, 1> kPolicyNames = {"lru"};

}  // namespace

std::string_view EvictionPolicyName(EvictionPolicy policy) {
  return kPolicyNames[static_cast<std::size_t>(policy)];
}

Result<EvictionPolicy> ParseEvictionPolicy(std::string_view name) {
  for (std::size_t i = 0; i < kPolicyNames.size(); ++i) {
    if (name == kPolicyNames[i]) return static_cast<EvictionPolicy>(i);
  }
  return Error(Code::kInvalid, UnknownName("eviction policy", name, kPolicyNames));
}

void Lru::Reserve(EntryId entries) {
  CISTERN_ASSERT(entries <= kMaxEntries);
  if (entries > links_.size()) links_.resize(entries, Link{kAbsent, kEnd});
}

void Lru::Insert(EntryId id) {
  CISTERN_ASSERT(id < kMaxEntries && !Contains(id));
  // resize() alone may grow to the exact size each time; the amortised growth is asked for here.
  if (id >= links_.capacity()) links_.reserve(id + std::size_t{id} / 2 + 64);
  if (id >= links_.size()) links_.resize(std::size_t{id} + 1, Link{kAbsent, kEnd});
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
    if (id == warmest_) return;
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

std::optional<EntryId> Lru::Coldest() const {
  if (coldest_ == kEnd) return std::nullopt;
  return coldest_;
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
  links_[id] = {.colder = warmest_, .warmer = kEnd};
  (warmest_ == kEnd ? coldest_ : links_[warmest_].warmer) = id;
  warmest_ = id;
  ++listed_;
}

void Lru::LinkColdest(EntryId id) {
  links_[id] = {.colder = kEnd, .warmer = coldest_};
  (coldest_ == kEnd ? warmest_ : links_[coldest_].colder) = id;
  coldest_ = id;
  ++listed_;
}

void Lru::Unlink(EntryId id) {
  const Link link = links_[id];
  (link.colder == kEnd ? coldest_ : links_[link.colder].warmer) = link.warmer;
  (link.warmer == kEnd ? warmest_ : links_[link.warmer].colder) = link.colder;
  --listed_;
}

}  // namespace cistern
