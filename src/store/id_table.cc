// SPDX-License-Identifier: Apache-2.0
#include "store/id_table.h"

#include <sys/mman.h>

#include <bit>
#include <new>

namespace cistern {

std::size_t SpanPool::SizeNumber(std::size_t bytes) {
  CISTERN_ASSERT(std::has_single_bit(bytes) && bytes >= kLeast && bytes <= kMost);
  return static_cast<std::size_t>(std::countr_zero(bytes / kLeast));
}

void SpanPool::Link(Span** list, Span* span) {
  span->prev = nullptr;
  span->next = *list;
  if (*list != nullptr) (*list)->prev = span;
  *list = span;
}

void SpanPool::Unlink(Span** list, Span* span) {
  (span->prev == nullptr ? *list : span->prev->next) = span->next;
  if (span->next != nullptr) span->next->prev = span->prev;
}

SpanPool::Span* SpanPool::NewSpan() {
  if (idle_.empty()) {
    // The first are small, for the many tables that stay so.
    const std::size_t bytes = next_area_spans_ * kSpanBytes;
    void* memory = std::aligned_alloc(bytes >= kHugePageBytes ? kHugePageBytes : kSpanBytes, bytes);
    CISTERN_ASSERT(memory != nullptr);
    if (bytes >= kHugePageBytes) AskForHugePages(memory, bytes);
    areas_.emplace_back(memory);
    for (std::size_t i = next_area_spans_; i-- > 0;) {
      idle_.push_back(reinterpret_cast<Span*>(static_cast<std::byte*>(memory) + i * kSpanBytes));
    }
    next_area_spans_ = std::min(2 * next_area_spans_, kAreaSpans);
  }
  Span* span = new (idle_.back()) Span{};
  idle_.pop_back();
  ++spans_;
  return span;
}

void* SpanPool::Allocate(std::size_t bytes) {
  Span** list = &roomy_[SizeNumber(bytes)];
  if (*list == nullptr) Link(list, NewSpan());
  Span* span = *list;
  ++span->used;
  void* memory = span->free;
  if (memory != nullptr) {
    span->free = span->free->next;
  } else {
    memory = reinterpret_cast<std::byte*>(span + 1) + span->carved++ * bytes;
  }
  if (span->used == ItemsOf(bytes)) Unlink(list, span);
  return memory;
}

void SpanPool::Free(void* memory, std::size_t bytes) {
  Span** list = &roomy_[SizeNumber(bytes)];
  auto* span = reinterpret_cast<Span*>(reinterpret_cast<std::uintptr_t>(memory) / kSpanBytes * kSpanBytes);
  if (span->used == ItemsOf(bytes)) Link(list, span);
  span->free = new (memory) Item{span->free};
  if (--span->used > 0) return;
  Unlink(list, span);
  --spans_;
  // Without it the memory stays resident, and nothing else.
  static_cast<void>(madvise(span, kSpanBytes, MADV_DONTNEED));
  idle_.push_back(span);
}

IdTable::IdTable(std::uint32_t most)
    // Roots are among the ids and not counted in `most`, so there are twice as many.
    : id_mask_(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(std::bit_ceil(std::uint64_t{most} * 2 + 0x1'0000), std::uint64_t{1} << 32) -
          1)),
      subtables_(std::max<std::uint64_t>(1, std::uint64_t{most} / kFullIds)) {}

IdTable::~IdTable() {
  for (std::size_t at = 0; at < subtables_.size() && large_bytes_ > 0; ++at) {
    const Subtable& table = subtables_[at];
    const std::size_t slots = table.mask + std::size_t{1};
    if (table.slots != nullptr && slots * sizeof(std::uint32_t) > SpanPool::kMost) Free(table.slots, slots);
  }
}

std::uint32_t* IdTable::Allocate(std::size_t slots) {
  const std::size_t bytes = slots * sizeof(std::uint32_t);
  if (bytes <= SpanPool::kMost) return static_cast<std::uint32_t*>(pool_.Allocate(bytes));
  large_bytes_ += bytes;
  void* memory = std::malloc(bytes);
  CISTERN_ASSERT(memory != nullptr);
  return static_cast<std::uint32_t*>(memory);
}

void IdTable::Free(std::uint32_t* memory, std::size_t slots) {
  const std::size_t bytes = slots * sizeof(std::uint32_t);
  if (bytes <= SpanPool::kMost) return pool_.Free(memory, bytes);
  large_bytes_ -= bytes;
  std::free(memory);
}

}  // namespace cistern
