// SPDX-License-Identifier: Apache-2.0
// What the processor can do, asked once where code for several instruction sets is chosen from.
#pragma once

namespace cistern {

#if defined(__x86_64__)
inline constexpr bool kIsX86 = true;
#else
inline constexpr bool kIsX86 = false;
#endif
#if defined(__aarch64__)
inline constexpr bool kIsArm64 = true;
#else
inline constexpr bool kIsArm64 = false;
#endif

struct CpuFeatures {
  bool avx2 = false;        // AVX2, PCLMULQDQ and the crc32 instruction
  bool vpclmulqdq = false;  // and all of avx2
  bool avx512 = false;      // AVX-512 F, BW, VL and DQ, and all of vpclmulqdq
  bool zen5 = false;        // AMD's family 26 or a later one, and all of avx512
  bool intel = false;       // Intel's
  bool arm64 = false;       // AArch64's CRC32C instructions and PMULL
};
// Includes whether the operating system saves the registers.
CpuFeatures ProbeCpu();

}  // namespace cistern
