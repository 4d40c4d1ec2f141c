// SPDX-License-Identifier: Apache-2.0
// The verified copy on AArch64: two words at a time by ldp and stnp, summed by the crc32c instructions.
#include <arm_acle.h>
#include <arm_neon.h>

#include "record/copy_by_runs.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {
namespace {

struct Arm64 {
  [[gnu::always_inline]] static std::uint32_t Word(std::uint32_t crc, std::uint64_t word) {
    return __crc32cd(crc, word);
  }
  [[gnu::always_inline]] static std::uint32_t Byte(std::uint32_t crc, Bytes byte) {
    return __crc32cb(crc, byte);
  }
  template <To kTo>
  [[gnu::always_inline]] static std::uint32_t CopyLine(Bytes* to, const Bytes* from, std::uint32_t crc) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kLine; i += 16) {
      std::uint64_t first, second;
      // Each byte is loaded here and nowhere else.
      asm volatile("ldp %0, %1, [%2]" : "=&r"(first), "=&r"(second) : "r"(from + i) : "memory");
      if constexpr (kTo == To::kStream)
        asm volatile("stnp %0, %1, [%2]" : : "r"(first), "r"(second), "r"(to + i) : "memory");
      if constexpr (kTo == To::kCached)
        asm volatile("stp %0, %1, [%2]" : : "r"(first), "r"(second), "r"(to + i) : "memory");
      crc = Word(Word(crc, first), second);
    }
    return crc;
  }
  [[gnu::always_inline]] static std::uint64_t Multiply(std::uint64_t a, std::uint64_t b) {
    return static_cast<std::uint64_t>(vmull_p64(a, b));
  }
};

}  // namespace

constinit const CopyKernels kArm64Kernels = PastCaches<Tiles<Arm64, Into::kPastL2>>("arm64");

}  // namespace cistern::record
