// SPDX-License-Identifier: Apache-2.0
// Who may share with whom. A namespace is identified by a printable list of (name, value) that the client
// gives (weights digest, dtype, layout, hash scheme ...), together with its groups and part sizes. The store
// compares lists field by field and knows nothing else of engines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cistern/policy.h"

namespace cistern {

inline constexpr std::uint32_t kMaxCopies = 8;
inline constexpr std::size_t kMaxLabels = 8;
inline constexpr std::size_t kMaxLabelBytes = 127;

// Which tokens before a position a group's KV is needed for.
enum class Reach : std::uint8_t {
  kFull = 0,       // all of them
  kWindow = 1,     // the last `window_tokens`
  kLastState = 2,  // only the state at the position; refused at attach (kInvalid) by this version
};

// A kind of KV in a namespace, for example all full-attention layers.
struct GroupSpec {
  std::string name{};  // printable; 1 to 64 bytes
  Reach reach = Reach::kFull;
  std::uint32_t window_tokens = 0;  // for kWindow: at least 1; not part of the identity
  // Bytes of each part of a block, in rank order; at most 64 parts. Empty: one part, of the length that its
  // write gives.
  std::vector<std::uint64_t> part_bytes{};
};

struct NamespaceSpec {
  // Optional. Stands for one durably stored list; the same name with another list is kMismatch. Never
  // identity.
  std::string name{};
  // At most 256 fields, 64 KiB in all. Order does not matter; a field name stands once.
  std::vector<std::pair<std::string, std::string>> fields{};
  std::vector<GroupSpec> groups{};  // 1 to 8
  // Tokens in a block; turns a window's tokens into blocks. The first user's holds. Nodes of a cell at which
  // it differs may not find the last 15 blocks of a chain at each other.
  std::uint32_t block_tokens = 1;
  // Says that whoever writes is trusted not to make two contents with one key (R5). Unless it does, a write
  // of a block whose key or parent's key is under 16 bytes is kInvalid, and so is a list whose field `hash`
  // names no cryptographic hash or whose field `key_bytes` is under 16. Part of the identity.
  bool trusted_keys = false;
  // What goes to flash, and when; not part of the identity. None: as the namespace's users said last, or else
  // as the node has it. It holds from then on, also after a restart, for whoever uses the namespace.
  std::optional<WriteRule> flash_write{};
  std::optional<Admission> flash_admit{};
  // For a node of a cell. False keeps the namespace's blocks to this node: others neither find nor read them,
  // and nothing is looked for at others; drops reach every node all the same. None: as its users of this node
  // said last, or else true. Holds as flash_write does; not part of the identity.
  std::optional<bool> mesh{};
  // For a node of a cell: how many of its nodes are to have a block that is put here, this one too; 1 to
  // kMaxCopies. None: as its users of this node said last, or else as the node has it (cell_copies). Holds as
  // flash_write does; not part of the identity.
  std::optional<std::uint32_t> copies{};
  // What people call what is in it, as (name, value), such as the name under which a model is served: drops,
  // quotas, switches and lists look for NAME=VALUE here as they do among `fields`. Never identity: two
  // namespaces with the same labels share nothing. At most kMaxLabels, each name once and without '=', name
  // and value printable and kMaxLabelBytes together at most. None: as its users said last; else all of them
  // take the place of those of before, and hold as flash_write does.
  std::vector<std::pair<std::string, std::string>> labels{};
  // For a node of a cell: read only while the node's membership of it stands, so that no read that begins
  // after a drop was acknowledged hits, on any node. A node that cannot reach its cell answers with misses
  // after 10 seconds. Part of the identity.
  bool strict = false;
};

}  // namespace cistern
