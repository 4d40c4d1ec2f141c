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
  const std::uint32_t alignment = context_.slots.arena().geometry().alignment;
  copy->slot_bytes = memory::SlotSize::For(copy->record_bytes, alignment).bytes;
  copy->asked = ++asked_;
  const catalog::RecordId record = copy->handle.record;
  Order& order = orders_[copy->slot_bytes];
  order.push_back(std::move(copy));
  const bool added = of_.emplace(record, std::prev(order.end())).second;
  CISTERN_ASSERT(added);
}

void PartialCopies::Asked(catalog::RecordId record) {
  const Order::iterator at = of_.at(record);
  (*at)->asked = ++asked_;
  Order& order = orders_.at((*at)->slot_bytes);
  order.splice(order.end(), order, at);
}

void PartialCopies::Remove(catalog::RecordId record) {
  const auto found = of_.find(record);
  const PartialCopyPtr copy = *found->second;
  bytes_ -= copy->record_bytes;
  at_.erase(copy->place);
  const auto order = orders_.find(copy->slot_bytes);
  order->second.erase(found->second);
  if (order->second.empty()) orders_.erase(order);
  of_.erase(found);
}

PartialCopyPtr PartialCopies::First(std::optional<memory::SlotSize> size) const {
  if (size) {
    const auto order = orders_.find(size->bytes);
    return order == orders_.end() ? nullptr : order->second.front();
  }
  PartialCopyPtr first;
  for (const auto& [bytes, order] : orders_) {
    if (first == nullptr || order.front()->asked < first->asked) first = order.front();
  }
  return first;
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
  const std::uint64_t began = asked_;
  for (std::size_t looks = 0; looks < kIdleLooks && !context_.steps.Spent(); ++looks) {
    const PartialCopyPtr copy = First(size);
    if (copy == nullptr || copy->asked > began) break;
    context_.steps.Count();
    const catalog::RecordId record = copy->handle.record;
    if (EndIfIdle(record)) {
      context_.forest.Fold(record);
      return true;
    }
    // Busy copies move to the back, out of the way of the next look.
    Asked(record);
  }
  return false;
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
    const PartialCopyPtr copy = First();
    if (copy == nullptr) co_return;
    context_.steps.Count();
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
