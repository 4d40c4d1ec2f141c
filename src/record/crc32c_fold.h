// SPDX-License-Identifier: Apache-2.0
// What carries a CRC32C remainder forward over bytes by carry-less multiplication. Everything is consteval:
// nothing of it is left for the linker in the files that are compiled for one instruction set.
#pragma once

#include <cstdint>

namespace cistern::record {

// The product modulo the Castagnoli polynomial, bits reflected: bit 31 is x^0.
consteval std::uint32_t Product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    if ((a >> bit & 1) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return product;
}

// x^n modulo that.
consteval std::uint32_t PowerOfX(std::uint64_t n) {
  std::uint32_t power = 0x80000000u;
  for (std::uint32_t square = 0x40000000u; n != 0; n >>= 1) {
    if ((n & 1) != 0) power = Product(square, power);
    square = Product(square, square);
  }
  return power;
}

// The factors that carry 16 bytes forward over `bytes`: for their first eight and their second eight. The
// shift makes up for a product of reflected factors being one bit short.
consteval std::uint64_t FoldFirst(std::uint64_t bytes) {
  return std::uint64_t{PowerOfX(8 * bytes + 32)} << 1;
}
consteval std::uint64_t FoldSecond(std::uint64_t bytes) {
  return std::uint64_t{PowerOfX(8 * bytes - 32)} << 1;
}

// The factor that carries a register over `bytes` of zeros: the crc32 instruction, from zero, makes that
// register of the word that is the product of both.
consteval std::uint64_t CarryFactor(std::uint64_t bytes) { return PowerOfX(8 * bytes - 33); }

}  // namespace cistern::record
