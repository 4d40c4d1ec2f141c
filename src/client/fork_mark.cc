// SPDX-License-Identifier: Apache-2.0
#include "client/fork_mark.h"

#include <sys/mman.h>

#include <cerrno>

#include "base/fd.h"
#include "base/format.h"

namespace cistern::client {
namespace {

constexpr std::size_t kPageBytes = 4096;

}  // namespace

Result<ForkMark> ForkMark::Make() {
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return Error(Code::kIoError, Text("a page cannot be mapped: ", ErrnoText(errno)));
  auto* word = static_cast<std::uint64_t*>(page);
  ForkMark mark(word);
  if (madvise(page, kPageBytes, MADV_WIPEONFORK) != 0)
    return Error(Code::kIoError, Text("a page cannot be wiped on fork: ", ErrnoText(errno)));
  *word = 1;
  return mark;
}

ForkMark::~ForkMark() {
  if (page_ != nullptr) munmap(const_cast<std::uint64_t*>(page_), kPageBytes);
}

}  // namespace cistern::client
