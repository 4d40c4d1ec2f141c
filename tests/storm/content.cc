// SPDX-License-Identifier: Apache-2.0
#include "content.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"

namespace cistern::storm {
namespace {

std::uint64_t Word(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t x = seed + i * 0x9e3779b97f4a7c15;
  return (x ^ x >> 29) * 0xbf58476d1ce4e5b9;
}

std::uint64_t SeedOf(std::uint64_t put, std::uint32_t part) { return SplitMix(put * 256 + part); }

}  // namespace

std::vector<BlockCode> ChainOf(BlockCode code) {
  std::vector<BlockCode> chain;
  for (; code != 0; code = ParentOf(code)) chain.push_back(code);
  std::ranges::reverse(chain);
  return chain;
}

BlockKey KeyOf(std::uint32_t ns, BlockCode code) {
  BlockKey key;
  if (code == 0) return key;
  std::uint64_t seed = std::uint64_t{ns} << 32 | code;
  key.length = static_cast<std::uint8_t>(BlockKey::kMinUntrustedBytes + SplitMix(seed) % 17);
  for (std::uint8_t i = 0; i < key.length; ++i)
    key.bytes[i] = static_cast<std::uint8_t>(SplitMix(seed * 64 + i));
  return key;
}

std::vector<BlockKey> KeysOf(std::uint32_t ns, std::span<const BlockCode> chain) {
  std::vector<BlockKey> keys;
  for (BlockCode code : chain) keys.push_back(KeyOf(ns, code));
  return keys;
}

void FillPart(std::uint64_t put, std::uint32_t part, std::span<std::byte> out) {
  std::uint64_t seed = SeedOf(put, part);
  std::uint64_t i = 0;
  for (; (i + 1) * 8 <= out.size(); ++i) {
    std::uint64_t word = Word(seed, i);
    std::memcpy(out.data() + i * 8, &word, 8);
  }
  std::uint64_t word = Word(seed, i);
  std::memcpy(out.data() + i * 8, &word, out.size() - i * 8);
}

bool IsPart(std::uint64_t put, std::uint32_t part, std::uint64_t offset, std::span<const std::byte> bytes) {
  std::uint64_t seed = SeedOf(put, part);
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t word = Word(seed, (offset + at) / 8);
    std::size_t from = (offset + at) % 8;
    std::size_t n = std::min(8 - from, bytes.size() - at);
    if (std::memcmp(bytes.data() + at, reinterpret_cast<const std::byte*>(&word) + from, n) != 0)
      return false;
    at += n;
  }
  return true;
}

}  // namespace cistern::storm
