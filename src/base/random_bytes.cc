// SPDX-License-Identifier: Apache-2.0
#include "base/random_bytes.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"

namespace cistern {

void FillRandom(std::uint64_t seed, std::span<std::byte> bytes) {
  Random random(seed);
  while (!bytes.empty()) {
    const std::uint64_t word = random.Next();
    const std::size_t step = std::min(bytes.size(), sizeof(word));
    std::memcpy(bytes.data(), &word, step);
    bytes = bytes.subspan(step);
  }
}

}  // namespace cistern
