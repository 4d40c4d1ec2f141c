// SPDX-License-Identifier: Apache-2.0
// The line: what two iperf3 move side by side over loopback, the limit of rows that move blocks between
// nodes.
#pragma once

#include <cstdint>
#include <string>

#include "cistern/status.h"

namespace cistern {

// Whether there is an iperf3.
bool HasLine();
// A port of loopback that nobody listens on now.
Result<std::string> FreePort();
// What a row's limit is called, with the system's congestion control, which iperf3 uses.
std::string LineName();
// GB/s of two iperf3 that move half of `bytes` each. Blocks.
Result<double> LineRate(std::uint64_t bytes);

}  // namespace cistern
