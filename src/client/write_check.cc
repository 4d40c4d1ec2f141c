// SPDX-License-Identifier: Apache-2.0
#include "client/write_check.h"

#include <algorithm>
#include <vector>

#include "base/format.h"
#include "base/limits.h"

namespace cistern::client {
namespace {

Status Check(const std::vector<GroupSpec>& groups, const BlockWrite& block) {
  const auto invalid = [&](const auto&... what) {
    return Status(Code::kInvalid, Text("block ", block.key.ToHex(), what...));
  };
  if (block.group >= groups.size()) return invalid(": group ", block.group, " of ", groups.size());
  const std::size_t parts = std::max<std::size_t>(groups[block.group].part_bytes.size(), 1);
  if (block.part >= parts) return invalid(": part ", block.part, ", its group has ", parts);
  if (parts > 1 && block.put_id == PutId{}) {
    return invalid(" has ", parts, " parts: they need one put id, which only their writers can agree on");
  }
  const std::uint64_t bytes = PartBytes(block);
  if (bytes == 0 || bytes > kMaxBodyBytes) {
    return invalid(": part ", block.part, " has ", bytes, " bytes, a part has 1 to ", kMaxBodyBytes);
  }
  return Status();
}

}  // namespace

std::uint64_t PartBytes(const BlockWrite& block) {
  if (block.pieces.empty()) return block.data.size();
  std::uint64_t bytes = 0;
  for (const std::span<const std::byte> piece : block.pieces) bytes += piece.size();
  return bytes;
}

Status CheckWrites(const NamespaceSpec& spec, std::span<const BlockWrite> blocks) {
  for (const BlockWrite& block : blocks) {
    if (Status status = Check(spec.groups, block); !status.ok()) return status;
  }
  return Status();
}

}  // namespace cistern::client
