// SPDX-License-Identifier: Apache-2.0
// The flag that chooses a policy for the simulator.
#pragma once

#include <string_view>

#include "base/format.h"
#include "command_line.h"
#include "workload/simulator.h"

namespace cistern {

// `policy` has the default, and outlives the parsing.
inline void SimPolicyFlag(CommandLine& line, std::string_view about, workload::SimPolicy* policy) {
  line.Flag("--policy", "NAME", Text(about, ": ", workload::SimPolicies(), "; default: ", ToString(*policy)),
            [policy](std::string_view text) {
              Result<workload::SimPolicy> value = workload::ParseSimPolicy(text);
              if (value) *policy = *value;
              return value ? Status() : value.error();
            });
}

}  // namespace cistern
