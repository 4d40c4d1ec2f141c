// SPDX-License-Identifier: Apache-2.0
// x86's instruction for CRC32C, as copy_by_words.h asks for it. Internal linkage, as there.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace cistern::record {
namespace {

struct Crc32X86 {
  [[gnu::always_inline]] static std::uint32_t Word(std::uint32_t crc, std::uint64_t word) {
    return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
  }
  [[gnu::always_inline]] static std::uint32_t Byte(std::uint32_t crc, unsigned char byte) {
    return _mm_crc32_u8(crc, byte);
  }
};

}  // namespace
}  // namespace cistern::record
