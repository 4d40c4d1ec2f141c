// SPDX-License-Identifier: Apache-2.0
#include "store/pending.h"

#include <bit>

#include "base/assert.h"
#include "base/random.h"
#include "record/seal.h"

namespace cistern {

std::uint32_t Put::first_segment(std::uint32_t part) const {
  std::uint32_t segments = 0;
  for (std::uint32_t i = 0; i < part; ++i) segments += SegmentsOfPart(part_bytes[i]);
  return segments;
}

Pending::Pending(std::uint32_t max_puts)
    : max_puts_(max_puts), mask_(std::bit_ceil(std::uint64_t{max_puts} * 2) - 1), due_(max_puts) {
  for (auto& ends : ends_) ends.assign(mask_ + 1, Ends{});
}

std::uint64_t Pending::NumberHash(RealmId realm, const PutId& id) {
  return SplitMix(id.high ^ SplitMix(id.low ^ realm));
}

template <class Is>
PutSlot Pending::Next(Index index, std::uint64_t hash, PutSlot before, Is is) const {
  PutSlot at = before == kNoId ? ends_[index][hash & mask_].first : puts_[before].links[index].next;
  while (at != kNoId && !(puts_[at].links[index].hash == hash && is(puts_[at].put)))
    at = puts_[at].links[index].next;
  return at;
}

void Pending::LinkInto(Index index, PutSlot slot, std::uint64_t hash) {
  Link& link = puts_[slot].links[index];
  Ends& ends = ends_[index][hash & mask_];
  link = {.next = kNoId, .prev = ends.last, .hash = hash, .linked = true};
  (ends.last == kNoId ? ends.first : puts_[ends.last].links[index].next) = slot;
  ends.last = slot;
}

void Pending::Unlink(Index index, PutSlot slot) {
  const Link link = puts_[slot].links[index];
  if (!link.linked) return;
  Ends& ends = ends_[index][link.hash & mask_];
  (link.prev == kNoId ? ends.first : puts_[link.prev].links[index].next) = link.next;
  (link.next == kNoId ? ends.last : puts_[link.next].links[index].prev) = link.prev;
  puts_[slot].links[index] = {};
}

PutSlot Pending::Find(const PutName& name) const {
  return Next(kByName, NumberHash(name.realm, name.id) ^ name.key.Hash(), kNoId,
              [&](const Put& put) { return put.name == name; });
}

PutSlot Pending::Add(const PutName& name, const BlockKey& parent, Instant deadline) {
  CISTERN_ASSERT(!full());
  const PutSlot slot = puts_.Add();
  Item& item = puts_[slot];
  item.put.name = name;
  item.put.parent = parent;
  item.open = true;
  LinkInto(kByName, slot, NumberHash(name.realm, name.id) ^ name.key.Hash());
  LinkInto(kByKey, slot, TagOf(name.realm, name.key));
  LinkInto(kByParent, slot, TagOf(name.realm, parent));
  LinkInto(kByNumber, slot, NumberHash(name.realm, name.id));
  due_.Set(slot, deadline.ns);
  ++open_;
  return slot;
}

void Pending::SetReady(PutSlot slot, bool ready) {
  Item& item = puts_[slot];
  CISTERN_ASSERT(item.open);
  if (!ready) {
    Unlink(kReadyByParent, slot);
  } else if (!item.links[kReadyByParent].linked) {
    LinkInto(kReadyByParent, slot, item.links[kByParent].hash);
  }
}

void Pending::Close(PutSlot slot) {
  Item& item = puts_[slot];
  CISTERN_ASSERT(item.open);
  item.open = false;
  for (int index = 0; index < kIndexes; ++index) Unlink(static_cast<Index>(index), slot);
  due_.Remove(slot);
  --open_;
}

PutSlot Pending::FirstDue(Instant now) const {
  return due_.empty() || due_.first_when() > now.ns ? kNoId : due_.first();
}

PutSlot Pending::NextOf(RealmId realm, Tag key, PutSlot before) const {
  return Next(kByKey, key, before, [&](const Put& put) { return put.name.realm == realm; });
}

PutSlot Pending::NextBelow(RealmId realm, Tag parent, PutSlot before) const {
  return Next(kByParent, parent, before, [&](const Put& put) { return put.name.realm == realm; });
}

PutSlot Pending::NextNumbered(RealmId realm, const PutId& id, PutSlot before) const {
  return Next(kByNumber, NumberHash(realm, id), before,
              [&](const Put& put) { return put.name.realm == realm && put.name.id == id; });
}

PutSlot Pending::ReadyBelow(RealmId realm, Tag parent, std::uint32_t groups) const {
  return Next(kReadyByParent, parent, kNoId,
              [&](const Put& put) { return put.name.realm == realm && (groups >> put.name.group & 1) != 0; });
}

}  // namespace cistern
