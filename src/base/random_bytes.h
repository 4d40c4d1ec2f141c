// SPDX-License-Identifier: Apache-2.0
// Bytes that follow from a seed, for workloads and tests. Not in random.h, so that it is compiled once, and
// optimised also where its callers are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cistern {

// The numbers of Random(seed), in this machine's order of bytes; of the last as many as there is room for.
void FillRandom(std::uint64_t seed, std::span<std::byte> bytes);

}  // namespace cistern
