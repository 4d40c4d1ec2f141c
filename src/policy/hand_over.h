// SPDX-License-Identifier: Apache-2.0
// Which member of a cell is offered which chain of another one, by hand-over. A child follows where its
// parent went; the first block of a chain, and each child of a block with many, is a branch of its own and
// chooses by weighted rendezvous: each member draws a number from the branch's key and its own, and the
// smallest is first. So a branch's choice depends on no other branch, each member gets branches in proportion
// to its weight, and when one leaves only its branches choose anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cistern/namespace.h"
#include "cistern/status.h"

namespace cistern::policy {

struct Taker {
  std::uint64_t id = 0;
  std::uint64_t weight = 0;  // 0: is offered nothing
};

// How many members are to have a block, this one too, of the namespaces that a pattern names; of all where it
// is empty.
struct Copies {
  static constexpr std::uint32_t kMost = kMaxCopies;

  std::string pattern;  // as MatchesNamespace's
  std::uint32_t members = 1;

  friend bool operator==(const Copies&, const Copies&) = default;
};

// "PATTERN:N", or "N". kInvalid names what is wrong.
Result<Copies> ParseCopies(std::string_view text);
std::string CopiesText(const Copies& copies);
// As the first says that fits; 1: none does.
std::uint32_t CopiesOf(std::span<const Copies> all, std::span<const std::string> names,
                       std::span<const std::pair<std::string, std::string>> fields);

// Children from which on each one chooses for itself.
inline constexpr std::size_t kManyChildren = 16;

// Whether a block is a branch: it has no parent, or one with so many children, of which kManyChildren need
// be counted at most.
constexpr bool BeginsBranch(bool has_parent, std::size_t siblings) {
  return !has_parent || siblings >= kManyChildren;
}

// The takers with a weight, in the order in which a branch prefers them.
std::vector<std::uint64_t> TakersOf(std::uint64_t branch, std::span<const Taker> takers);

}  // namespace cistern::policy
