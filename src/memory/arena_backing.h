// SPDX-License-Identifier: Apache-2.0
// The host's memory behind an arena's headers and slots: taken and given back while the arena is in use.
#pragma once

#include <cstdint>

#include "cistern/status.h"
#include "memory/slots.h"

namespace cistern::memory {

class ArenaBacking {
 public:
  virtual ~ArenaBacking() = default;

  // Both take milliseconds a header: for a mover of their own.

  // The header and its slots get memory, present when this returns. kBusy: the host has no more.
  virtual Status Reserve(std::uint32_t header) = 0;
  // What is done for a header that has memory, and may be in use, once there is time: several times as long.
  virtual void Improve(std::uint32_t) {}
  // The memory of the range goes back to the host, but for the headers' generations. No slot there is in use,
  // and the arena serves none of its headers any more. Also for a range that has gone before: what a reader
  // touched since goes again.
  virtual void Release(const HeaderRange& range) = 0;
};

}  // namespace cistern::memory
