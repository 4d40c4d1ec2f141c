// SPDX-License-Identifier: Apache-2.0
// What the client refuses of a write before it stages a byte of it: what no node would take.
#pragma once

#include <cstdint>
#include <span>

#include "cistern/namespace.h"
#include "cistern/status.h"
#include "cistern/store.h"

namespace cistern::client {

// The bytes of the block's part, wherever the caller has them.
std::uint64_t PartBytes(const BlockWrite& block);

// kInvalid names the first block with a group or part that the namespace does not have, several parts and no
// put id, no bytes, or a body over kMaxBodyBytes.
Status CheckWrites(const NamespaceSpec& spec, std::span<const BlockWrite> blocks);

}  // namespace cistern::client
