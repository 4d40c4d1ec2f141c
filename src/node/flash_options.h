// SPDX-License-Identifier: Apache-2.0
// How the settings of flash are written: volumes, rates, budget, policies. Each message begins with `name`,
// what whoever wrote it calls it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cistern/options.h"
#include "cistern/status.h"
#include "policy/lower_tier.h"

namespace cistern {

// PATH or PATH:SIZE, added to the list. A path may have colons; a size begins with a digit.
Status AddFlashVolume(std::string_view name, std::string_view text, std::vector<FlashVolume>& volumes);

// SIZE/day, above zero.
Result<std::uint64_t> ParseBudget(std::string_view name, std::string_view text);

// SIZE/s, or 0.
Result<std::uint64_t> ParseScrubRate(std::string_view name, std::string_view text);

// through, back, selective or selective:N.
Status ParseFlashWrite(std::string_view name, std::string_view text, LowerWish& wish);

// all or second-hit.
Status ParseFlashAdmit(std::string_view name, std::string_view text, LowerWish& wish);

// all or second-hit.
Result<Promotion> ParseFlashPromote(std::string_view name, std::string_view text);

// What flash_write, flash_admit and flash_promote say together.
Result<LowerPolicy> LowerPolicyOf(const OpenOptions& options);

// That the fields fit each other; what they name on this host is not looked at.
Status CheckFlashOptions(const OpenOptions& options);

}  // namespace cistern
