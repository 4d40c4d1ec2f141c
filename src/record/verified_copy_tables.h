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
  // Copies n bytes and returns the CRC continued over them. `behind` is a hint: how many bytes that follow
  // the source are copied next, by other calls; a kernel asks for them early, or copies a segment that stands
  // alone in another way.
  using Copy = std::uint32_t(void* dst, const void* src, std::size_t n, std::uint32_t crc,
                             std::size_t behind);
  // Past the caches: for whole segments, which are larger than what the caller will touch next.
  Copy* copy_stream;
  // The same through the caches: for pieces that the caller reads at once.
  Copy* copy_cached;
  // Into a destination that was copied to lately and may lie in the caches still: whichever of the two is
  // faster there on this processor.
  Copy* copy_again;
  // Asks for the lines that a copy of n bytes loads first, when it is known that there will be one.
  void (*ask)(const void* src, std::size_t n);
  // The CRC alone.
  std::uint32_t (*crc)(const void* src, std::size_t n, std::uint32_t crc);
};

// One name has at most one table on a processor: Intel's have their own.
extern const CopyKernels kPortableKernels;
extern const CopyKernels kAvx2Kernels;
extern const CopyKernels kVpclmulqdqKernels;
extern const CopyKernels kAvx512Kernels;
extern const CopyKernels kAvx512LanesKernels;
extern const CopyKernels kIntelAvx2Kernels;
extern const CopyKernels kIntelVpclmulqdqKernels;
extern const CopyKernels kIntelAvx512Kernels;
extern const CopyKernels kIntelAvx512LanesKernels;
extern const CopyKernels kArm64Kernels;

}  // namespace cistern::record
