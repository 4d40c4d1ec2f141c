// SPDX-License-Identifier: Apache-2.0
// The line: what two iperf3 move side by side over loopback, the limit of rows that move blocks between
// nodes. And what two threads move that do nothing else, from memory to memory: iperf3 sends and receives one
// buffer, which stays in a cache, and blocks do not.
#pragma once

#include <cstdint>
#include <string>

#include "cistern/status.h"
#include "measure.h"

namespace cistern {

// Whether there is an iperf3.
bool HasLine();
// A port of loopback that nobody listens on now.
Result<std::string> FreePort();
// What a row's limit is called, with the system's congestion control, which iperf3 uses.
std::string LineName();
// GB/s of two iperf3 that move half of `bytes` each. Blocks.
Result<double> LineRate(std::uint64_t bytes);

// Sends blocks of one memory to another, as large as kBareBytes each, over one connection that does not pace:
// eight of 64 KiB a call, each once, and nobody looks at them.
class BareLine final {
 public:
  static constexpr std::size_t kBareBytes = 512u << 20;

  // GB/s of `bytes`. Blocks.
  Result<double> Rate(std::uint64_t bytes);

 private:
  Buffer from_{kBareBytes}, to_{kBareBytes};
};

}  // namespace cistern
