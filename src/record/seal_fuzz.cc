// SPDX-License-Identifier: Apache-2.0
// Any bytes are a seal or a fault: nothing is read past them, and what passes is consistent in itself. The
// input is laid over a sound seal; the CRC is made right for half of the inputs, else none would get past it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "record/seal.h"
#include "record/verified_copy.h"

namespace {

using namespace cistern;
using namespace cistern::record;

std::vector<std::byte> SoundTrailer() {
  const std::uint32_t parts[] = {100, 65536, 200'000};
  const std::uint32_t crcs[] = {1, 2, 3, 4, 5, 6};
  Seal seal;
  seal.key = BlockKey::FromHex("000102030405060708090a0b0c0d0e0f").value();
  seal.part_bytes = parts;
  seal.segment_crcs = crcs;
  std::vector<std::byte> trailer(TrailerBytes(6, 3));
  EncodeTrailer(seal, Stamp(), trailer);
  return trailer;
}

// Makes the CRC right for the length that the seal claims, when that many bytes are there.
void Mend(std::span<std::byte> seal) {
  std::uint16_t parts;
  std::uint32_t segments;
  std::memcpy(&parts, seal.data() + 12, 2);
  std::memcpy(&segments, seal.data() + 48, 4);
  const std::uint64_t bytes = kSealFixedBytes + 4ull * segments + (parts > 1 ? 4ull * parts : 0);
  if (bytes > seal.size()) return;
  const std::uint32_t crc = Crc32c(seal.data() + 8, bytes - 8);
  std::memcpy(seal.data() + 4, &crc, 4);
}

}  // namespace

// The first byte: mend or not; the second: where the rest is laid over; the third: how much is cut off.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  std::vector<std::byte> trailer = SoundTrailer();
  const std::size_t at = kStampBytes + std::min<std::size_t>(data[1], trailer.size() - kStampBytes);
  trailer.resize(std::max(trailer.size(), at + size - 3));
  if (size > 3) std::memcpy(trailer.data() + at, data + 3, size - 3);
  trailer.resize(trailer.size() - std::min<std::size_t>(data[2], trailer.size()));
  trailer.shrink_to_fit();
  if ((data[0] & 1) != 0 && trailer.size() >= kStampBytes + kSealFixedBytes) {
    Mend(std::span(trailer).subspan(kStampBytes));
  }
  const auto view = CheckSeal(trailer);
  if (!view.has_value()) {
    CISTERN_ASSERT(!FaultText(view.error()).empty());
    return 0;
  }
  CISTERN_ASSERT(kStampBytes + view->bytes() <= trailer.size() && view->body_bytes() <= kMaxBodyBytes);
  const auto last = view->part(view->part_count() - 1);
  CISTERN_ASSERT(last.offset + last.bytes == view->body_bytes());
  CISTERN_ASSERT(last.first_segment + SegmentsOfPart(last.bytes) == view->segment_count());
  for (std::uint32_t i = 0; i < view->segment_count(); ++i) (void)view->segment_crc(i);
  CISTERN_ASSERT(view->HasKey(view->key()) && !view->key().none());
  return 0;
}
