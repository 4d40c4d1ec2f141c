// SPDX-License-Identifier: Apache-2.0
// What a start would refuse of resolved options and of this host, in its words and in its order, without
// starting: each part is asked by the function that the start asks, or by a look of the same place. Nothing
// is made. Whether somebody uses a place now, or the host's memory, is not asked, since it may be the node
// that has these settings; and root's look leaves open whose a directory is.
#pragma once

#include "cistern/status.h"
#include "node/options.h"

namespace cistern::node {

Status CheckNodeOptions(const NodeOptions& options);

// Of that, what concerns memory_dir.
Status CheckMemoryDirectory(const NodeOptions& options);

}  // namespace cistern::node
