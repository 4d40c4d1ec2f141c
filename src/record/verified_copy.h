// SPDX-License-Identifier: Apache-2.0
// The verified copy: bytes move and are checksummed in one pass. Each source byte is loaded exactly once and
// the register that was checksummed is the one that is stored, so the CRC that comes back is that of what was
// delivered, even when another process changes the source meanwhile. A copy and a check that load twice
// prove nothing.
//
// The CRC is CRC32C (Castagnoli, reflected 0x82f63b78, all ones in, inverted out; "123456789" gives
// 0xe3069283). `crc` is the finished CRC of the bytes before, 0 when there are none, so that
// f(b, f(a, 0)) is the CRC of a followed by b.
//
// Any alignment and length, zero included; source and destination do not overlap. No call allocates, locks
// or fails.
//
// Fences (rule R2): copies named `stream` write past the caches where that pays and end WITHOUT a fence. The
// thread that copied sees its own bytes; whoever lets another thread or process read them first executes
// StreamingStoreFence() on the thread that copied, and one fence after any number of copies is enough.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/cpu.h"
#include "cistern/status.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {

// All that this processor runs, fastest first; the last one is portable. They give equal results.
std::span<const CopyKernels* const> AllKernels();

// What this process copies with: the fastest, unless it chose.
const CopyKernels& ChosenKernels();

// Chooses by name, so that a figure taken here tells about processors with less. For a program at its start:
// what was made before keeps what it has. kInvalid: this processor runs none of that name.
Status ChooseKernels(std::string_view name);

// The CRC by the chosen kernels.
inline std::uint32_t Crc32c(const void* data, std::size_t n, std::uint32_t crc = 0) {
  return ChosenKernels().crc(data, n, crc);
}

}  // namespace cistern::record
