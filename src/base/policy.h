// SPDX-License-Identifier: Apache-2.0
// What the library itself asks of policies (cistern/policy.h), from the same tables as their texts.
#pragma once

#include <string>

#include "cistern/policy.h"

namespace cistern {

// The values for --help: "all, second-hit (used after they were put); default: all".
std::string PolicyHelp(EvictionPolicy by_default);
std::string PolicyHelp(const WriteRule& by_default);
std::string PolicyHelp(Admission by_default);
std::string PolicyHelp(Promotion by_default);

// kInvalid for a number that no enumerator has, or uses or times out of bounds: what no text says, but a
// program can.
Status CheckPolicy(EvictionPolicy policy);
Status CheckPolicy(const WriteRule& rule);
Status CheckPolicy(Admission admission);
Status CheckPolicy(Promotion promotion);
Status CheckPolicy(const PromptHints& hints);

}  // namespace cistern
