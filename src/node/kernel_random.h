// SPDX-License-Identifier: Apache-2.0
// Random bytes of the kernel: for what nobody may guess, and what no two nodes may share.
#pragma once

#include <sys/random.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"

namespace cistern::node {

inline void FillRandom(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::getrandom(bytes.data(), bytes.size(), 0);
    CISTERN_ASSERT(n > 0);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

inline std::uint64_t RandomNumber() {
  std::uint64_t number = 0;
  FillRandom(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

}  // namespace cistern::node
