// SPDX-License-Identifier: Apache-2.0
#include "catalog/pending_puts.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"
#include "base/random.h"
#include "record/seal.h"

namespace cistern::catalog {

std::uint32_t Put::first_segment(std::uint32_t part) const {
  std::uint32_t segments = 0;
  for (std::uint32_t i = 0; i < part; ++i) segments += record::SegmentsOfPart(part_bytes[i]);
  return segments;
}

PendingBound PendingBound::Of(std::uint64_t memory_bytes, std::uint32_t max_puts) {
  const std::uint64_t puts = std::clamp<std::uint64_t>(memory_bytes / kArenaBytesAPut, kLeastPuts, kMostPuts);
  return {max_puts != 0 ? max_puts : static_cast<std::uint32_t>(puts), memory_bytes / 2};
}

PendingPuts::PendingPuts(PendingBound bound)
    : bound_(bound), mask_(std::bit_ceil(std::uint64_t{bound.puts} * 2) - 1), deadlines_(bound.puts) {
  for (auto& ends : ends_) ends.assign(mask_ + 1, Ends{});
}

std::uint64_t PendingPuts::NumberHash(TreeId tree, const PutId& id) {
  return SplitMix(id.high ^ SplitMix(id.low ^ tree));
}

template <class Is>
PutIndex PendingPuts::Next(Index index, std::uint64_t hash, PutIndex before, Is is) const {
  PutIndex at = before == kNoId ? ends_[index][hash & mask_].first : puts_[before].links[index].next;
  while (at != kNoId && !(puts_[at].links[index].hash == hash && is(puts_[at].put)))
    at = puts_[at].links[index].next;
  return at;
}

void PendingPuts::LinkInto(Index index, PutIndex put, std::uint64_t hash) {
  Link& link = puts_[put].links[index];
  Ends& ends = ends_[index][hash & mask_];
  link = {.next = kNoId, .prev = ends.last, .hash = hash, .linked = true};
  if (index == kReadyByParent) ++ready_;
  (ends.last == kNoId ? ends.first : puts_[ends.last].links[index].next) = put;
  ends.last = put;
}

void PendingPuts::Unlink(Index index, PutIndex put) {
  const Link link = puts_[put].links[index];
  if (!link.linked) return;
  if (index == kReadyByParent) --ready_;
  Ends& ends = ends_[index][link.hash & mask_];
  (link.prev == kNoId ? ends.first : puts_[link.prev].links[index].next) = link.next;
  (link.next == kNoId ? ends.last : puts_[link.next].links[index].prev) = link.prev;
  puts_[put].links[index] = {};
}

PutIndex PendingPuts::Find(const PutName& name) const {
  return Next(kByName, NumberHash(name.tree, name.id) ^ name.key.Hash(), kNoId,
              [&](const Put& put) { return put.name == name; });
}

PutIndex PendingPuts::Add(const PutName& name, const BlockKey& parent, std::uint64_t record_bytes,
                          Instant deadline, Named named) {
  CISTERN_ASSERT(HasRoom(name.owner, record_bytes));
  const PutIndex put = puts_.Add();
  Item& item = puts_[put];
  item.put.name = name;
  item.put.put_id = name.id;
  item.put.parent = parent;
  item.record_bytes = record_bytes;
  item.open = true;
  bytes_ += record_bytes;
  if (named == Named::kYes) {
    LinkInto(kByName, put, NumberHash(name.tree, name.id) ^ name.key.Hash());
    LinkInto(kByNumber, put, NumberHash(name.tree, name.id));
  }
  LinkInto(kByKey, put, KeyHashOf(name.tree, name.key));
  LinkInto(kByParent, put, KeyHashOf(name.tree, parent));
  deadlines_.Set(put, deadline.ns);
  ++open_;
  Share& share = of_[name.owner];
  ++share.puts;
  share.bytes += record_bytes;
  return put;
}

void PendingPuts::SetReady(PutIndex put, bool ready) {
  Item& item = puts_[put];
  CISTERN_ASSERT(item.open);
  if (!ready) {
    Unlink(kReadyByParent, put);
  } else if (!item.links[kReadyByParent].linked) {
    LinkInto(kReadyByParent, put, item.links[kByParent].hash);
  }
}

void PendingPuts::Close(PutIndex put) {
  Item& item = puts_[put];
  CISTERN_ASSERT(item.open);
  item.open = false;
  for (int index = 0; index < kIndexes; ++index) Unlink(static_cast<Index>(index), put);
  deadlines_.Remove(put);
  bytes_ -= item.record_bytes;
  of_.at(item.put.name.owner).bytes -= item.record_bytes;
  --open_;
}

void PendingPuts::Free(PutIndex put) {
  auto of = of_.find(puts_[put].put.name.owner);
  if (--of->second.puts == 0) of_.erase(of);
  puts_.Remove(put);
}

PutIndex PendingPuts::FirstDue(Instant now) const {
  return deadlines_.empty() || deadlines_.first_when() > now.ns ? kNoId : deadlines_.first();
}

PutIndex PendingPuts::NextOf(TreeId tree, KeyHash key, PutIndex before) const {
  return Next(kByKey, key, before, [&](const Put& put) { return put.name.tree == tree; });
}

PutIndex PendingPuts::NextChildOf(TreeId tree, KeyHash parent, PutIndex before) const {
  return Next(kByParent, parent, before, [&](const Put& put) { return put.name.tree == tree; });
}

PutIndex PendingPuts::NextNumbered(TreeId tree, const PutId& id, PutIndex before) const {
  return Next(kByNumber, NumberHash(tree, id), before,
              [&](const Put& put) { return put.name.tree == tree && put.name.id == id; });
}

PutIndex PendingPuts::ReadyChildOf(TreeId tree, KeyHash parent, std::uint32_t groups) const {
  if (ready_ == 0) return kNoId;
  return Next(kReadyByParent, parent, kNoId,
              [&](const Put& put) { return put.name.tree == tree && (groups >> put.name.group & 1) != 0; });
}

}  // namespace cistern::catalog
