// SPDX-License-Identifier: Apache-2.0
#include "catalog/id_table.h"

#include <sys/mman.h>

#include <bit>
#include <cstring>

namespace cistern::catalog {

SpanPool::Size& SpanPool::SizeOf(std::size_t bytes) {
  CISTERN_ASSERT(std::has_single_bit(bytes) && bytes >= kLeast && bytes <= kMost);
  return sizes_[static_cast<std::size_t>(std::countr_zero(bytes / kLeast))];
}

std::byte* SpanPool::NewSpan() {
  if (idle_.empty()) {
    // The first areas are small, for the many tables that stay so.
    const std::size_t bytes = next_area_spans_ * kSpanBytes;
    void* memory = std::aligned_alloc(bytes >= kHugePageBytes ? kHugePageBytes : kSpanBytes, bytes);
    CISTERN_ASSERT(memory != nullptr);
    if (bytes >= kHugePageBytes) AskForHugePages(memory, bytes);
    areas_.emplace_back(memory);
    for (std::size_t i = next_area_spans_; i-- > 0;) {
      idle_.push_back(static_cast<std::byte*>(memory) + i * kSpanBytes);
    }
    next_area_spans_ = std::min(2 * next_area_spans_, kAreaSpans);
  }
  std::byte* span = idle_.back();
  idle_.pop_back();
  ++spans_;
  return span;
}

void* SpanPool::Allocate(std::size_t bytes, std::uint32_t owner) {
  Size& size = SizeOf(bytes);
  const std::uint32_t piece = size.pieces++ % PiecesOf(bytes);
  if (piece == 0) size.spans.push_back(NewSpan());
  std::byte* span = size.spans.back();
  *Owner(span, piece) = owner;
  return span + piece * bytes;
}

std::uint32_t SpanPool::Free(void* memory, std::size_t bytes) {
  Size& size = SizeOf(bytes);
  const auto offset = reinterpret_cast<std::uintptr_t>(memory) % kSpanBytes;
  std::byte* into = static_cast<std::byte*>(memory) - offset;
  std::byte* from = size.spans.back();
  const std::uint32_t last = --size.pieces % PiecesOf(bytes);
  std::uint32_t moved = kNoId;
  if (from + last * bytes != memory) {
    std::memcpy(memory, from + last * bytes, bytes);
    moved = *Owner(into, offset / bytes) = *Owner(from, last);
  }
  if (last == 0) {
    size.spans.pop_back();
    --spans_;
    // A failure leaves the memory resident, and nothing else.
    static_cast<void>(madvise(from, kSpanBytes, MADV_DONTNEED));
    idle_.push_back(from);
  }
  return moved;
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

std::uint32_t* IdTable::Allocate(std::size_t slots, const Subtable& owner) {
  const std::size_t bytes = slots * sizeof(std::uint32_t);
  if (bytes <= SpanPool::kMost) {
    const auto number = static_cast<std::uint32_t>(&owner - &subtables_[0]);
    return static_cast<std::uint32_t*>(pool_.Allocate(bytes, number));
  }
  large_bytes_ += bytes;
  void* memory = std::malloc(bytes);
  CISTERN_ASSERT(memory != nullptr);
  return static_cast<std::uint32_t*>(memory);
}

void IdTable::Free(std::uint32_t* memory, std::size_t slots) {
  const std::size_t bytes = slots * sizeof(std::uint32_t);
  if (bytes <= SpanPool::kMost) {
    const std::uint32_t moved = pool_.Free(memory, bytes);
    if (moved != kNoId) subtables_[moved].slots = memory;
    return;
  }
  large_bytes_ -= bytes;
  std::free(memory);
}

}  // namespace cistern::catalog
