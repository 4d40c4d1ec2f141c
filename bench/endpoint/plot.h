// SPDX-License-Identifier: Apache-2.0
// Plots as inline SVG, without a script or anything from outside: axes with round numbers, lines or dots,
// colours by class (`run0`, `run1` ...), which the page's style gives for light and dark.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cistern {

struct Axis {
  std::string label;
  double low = 0, high = 1;
  bool logarithmic = false;  // both ends above zero
};

// An axis that holds all `values`: from zero, or logarithmic where they span more than a factor of 20.
Axis AxisFor(std::string label, const std::vector<double>& values);

// Round numbers within the axis, about `count` of them.
std::vector<double> Ticks(const Axis& axis, int count);

struct Series {
  std::string name;
  int colour = 0;
  std::vector<std::pair<double, double>> points;
};

enum class Mark { kStairs, kDots, kLines };  // kLines: dots and straight lines between them

struct Plot {
  std::string title;
  std::string about;  // one sentence: what it shows, for who cannot see it
  Axis x, y;
  Mark mark = Mark::kDots;
  std::vector<Series> series;
};
std::string DrawPlot(const Plot& plot);

// CSS of a page of plots, of its frames and text, and of a key beside them. The page's own style says what
// --paper, --ink, --soft and --line are and how a series of each colour looks.
extern const std::string_view kPlotsStyle;

// Text as it may stand in HTML, in an element or a quoted attribute.
std::string Escaped(std::string_view text);

}  // namespace cistern
