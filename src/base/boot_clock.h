// SPDX-License-Identifier: Apache-2.0
// The host's boot clock: the same in all of its processes, and it goes on while the host sleeps. For what
// another host counts on: a lease there ends whether this host sleeps or not.
#pragma once

#include "base/clock.h"

namespace cistern {

class BootClock final : public Clock {
 public:
  Instant Now() const override;
  WallTime Wall() const override { return SystemClock().Wall(); }
};

}  // namespace cistern
