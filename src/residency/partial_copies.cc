// SPDX-License-Identifier: Apache-2.0
#include "residency/partial_copies.h"

#include <iterator>
#include <utility>

#include "arena/protocol.h"
#include "base/assert.h"

namespace cistern::residency {

namespace {
constexpr std::size_t kIdleLooks = 32;
}  // namespace

void PartialCopies::Add(PartialCopyPtr copy) {
  bytes_ += copy->record_bytes;
  const catalog::RecordId record = copy->handle.record;
  order_.push_back(std::move(copy));
  const bool added = of_.emplace(record, std::prev(order_.end())).second;
  CISTERN_ASSERT(added);
}

void PartialCopies::Remove(catalog::RecordId record) {
  const auto found = of_.find(record);
  bytes_ -= (*found->second)->record_bytes;
  at_.erase((*found->second)->place);
  order_.erase(found->second);
  of_.erase(found);
}

void PartialCopies::End(catalog::RecordId record) {
  const PartialCopyPtr copy = Find(record);
  if (copy == nullptr) return;
  context_.steps.Count(2);
  Remove(record);
  copy->ended = true;
  if (copy->place != catalog::kNowhere) {
    arena::Retire(context_.words, context_.slots.arena(), copy->place);
    context_.slots.Unpin(copy->place);
    residents_.FreeSlot(copy->place);
  }
  residents_.WatchExpiry(record, false);
  --context_.forest.record(record).references;
  copy->changed.Pulse();
}

bool PartialCopies::EndIfIdle(catalog::RecordId record) {
  const PartialCopyPtr copy = Find(record);
  if (copy == nullptr || copy->reads > 0 || context_.forest.record(record).references > 1) return false;
  End(record);
  return true;
}

bool PartialCopies::EndIdle(std::optional<memory::SlotSize> size) {
  const std::uint32_t alignment = context_.slots.arena().geometry().alignment;
  std::vector<catalog::RecordId> busy;
  catalog::RecordId idle = catalog::kNoId;
  std::size_t looks = 0;
  for (const PartialCopyPtr& copy : order_) {
    if (looks >= kIdleLooks || context_.steps.Spent()) break;
    context_.steps.Count();
    const catalog::RecordId record = copy->handle.record;
    if (size && memory::SlotSize::For(copy->record_bytes, alignment).bytes != size->bytes) continue;
    ++looks;
    if (EndIfIdle(record)) {
      idle = record;
      break;
    }
    busy.push_back(record);
  }
  // Busy copies move to the back, out of the way of the next look.
  for (const catalog::RecordId record : busy) Asked(record);
  if (idle == catalog::kNoId) return false;
  context_.forest.Fold(idle);
  return true;
}

void PartialCopies::EndIdleAt(arena::Place place) {
  const auto found = at_.find(place);
  if (found == at_.end()) return;
  const catalog::RecordId record = found->second;
  if (EndIfIdle(record)) context_.forest.Fold(record);
}

Task<void> PartialCopies::EndAll(bool reading_only) {
  for (std::size_t left = size(); left > 0; --left) {
    if (context_.steps.Spent()) co_await Yield();
    if (order_.empty()) co_return;
    context_.steps.Count();
    const PartialCopyPtr copy = order_.front();
    const catalog::RecordId record = copy->handle.record;
    if (reading_only && copy->reads == 0) {
      Asked(record);
      continue;
    }
    End(record);
    context_.forest.Fold(record);
  }
}

}  // namespace cistern::residency
