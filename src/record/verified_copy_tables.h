// SPDX-License-Identifier: Apache-2.0
// The tables of functions behind verified_copy.h, one file an instruction set. Those files are compiled
// for their instructions, so nothing of them runs before the processor was asked, and they include nothing
// that has inline functions: the linker keeps one copy of those for everyone, and it could be theirs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cistern::record {

struct CopyKernels {
  const char* name;
  // Copies n bytes past the caches and returns the CRC continued over them: for whole segments, which are
  // larger than what the caller will touch next.
  std::uint32_t (*copy_stream)(void* dst, const void* src, std::size_t n, std::uint32_t crc);
  // The same through the caches: for pieces that the caller reads at once.
  std::uint32_t (*copy_cached)(void* dst, const void* src, std::size_t n, std::uint32_t crc);
  // The CRC alone.
  std::uint32_t (*crc)(const void* src, std::size_t n, std::uint32_t crc);
};

extern const CopyKernels kPortableKernels;
extern const CopyKernels kAvx2Kernels;
extern const CopyKernels kVpclmulqdqKernels;
extern const CopyKernels kAvx512Kernels;
extern const CopyKernels kArm64Kernels;

}  // namespace cistern::record
