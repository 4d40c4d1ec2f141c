// SPDX-License-Identifier: Apache-2.0
// Programs that a row is measured against.
#pragma once

#include <string>
#include <vector>

#include "cistern/status.h"

namespace cistern {

// What the command says on its standard output, once it has ended with 0. kMiss: there is no such program;
// kIoError: it ended otherwise, with the first of what it said. Blocks.
Result<std::string> OutputOf(const std::vector<std::string>& command);

}  // namespace cistern
