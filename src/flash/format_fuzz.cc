// SPDX-License-Identifier: Apache-2.0
// Any bytes are a structure of the format or a fault: nothing is read past them, and what passes is within
// its bounds. The first byte chooses the structure and whether its CRC is made right, else none would get
// past it.
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "flash/format.h"
#include "record/verified_copy.h"

namespace {

using namespace cistern;
using namespace cistern::flash;

void Mend(std::vector<std::byte>& bytes, std::uint32_t magic, std::size_t end) {
  if (bytes.size() < end || end < 8) return;
  const std::uint32_t crc = record::Crc32c(bytes.data() + 8, end - 8);
  std::memcpy(bytes.data(), &magic, 4);
  std::memcpy(bytes.data() + 4, &crc, 4);
}

std::uint32_t Count(const std::vector<std::byte>& bytes) {
  std::uint32_t count = 0;
  if (bytes.size() >= 24) std::memcpy(&count, bytes.data() + 20, 4);
  return count;
}

void Entries(const std::byte* at, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto entry = DecodeEntry(at + std::size_t{i} * kEntryBytes, 3);
    if (!entry) continue;
    CISTERN_ASSERT(!entry->key.none() && entry->body_bytes < entry->record_bytes && entry->parts >= 1);
    std::byte again[kEntryBytes];
    EncodeEntry(*entry, again);
    CISTERN_ASSERT(DecodeEntry(again, 3) == entry);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  std::vector<std::byte> bytes(size - 1);
  if (size > 1) std::memcpy(bytes.data(), data + 1, size - 1);
  bytes.shrink_to_fit();
  const bool mend = (data[0] & 0x80) != 0;
  switch (data[0] % 5) {
    case 0: (void)DecodeSuperblock(bytes); break;
    case 1:
      if (mend) Mend(bytes, 0x4e474552, 64);
      (void)DecodeRegionHeader(bytes);
      break;
    case 2:
      if (mend) Mend(bytes, 0x424c4254, 64);
      (void)DecodeLocator(bytes);
      break;
    case 3: {
      if (mend && Count(bytes) <= kMaxBatchEntries) Mend(bytes, 0x48435442, BatchHeadBytes(Count(bytes)));
      const auto head = DecodeBatchHead(bytes);
      if (!head) break;
      CISTERN_ASSERT(BatchHeadBytes(head->entries) <= bytes.size());
      Entries(bytes.data() + kBatchFixedBytes, head->entries);
      break;
    }
    default: {
      if (mend && Count(bytes) <= kPageEntries) Mend(bytes, 0x45474150, PageUsedBytes(Count(bytes)));
      const auto head = DecodePageHead(bytes);
      if (!head) break;
      CISTERN_ASSERT(PageUsedBytes(head->entries) <= bytes.size());
      Entries(bytes.data() + kEntryBytes, head->entries);
    }
  }
  return 0;
}
