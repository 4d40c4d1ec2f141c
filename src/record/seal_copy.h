// SPDX-License-Identifier: Apache-2.0
// What a checked seal says, copied out of its record, to be written again where the record goes.
#pragma once

#include <cstdint>
#include <vector>

#include "record/seal.h"

namespace cistern::record {

class SealCopy final {
 public:
  explicit SealCopy(const SealView& seal);
  // Borrows from this, wherever this is moved.
  Seal seal() const;

 private:
  Seal fields_;
  std::vector<std::uint32_t> part_bytes_, segment_crcs_;
};

}  // namespace cistern::record
