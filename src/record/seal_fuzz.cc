// SPDX-License-Identifier: Apache-2.0
// Any bytes are a seal or a fault: nothing is read past them, and what passes is consistent in itself. The
// CRC is made right for half of the inputs, else no input would come behind it.
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "record/seal.h"
#include "record/verified_copy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cistern;
  if (size == 0) return 0;
  const bool mend = (data[0] & 1) != 0;
  std::vector<std::byte> trailer(kStampBytes + size - 1);
  if (size > 1) std::memcpy(trailer.data() + kStampBytes, data + 1, size - 1);
  std::byte* const seal = trailer.data() + kStampBytes;
  if (mend && size - 1 >= kSealFixedBytes) {
    const std::uint32_t magic = 0x4c455343;
    const std::uint16_t version = kRecordVersion;
    std::memcpy(seal, &magic, 4);
    std::memcpy(seal + 8, &version, 2);
    std::memcpy(seal + 52, &kSegmentBytes, 4);
    std::uint16_t parts;
    std::uint32_t segments;
    std::memcpy(&parts, seal + 12, 2);
    std::memcpy(&segments, seal + 48, 4);
    const std::uint64_t bytes = kSealFixedBytes + 4ull * segments + (parts > 1 ? 4ull * parts : 0);
    if (bytes <= size - 1) {
      const std::uint32_t crc = Crc32c(seal + 8, bytes - 8);
      std::memcpy(seal + 4, &crc, 4);
    }
  }
  const auto view = CheckSeal(trailer);
  if (!view.has_value()) {
    CISTERN_ASSERT(!FaultText(view.error()).empty());
    return 0;
  }
  CISTERN_ASSERT(view->bytes() <= size - 1 && view->body_bytes() <= kMaxBodyBytes);
  const auto last = view->part(view->part_count() - 1);
  CISTERN_ASSERT(last.offset + last.bytes == view->body_bytes());
  CISTERN_ASSERT(last.first_segment + SegmentsOfPart(last.bytes) == view->segment_count());
  for (std::uint32_t i = 0; i < view->segment_count(); ++i) (void)view->segment_crc(i);
  CISTERN_ASSERT(view->HasKey(view->key()) && !view->key().none());
  return 0;
}
