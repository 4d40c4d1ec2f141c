// SPDX-License-Identifier: Apache-2.0
// Another history for the cell that a node's settings name, without a node: for who has restored its etcd
// from a backup while none ran.
#pragma once

#include <cstdint>

#include "cistern/status.h"
#include "mesh/cell_history.h"
#include "node/options.h"

namespace cistern::node {

// Of the settings it reads those of the cell's etcd, name and key. Blocks. kInvalid names the one that is
// missing or wrong; kDenied: others may read a key's file; as mesh::ReplaceHistory.
Result<mesh::ReplacedHistory> BeginNewHistory(const NodeOptions& options, std::int64_t deadline_us);

}  // namespace cistern::node
