// SPDX-License-Identifier: Apache-2.0
// What the pages of subcommands have in common: a style for light and dark, plots of lines, keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "endpoint/plot.h"

namespace cistern {

// Beside kPlotsStyle.
extern const std::string_view kPageStyle;
inline constexpr int kPageColours = 7;  // of it, as Series::colour

// Lines over axes that hold all of them.
Plot Lines(std::string title, std::string about, std::string x, std::string y, std::vector<Series> series);
std::string Key(const std::vector<Series>& series);

}  // namespace cistern
