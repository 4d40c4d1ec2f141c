// SPDX-License-Identifier: Apache-2.0
#include "catalog/deadline_heap.h"

#include "base/assert.h"

namespace cistern::catalog {

void DeadlineHeap::Set(std::uint32_t id, std::int64_t when) {
  CISTERN_ASSERT(id < at_.size());
  if (at_[id] == 0) {
    heap_.push_back({when, id});
    at_[id] = static_cast<std::uint32_t>(heap_.size());
    Up(heap_.size() - 1);
    return;
  }
  const std::size_t at = at_[id] - 1;
  heap_[at].when = when;
  Up(at);
  Down(at_[id] - 1);
}

void DeadlineHeap::Remove(std::uint32_t id) {
  if (at_[id] == 0) return;
  const std::size_t at = at_[id] - 1;
  at_[id] = 0;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (last.id == id) return;
  Place(at, last);
  Up(at);
  Down(at_[last.id] - 1);
}

void DeadlineHeap::Place(std::size_t at, Entry entry) {
  heap_[at] = entry;
  at_[entry.id] = static_cast<std::uint32_t>(at + 1);
}

void DeadlineHeap::Up(std::size_t at) {
  const Entry entry = heap_[at];
  for (; at > 0 && entry.when < heap_[(at - 1) / 2].when; at = (at - 1) / 2) Place(at, heap_[(at - 1) / 2]);
  Place(at, entry);
}

void DeadlineHeap::Down(std::size_t at) {
  const Entry entry = heap_[at];
  for (;;) {
    std::size_t child = 2 * at + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1].when < heap_[child].when) ++child;
    if (entry.when <= heap_[child].when) break;
    Place(at, heap_[child]);
    at = child;
  }
  Place(at, entry);
}

}  // namespace cistern::catalog
