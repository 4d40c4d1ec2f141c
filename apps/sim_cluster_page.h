// SPDX-License-Identifier: Apache-2.0
// Runs of a fleet as one HTML page that stands alone: a table, first-token times, load by node; light and
// dark.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fleet/result.h"

namespace cistern {

std::string ClusterPageHtml(std::string_view trace, const fleet::ClusterOptions& options,
                            const std::vector<fleet::ClusterResult>& results);

}  // namespace cistern
