// SPDX-License-Identifier: Apache-2.0
#include "record/seal_copy.h"

namespace cistern::record {

SealCopy::SealCopy(const SealView& seal)
    : fields_{.incarnation = seal.incarnation(),
              .group = seal.group(),
              .key = seal.key(),
              .parent = seal.parent(),
              .put_id = seal.put_id()} {
  part_bytes_.reserve(seal.part_count());
  segment_crcs_.reserve(seal.segment_count());
  for (std::uint32_t i = 0; i < seal.part_count(); ++i) part_bytes_.push_back(seal.part_bytes(i));
  for (std::uint32_t i = 0; i < seal.segment_count(); ++i) segment_crcs_.push_back(seal.segment_crc(i));
}

Seal SealCopy::seal() const {
  Seal seal = fields_;
  seal.part_bytes = part_bytes_;
  seal.segment_crcs = segment_crcs_;
  return seal;
}

}  // namespace cistern::record
