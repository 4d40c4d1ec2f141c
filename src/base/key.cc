// SPDX-License-Identifier: Apache-2.0
#include "cistern/key.h"

#include <cstring>

#define XXH_INLINE_ALL  // Debian's shared object is built without SIMD
#include <xxhash.h>

#include "base/format.h"
#include "base/hex_digit.h"
#include "base/nearest.h"

namespace cistern {

Result<BlockKey> BlockKey::FromBytes(std::span<const std::byte> key) {
  if (key.size() < kMinBytes || key.size() > kMaxBytes) {
    return Error(Code::kInvalid, Text("key: has ", key.size(), " bytes and a key has 1 to 32"));
  }
  BlockKey made;
  std::memcpy(made.bytes.data(), key.data(), key.size());
  made.length = static_cast<std::uint8_t>(key.size());
  return made;
}

Result<BlockKey> BlockKey::FromHex(std::string_view hex) {
  // Checked first: a key in another notation ("0x...", base64) is better told from the digit that is none.
  for (std::size_t i = 0; i < hex.size(); ++i) {
    if (HexDigit(hex[i]) >= 0) continue;
    const auto byte = static_cast<unsigned char>(hex[i]);
    const std::string shown =
        byte >= 0x20 && byte < 0x7f ? Text('\'', hex[i], '\'') : Text("byte ", Hex(byte));
    return Error(Code::kInvalid, Text("key: ", shown, " at position ", i, " is no hexadecimal digit"));
  }
  if (hex.size() % 2 != 0) {
    return Error(Code::kInvalid,
                 Text("key \"", Shown(hex), "\" has ", hex.size(), " digits and a byte takes two"));
  }
  if (hex.size() < 2 * kMinBytes || hex.size() > 2 * kMaxBytes) {
    return Error(Code::kInvalid,
                 Text("key \"", Shown(hex), "\" has ", hex.size(), " digits and a key has 2 to 64"));
  }
  BlockKey made;
  made.length = static_cast<std::uint8_t>(hex.size() / 2);
  for (std::size_t i = 0; i < made.length; ++i) {
    made.bytes[i] = static_cast<std::uint8_t>(HexDigit(hex[2 * i]) << 4 | HexDigit(hex[2 * i + 1]));
  }
  return made;
}

std::string BlockKey::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * length);
  for (std::size_t i = 0; i < length; ++i) {
    hex.push_back(kDigits[bytes[i] >> 4]);
    hex.push_back(kDigits[bytes[i] & 15]);
  }
  return hex;
}

std::uint64_t BlockKey::Hash(std::uint64_t seed) const {
  return XXH3_64bits_withSeed(bytes.data(), length, seed);
}

}  // namespace cistern
