// SPDX-License-Identifier: Apache-2.0
// A result with the arithmetic behind it, so that whoever reads it can do it again.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cistern::planner {

struct Figure {
  std::string key;    // stable, for scripts: "kv_bytes_per_token"
  std::string label;  // for people
  double value = 0;
  std::string unit;     // "B", "B/s", "s", "tokens", "USD" ...
  std::string formula;  // in words: "weights / 2 / bytes per token"
  std::string numbers;  // the formula with its numbers: "70,000,000,000 B / 2 / 327,680 B"
};

struct Section {
  std::string key;
  std::string title;
  std::vector<Figure> figures;
  std::vector<std::string> notes;  // what was assumed, and what the figures do not cover
};

// Whole numbers below 10^15 in full with commas, others from 10^5 rounded to one, smaller ones to six
// significant digits: "131,072", "95.8698".
std::string NumberText(double value);
// Value and unit for eyes: bytes in GB and the like ("1.34218 GB"), seconds in ms where that reads better.
std::string QuantityText(double value, std::string_view unit);

}  // namespace cistern::planner
