// SPDX-License-Identifier: Apache-2.0
// Any 64 bytes before a sound seal are a stamp or a fault, and what passes encodes to the same bytes. The CRC
// is made right for half of the inputs.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "record/seal.h"
#include "record/verified_copy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cistern;
  using namespace cistern::record;
  if (size == 0) return 0;
  const std::uint32_t part_bytes = 1, segment_crc = 0;
  Seal sealed;
  sealed.key = BlockKey::FromHex("000102030405060708090a0b0c0d0e0f").value();
  sealed.part_bytes = std::span(&part_bytes, 1);
  sealed.segment_crcs = std::span(&segment_crc, 1);
  std::vector<std::byte> trailer(TrailerBytes(1, 1));
  const std::uint32_t seal_crc = EncodeTrailer(sealed, Stamp(), trailer);
  std::memcpy(trailer.data(), data + 1, std::min<std::size_t>(size - 1, kStampBytes));
  if ((data[0] & 1) != 0) {
    const std::uint32_t magic = 0x4d545343;
    std::memcpy(trailer.data(), &magic, 4);
    const std::uint32_t crc = Crc32c(&seal_crc, 4, Crc32c(trailer.data() + 8, kStampBytes - 8));
    std::memcpy(trailer.data() + 4, &crc, 4);
  }
  const auto seal = CheckSeal(trailer);
  CISTERN_ASSERT(seal.has_value());
  const auto stamp = CheckStamp(trailer, *seal);
  if (stamp.has_value()) {
    std::vector<std::byte> again(kStampBytes);
    EncodeStamp(*stamp, seal->crc(), std::span(again).first<kStampBytes>());
    CISTERN_ASSERT(std::equal(again.begin(), again.end(), trailer.begin()));
  }
  return 0;
}
