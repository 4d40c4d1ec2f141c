// SPDX-License-Identifier: Apache-2.0
// What a drain asks of the cell, where the node is in one: that other members take what memory has, or the
// lower tier too, before it goes. The store knows nothing else of them.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/task.h"

namespace cistern::store {

struct GiveOrder {
  Instant deadline;
  // What lies in the lower tier alone goes too, behind what memory has.
  bool lower_tier = false;
  // Of bodies that are on offer at a time, or one offer: those who take them have them read from the lower
  // tier, and memory has to have room for all of that.
  std::uint64_t offered_bytes = ~std::uint64_t{0};
};

struct HandedOver {
  std::uint64_t blocks = 0;   // that other nodes had published when the node heard so
  std::uint64_t bytes = 0;    // of their bodies
  std::uint64_t left = 0;     // blocks that memory alone has, or any tier if all goes, and nobody took
  std::uint64_t members = 0;  // other nodes that could be asked at the begin; 0: nobody was offered anything
};

class HandOver {
 public:
  // True: the node takes nothing that others hand over, and they know it. False: it is in service again, and
  // a Give ends soon.
  virtual void SetDraining(bool draining) = 0;
  // Ends when all that goes was offered, by the deadline, or soon after Stop. The node's copies stay.
  virtual Task<HandedOver> Give(GiveOrder order) = 0;
  virtual void Stop() = 0;

 protected:
  ~HandOver() = default;
};

}  // namespace cistern::store
