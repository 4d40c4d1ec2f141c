// SPDX-License-Identifier: Apache-2.0
#include "board.h"

#include "base/format.h"
#include "workload/content.h"

namespace cistern {

NamespaceSpec SpecOf(std::uint32_t space) {
  NamespaceSpec spec;
  spec.fields = {{"workload", "kill"}, {"block_bytes", Text(kSpaces[space].block_bytes)}};
  GroupSpec group;
  group.name = "full";
  group.part_bytes = {kSpaces[space].block_bytes};
  spec.groups = {group};
  return spec;
}

std::array<BlockKey, kChainBlocks> KeysOf(const ChainName& name, std::uint64_t seed) {
  std::array<BlockKey, kChainBlocks> keys;
  const std::uint64_t chain = (static_cast<std::uint64_t>(name.owner) << 40) |
                              (static_cast<std::uint64_t>(name.space) << 32) | name.chain;
  for (std::uint32_t i = 0; i < kChainBlocks; ++i)
    keys[i] = workload::WorkloadKey(chain * kChainBlocks + i, seed);
  return keys;
}

}  // namespace cistern
