// SPDX-License-Identifier: Apache-2.0
// The node that a row measures.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "bench.h"
#include "daemon.h"

namespace cistern {

// A node with all of its memory, before anything is measured: it goes on to make it after its start, and
// that takes a processor.
Result<Daemon> StartNode(const BenchOptions& options, std::vector<std::string> flags);
// Until it has it, in huge pages where the system has any.
Status AwaitMemory(Store& store);

// A number of the node's status, by the names of the objects that lead there.
Result<double> StatusNumber(Store& store, std::initializer_list<std::string_view> names);

}  // namespace cistern
