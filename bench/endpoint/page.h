// SPDX-License-Identifier: Apache-2.0
// A measurement as one HTML page that stands alone: figures, plots, notes; light and dark.
#pragma once

#include <string>

#include "endpoint/figures.h"

namespace cistern {

std::string PageHtml(const Heading& heading, const Measurement& measurement);

}  // namespace cistern
