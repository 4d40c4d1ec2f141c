// SPDX-License-Identifier: Apache-2.0
#include "base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace cistern {
namespace {

constexpr int kCollapse = 25;  // MADV_COLLAPSE, which Debian 12's libc does not name

// The whole huge pages in it.
struct Span {
  Span(void* memory, std::size_t bytes) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    first = (at + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    end = (at + bytes) / kHugePageBytes * kHugePageBytes;
  }
  std::uintptr_t first, end;
};

}  // namespace

void AskForHugePages(void* memory, std::size_t bytes) {
  const Span span(memory, bytes);
  if (span.first >= span.end) return;
  static_cast<void>(::madvise(reinterpret_cast<void*>(span.first), span.end - span.first, MADV_HUGEPAGE));
}

void MoveIntoHugePages(void* memory, std::size_t bytes) {
  const Span span(memory, bytes);
  if (span.first >= span.end) return;
  // Each call waits for a turn of every processor, and may end at the first page that cannot be moved.
  if (::madvise(reinterpret_cast<void*>(span.first), span.end - span.first, kCollapse) == 0) return;
  for (std::uintptr_t at = span.first; at < span.end; at += kHugePageBytes)
    static_cast<void>(::madvise(reinterpret_cast<void*>(at), kHugePageBytes, kCollapse));
}

}  // namespace cistern
