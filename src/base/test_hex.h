// SPDX-License-Identifier: Apache-2.0
// Bytes as text, for tests that hold a format to the bytes that it has always had.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace cistern {

inline std::string HexOf(std::span<const std::byte> bytes) {
  std::string hex;
  for (const std::byte byte : bytes) {
    for (const int shift : {4, 0}) hex += "0123456789abcdef"[std::to_integer<int>(byte) >> shift & 15];
  }
  return hex;
}

}  // namespace cistern
