// SPDX-License-Identifier: Apache-2.0
// Who has which bytes of a fixed area: first fit, neighbours join when freed. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cistern::client {

class Extents final {
 public:
  static constexpr std::uint64_t kGrain = 64;

  explicit Extents(std::uint64_t bytes);

  // Saturates: more than any area has.
  static std::uint64_t Rounded(std::uint64_t bytes) {
    return bytes / kGrain * kGrain + (bytes % kGrain == 0 || bytes > UINT64_MAX - kGrain ? 0 : kGrain);
  }

  // The offset of `bytes`, rounded up to the grain; none when no gap is large enough.
  std::optional<std::uint64_t> Take(std::uint64_t bytes);
  // What Take gave for `bytes`.
  void Free(std::uint64_t offset, std::uint64_t bytes);
  // The largest gap.
  std::uint64_t largest() const;
  bool all_free() const { return largest() == bytes_; }

 private:
  struct Gap {
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  const std::uint64_t bytes_;
  std::vector<Gap> free_;  // by offset
};

}  // namespace cistern::client
