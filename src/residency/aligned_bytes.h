// SPDX-License-Identifier: Apache-2.0
// Private memory aligned for any transfer of a device.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

#include "base/assert.h"
#include "base/limits.h"

namespace cistern::residency {

class AlignedBytes final {
 public:
  explicit AlignedBytes(std::size_t bytes)
      : bytes_(static_cast<std::byte*>(
            std::aligned_alloc(kMaxAlignment, (bytes + kMaxAlignment - 1) / kMaxAlignment * kMaxAlignment))),
        size_(bytes) {
    CISTERN_ASSERT(bytes_ != nullptr);
  }
  std::span<std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_;
};

}  // namespace cistern::residency
