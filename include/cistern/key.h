// SPDX-License-Identifier: Apache-2.0
// The name of a block: the engine's chained hash over all tokens up to the block's end, 1 to 32 bytes that
// the store compares and never interprets. Two blocks of a namespace and group with equal keys are the same
// block, so a scheme must be collision-free for whoever shares the namespace: keys under 16 bytes are written
// only to a namespace whose spec says `trusted_keys` (R5).
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "cistern/status.h"

namespace cistern {

// A plain value: trivially copyable, no ownership. The default value is "no key" (a chain's first block has
// it as its parent). Bytes past `length` are zero, so equality and order are those of the whole value.
struct BlockKey {
  static constexpr std::size_t kMinBytes = 1;
  static constexpr std::size_t kMinUntrustedBytes = 16;  // where the namespace does not say trusted_keys
  static constexpr std::size_t kMaxBytes = 32;

  std::array<std::uint8_t, kMaxBytes> bytes{};
  std::uint8_t length = 0;

  // Copies `key`. kInvalid unless it has 1 to 32 bytes.
  static Result<BlockKey> FromBytes(std::span<const std::byte> key);
  // Reads 2 to 64 hexadecimal digits of either case. kInvalid names what is wrong and where.
  static Result<BlockKey> FromHex(std::string_view hex);

  bool none() const { return length == 0; }
  std::span<const std::byte> view() const { return std::as_bytes(std::span(bytes.data(), length)); }
  // Lower case, two digits a byte; empty when there is no key.
  std::string ToHex() const;

  // XXH3 of the key's bytes with `seed`: good to place a key in a table, no proof of anything.
  std::uint64_t Hash(std::uint64_t seed = 0) const;

  friend bool operator==(const BlockKey&, const BlockKey&) = default;
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
};

// The owner's number for one put, the same for all parts of a block: joins what one engine's processes write.
// All zero in a write of one part: the library makes one.
struct PutId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const PutId&, const PutId&) = default;
};

}  // namespace cistern

template <>
struct std::hash<cistern::BlockKey> {
  std::size_t operator()(const cistern::BlockKey& key) const noexcept { return key.Hash(); }
};
