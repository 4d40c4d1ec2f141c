// SPDX-License-Identifier: Apache-2.0
// What a store knows of one block, for people who ask why it is not found.
#pragma once

#include <optional>

#include "catalog/gone_blocks.h"
#include "cistern/where.h"

namespace cistern::store {

struct BlockLook {
  std::optional<Where> here;  // readable, in all full groups: in memory, or in the tier below
  bool reads_off = false;     // whatever is here
  bool strict = false;        // the same, since the node's membership of its cell does not stand
  bool pending = false;       // a put of it waits for its parent, for other parts or to be published
  catalog::WentBy went = catalog::WentBy::kUnknown;  // why one that was here is not
};

}  // namespace cistern::store
