// SPDX-License-Identifier: Apache-2.0
#include "policy/hand_over.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "base/nearest.h"
#include "base/random.h"
#include "policy/namespace_pattern.h"

namespace cistern::policy {
namespace {

// Exponentially distributed, with the weight as its rate: the least of several is one's own with a
// probability of its share of the weights.
double Draw(std::uint64_t branch, const Taker& taker) {
  const std::uint64_t bits = SplitMix(SplitMix(branch) ^ taker.id) >> 11;
  const double uniform = (static_cast<double>(bits) + 0.5) * 0x1p-53;
  return -std::log(uniform) / static_cast<double>(taker.weight);
}

}  // namespace

Result<Copies> ParseCopies(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  Copies copies;
  if (colon != std::string_view::npos) copies.pattern = text.substr(0, colon);
  const std::string_view number = colon == std::string_view::npos ? text : text.substr(colon + 1);
  const char* const end = number.data() + number.size();
  const auto read = std::from_chars(number.data(), end, copies.members);
  const bool is_number = read.ec == std::errc() && read.ptr == end;
  if (!is_number || copies.members == 0 || copies.members > Copies::kMost)
    return Error(Code::kInvalid, Text("copies: ", Shown(text), " is not 1 to ", Copies::kMost,
                                      ", nor PATTERN:N with such a number behind it"));
  if (colon == 0)
    return Error(Code::kInvalid, Text("copies: ", Shown(text), " has no pattern before the colon"));
  return copies;
}

std::string CopiesText(const Copies& copies) {
  return copies.pattern.empty() ? Text(copies.members) : Text(copies.pattern, ":", copies.members);
}

std::uint32_t CopiesOf(std::span<const Copies> all, std::span<const std::string> names,
                       std::span<const std::pair<std::string, std::string>> fields) {
  for (const Copies& one : all) {
    if (one.pattern.empty() || MatchesNamespace(one.pattern, names, fields)) return one.members;
  }
  return 1;
}

std::vector<std::uint64_t> TakersOf(std::uint64_t branch, std::span<const Taker> takers) {
  std::vector<std::pair<double, std::uint64_t>> drawn;
  for (const Taker& taker : takers) {
    if (taker.weight > 0) drawn.emplace_back(Draw(branch, taker), taker.id);
  }
  std::ranges::sort(drawn);
  std::vector<std::uint64_t> order;
  for (const auto& [draw, id] : drawn) order.push_back(id);
  return order;
}

}  // namespace cistern::policy
