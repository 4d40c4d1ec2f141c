// SPDX-License-Identifier: Apache-2.0
#include "arena/index.h"

// Inline, so that XXH3 is compiled with this file's instruction set and short keys are hashed in registers.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cistern::arena {
namespace {

std::uint64_t SeedOf(std::uint64_t incarnation, std::uint16_t group) {
  std::uint64_t words[2] = {incarnation, group};
  return XXH3_64bits(words, sizeof(words));
}

Fingerprint Of(std::uint64_t seed, const BlockKey& key) {
  // All 32 bytes, whatever the length: one fixed-size path, and the bytes past the length are zero. The
  // length goes into the seed so that a key is not another one with zeros appended.
  XXH128_hash_t hash = XXH3_128bits_withSeed(key.bytes.data(), BlockKey::kMaxBytes, seed + key.length);
  return {{hash.low64 != 0 ? hash.low64 : 1, hash.high64}};
}

}  // namespace

Fingerprint FingerprintOf(std::uint64_t incarnation, std::uint16_t group, const BlockKey& key) {
  return Of(SeedOf(incarnation, group), key);
}

void FingerprintsOf(std::uint64_t incarnation, std::uint16_t group, std::span<const BlockKey> keys,
                    std::span<Fingerprint> out) {
  CISTERN_ASSERT(keys.size() == out.size());
  std::uint64_t seed = SeedOf(incarnation, group);
  for (std::size_t i = 0; i < keys.size(); ++i) out[i] = Of(seed, keys[i]);
}

}  // namespace cistern::arena
