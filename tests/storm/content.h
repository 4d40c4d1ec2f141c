// SPDX-License-Identifier: Apache-2.0
// The blocks of a storm: small trees of keys in a few namespaces, and bytes that say which put they are of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cistern/key.h"
#include "cistern/namespace.h"

namespace cistern::storm {

// A block's number in its namespace: which of kTrees trees, and its place in it as in a heap (1 is the root).
using BlockCode = std::uint16_t;
inline constexpr std::uint32_t kTrees = 4;
inline constexpr std::uint32_t kTreeBlocks = 32;
inline constexpr std::uint32_t kCodes = kTrees * kTreeBlocks;
inline constexpr std::uint32_t kMaxDepth = 5;

constexpr BlockCode MakeCode(std::uint32_t forest, std::uint32_t place) {
  return static_cast<BlockCode>(forest * kTreeBlocks + place);
}
// 0: none, a chain's first block.
constexpr BlockCode ParentOf(BlockCode code) {
  std::uint32_t place = code % kTreeBlocks;
  return place <= 1 ? BlockCode{0} : MakeCode(code / kTreeBlocks, place / 2);
}
// From the root to the block.
std::vector<BlockCode> ChainOf(BlockCode code);

// none() for code 0.
BlockKey KeyOf(std::uint32_t ns, BlockCode code);
std::vector<BlockKey> KeysOf(std::uint32_t ns, std::span<const BlockCode> chain);

// The bytes of a part of a put.
void FillPart(std::uint64_t put, std::uint32_t part, std::span<std::byte> out);
bool IsPart(std::uint64_t put, std::uint32_t part, std::uint64_t offset, std::span<const std::byte> bytes);

}  // namespace cistern::storm
