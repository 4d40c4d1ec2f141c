// SPDX-License-Identifier: Apache-2.0
// Bytes as text, for tests that hold a format to the bytes that it has always had.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cistern {

inline std::string HexOf(std::span<const std::byte> bytes) {
  std::string hex;
  for (const std::byte byte : bytes) {
    for (const int shift : {4, 0}) hex += "0123456789abcdef"[std::to_integer<int>(byte) >> shift & 15];
  }
  return hex;
}

inline std::vector<std::byte> BytesOf(std::string_view hex) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(kDigits.find(hex[i]) << 4 | kDigits.find(hex[i + 1])));
  }
  return bytes;
}

}  // namespace cistern
