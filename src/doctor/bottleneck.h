// SPDX-License-Identifier: Apache-2.0
// What keeps engines from hits, from a node's counters since its start. One measure for all: of the blocks
// that engines asked for, those that they had not and that more of one thing would have given them.
#pragma once

#include <boost/json/object.hpp>

#include "doctor/finding.h"

namespace cistern::doctor {

// `bottleneck`: compute, memory capacity, bandwidth, network and scheduling, the one that costs most first,
// where anything was asked for; `sharing`, `core` and `worth` where there is something to mend.
void AddBottlenecks(const boost::json::object& status, Findings& findings);

}  // namespace cistern::doctor
