// SPDX-License-Identifier: Apache-2.0
#include "planner/figure.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "base/format.h"

namespace cistern::planner {
namespace {

constexpr double kLargestInFull = 1e15;

std::string Short(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string WithCommas(double whole) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.0f", whole);
  std::string digits = text.data();
  const std::size_t first = digits.starts_with('-') ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string Scaled(double value, std::string_view unit) {
  constexpr std::array<std::string_view, 7> kPrefixes = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  while (std::abs(value) >= 1000 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  return Text(Short(value), " ", kPrefixes[prefix], unit);
}

}  // namespace

std::string NumberText(double value) {
  if (std::abs(value) < kLargestInFull && value == std::floor(value)) return WithCommas(value);
  if (std::abs(value) < kLargestInFull && std::abs(value) >= 1e5) return WithCommas(std::round(value));
  return Short(value);
}

std::string QuantityText(double value, std::string_view unit) {
  if (unit == "B") {
    if (std::abs(value) < 1e6) return Text(NumberText(value), " B");
    constexpr double kGiB = 1024.0 * 1024 * 1024;
    return Text(Scaled(value, "B"), " (", Short(value / kGiB), " GiB)");
  }
  if (unit == "B/s" || unit == "FLOP/s" || unit == "FLOP") return Scaled(value, unit);
  if (unit == "s") {
    if (std::abs(value) < 1e-3) return Text(Short(value * 1e6), " us");
    return std::abs(value) < 1 ? Text(Short(value * 1e3), " ms") : Text(Short(value), " s");
  }
  if (unit == "USD") return Text("$", NumberText(value));
  if (unit.empty()) return NumberText(value);
  return Text(NumberText(value), " ", unit);
}

}  // namespace cistern::planner
