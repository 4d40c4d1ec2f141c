// SPDX-License-Identifier: Apache-2.0
// The verified copy for processors without the instructions of the other files: eight bytes a step through
// eight tables. It has no streaming stores, which its contract allows.
#include <array>
#include <bit>
#include <cstring>

#include "record/verified_copy_tables.h"

namespace cistern::record {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, reflected

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b] is the CRC register after byte b and k zero bytes.
constexpr Tables MakeTables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 255];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

// One load: behind the empty asm the compiler knows nothing of where the value came from, so it cannot load
// it a second time instead of keeping it.
template <class T>
[[gnu::always_inline]] inline T LoadOnce(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  asm("" : "+r"(value));
  return value;
}

[[gnu::always_inline]] inline std::uint32_t Step(std::uint32_t crc, std::uint64_t word) {
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  word ^= crc;
  std::uint32_t next = 0;
  for (int k = 0; k < 8; ++k) next ^= kTables[7 - k][(word >> (8 * k)) & 255];
  return next;
}

// kStore: whether the bytes go anywhere. That the source may change meanwhile is the contract, no race.
template <bool kStore>
__attribute__((no_sanitize("thread"))) std::uint32_t Run(unsigned char* to, const unsigned char* from,
                                                         std::size_t n, std::uint32_t crc) {
  crc = ~crc;
  for (; n >= 8; n -= 8, from += 8) {
    const auto word = LoadOnce<std::uint64_t>(from);
    crc = Step(crc, word);
    if constexpr (kStore) {
      std::memcpy(to, &word, sizeof(word));
      to += 8;
    }
  }
  for (; n > 0; --n, ++from) {
    const auto byte = LoadOnce<unsigned char>(from);
    crc = (crc >> 8) ^ kTables[0][(crc ^ byte) & 255];
    if constexpr (kStore) *to++ = byte;
  }
  return ~crc;
}

std::uint32_t Copy(void* dst, const void* src, std::size_t n, std::uint32_t crc, std::size_t) {
  return Run<true>(static_cast<unsigned char*>(dst), static_cast<const unsigned char*>(src), n, crc);
}

std::uint32_t Sum(const void* src, std::size_t n, std::uint32_t crc) {
  return Run<false>(nullptr, static_cast<const unsigned char*>(src), n, crc);
}

}  // namespace

const CopyKernels kPortableKernels = {"portable", Copy, Copy, Copy, [](const void*, std::size_t) {}, Sum};

}  // namespace cistern::record
