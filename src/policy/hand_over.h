// SPDX-License-Identifier: Apache-2.0
// Which member of a cell is offered which chain of a node that goes out of service. A child follows where its
// parent went; the first block of a chain, and each child of a block with many, is a branch of its own and
// chooses by weighted rendezvous: each member draws a number from the branch's key and its own, and the
// smallest is first. So a branch's choice depends on no other branch, each member gets branches in proportion
// to its weight, and when one leaves only its branches choose anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cistern::policy {

struct Taker {
  std::uint64_t id = 0;
  std::uint64_t weight = 0;  // 0: is offered nothing
};

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
