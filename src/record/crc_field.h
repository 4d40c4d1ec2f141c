// SPDX-License-Identifier: Apache-2.0
// A CRC32C that stands among the bytes it guards: the four at `at`, over everything from `from` to the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/codec.h"
#include "record/verified_copy.h"

namespace cistern::record {

inline std::uint32_t CrcOver(std::span<const std::byte> bytes, std::size_t from) {
  return Crc32c(bytes.data() + from, bytes.size() - from);
}
// Returns what it stored.
inline std::uint32_t StoreCrcAt(std::span<std::byte> bytes, std::size_t at, std::size_t from) {
  const std::uint32_t crc = CrcOver(bytes, from);
  StoreAt(bytes.data(), at, crc);
  return crc;
}
inline bool CrcHoldsAt(std::span<const std::byte> bytes, std::size_t at, std::size_t from) {
  return LoadAt<std::uint32_t>(bytes.data(), at) == CrcOver(bytes, from);
}

}  // namespace cistern::record
