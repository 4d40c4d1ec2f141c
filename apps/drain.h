// SPDX-License-Identifier: Apache-2.0
// `cistern admin drain`: sets a node on its way out of service, and shows how far it is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cistern/cistern.h"
#include "command_line.h"

namespace cistern {

// Returns the exit code: kExitFailed also where something was left when its time had passed.
int RunDrain(std::string_view name, Store& store, const DrainOptions& options, std::int64_t deadline_us,
             bool json);

// Asks a node that was told to end for its status until it is gone. Another error of the status: nothing says
// that it has ended, as of one that hangs.
Status AwaitEnd(const std::function<Result<std::string>()>& status);

}  // namespace cistern
