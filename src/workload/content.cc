// SPDX-License-Identifier: Apache-2.0
#include "workload/content.h"

#include <cstring>

#include "base/random.h"

namespace cistern::workload {
namespace {

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;  // odd: no word repeats within a block

std::uint64_t Word(std::uint64_t start, std::uint64_t i) {
  std::uint64_t x = start + i * kStep;
  return x ^ (x >> 29);
}

}  // namespace

BlockKey WorkloadKey(std::uint64_t hash_id, std::uint64_t seed) {
  BlockKey key;
  key.length = BlockKey::kMaxBytes;
  std::uint64_t word = hash_id * kStep ^ seed;
  for (std::size_t i = 0; i < 4; ++i) {
    word = SplitMix(word);
    std::memcpy(key.bytes.data() + i * 8, &word, 8);
  }
  return key;
}

void FillContent(const BlockKey& key, std::span<std::byte> to) {
  const std::uint64_t start = key.Hash(1);
  const std::size_t words = to.size() / 8;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word = Word(start, i);
    std::memcpy(to.data() + i * 8, &word, 8);
  }
  std::uint64_t last = Word(start, words);
  if (to.size() % 8 != 0) std::memcpy(to.data() + words * 8, &last, to.size() % 8);
}

std::uint64_t CountWrongBytes(const BlockKey& key, std::span<const std::byte> bytes) {
  const std::uint64_t start = key.Hash(1);
  const std::size_t words = bytes.size() / 8;
  std::uint64_t differing = 0;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i * 8, 8);
    differing |= word ^ Word(start, i);
  }
  std::uint64_t last = Word(start, words);
  bool tail_good = std::memcmp(bytes.data() + words * 8, &last, bytes.size() % 8) == 0;
  if (differing == 0 && tail_good) return 0;
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::uint64_t word = Word(start, i / 8);
    wrong += bytes[i] != static_cast<std::byte>(word >> (i % 8 * 8));
  }
  return wrong;
}

}  // namespace cistern::workload
