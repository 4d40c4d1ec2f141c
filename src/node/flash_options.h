// SPDX-License-Identifier: Apache-2.0
// How the settings of flash, and rates, are written: volumes, bytes a second, budget. Each message begins
// with `name`, what whoever wrote it calls it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cistern/options.h"
#include "cistern/status.h"

namespace cistern::node {

// PATH or PATH:SIZE, added to the list. A path may have colons; a size begins with a digit.
Status AddFlashVolume(std::string_view name, std::string_view text, std::vector<FlashVolume>& volumes);

// SIZE/day, above zero.
Result<std::uint64_t> ParseBudget(std::string_view name, std::string_view text);

// SIZE/s, or 0, which is for `zero` ("never").
Result<std::uint64_t> ParseBytesASecond(std::string_view name, std::string_view text, std::string_view zero);

// That the fields fit each other; what they name on this host is not looked at.
Status CheckFlashOptions(const OpenOptions& options);

}  // namespace cistern::node
