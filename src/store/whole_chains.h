// SPDX-License-Identifier: Apache-2.0
// A walk of the blocks in memory by whole chains, root to leaf: for who gives them to another node, where a
// block is worth nothing without all that stands before it. Each block comes once, its parent with it or
// before it; what was used lately comes before what was not, in a few helpings. The walk goes on in slices of
// a step, beside whatever else the store does, and a chain that changes meanwhile is left out: it is a
// choice of what to give, and whoever takes it proves it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/task.h"
#include "catalog/slab.h"
#include "residency/context.h"
#include "residency/residents.h"

namespace cistern::store {

struct WholeChain {
  struct Block {
    catalog::BlockId id = catalog::kNoId;
    std::uint32_t body_bytes = 0;  // in the full group
    std::uint32_t age = 0;         // as policy::Order::Age, at most UINT32_MAX
  };
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
  std::vector<BlockKey> keys;         // from the chain's first block on
  std::size_t first = 0;              // those before it came with an earlier chain
  std::vector<Block> blocks;          // from `first` on
  std::vector<std::size_t> branches;  // where one begins (policy::BeginsBranch), rising; 0 is one
};

class WholeChains final {
 public:
  static constexpr std::size_t kMostBlocks = 16'384;  // of a chain; what lies deeper does not come

  // `wanted`: by slot, whether blocks of the namespace in it come at all.
  WholeChains(const residency::StoreContext& context, const residency::Residents& residents,
              std::vector<bool> wanted);
  WholeChains(const WholeChains&) = delete;
  WholeChains& operator=(const WholeChains&) = delete;

  Executor& executor() { return executor_; }

  // None: all have come.
  Task<std::optional<WholeChain>> Next();
  // Another node has the blocks [begin, end) of the chain: at most as many as a step may touch.
  void NoteGiven(const WholeChain& chain, std::size_t begin, std::size_t end);
  // Blocks, of whatever namespace, of which memory alone has a record and that were not given.
  Task<std::uint64_t> CountLeft();

 private:
  enum Mark : std::uint8_t { kNew = 0, kCame = 1, kGiven = 2, kNotWhole = 3 };
  struct Climbed {
    catalog::BlockId block = catalog::kNoId;
    catalog::KeyHash key_hash = 0;
  };
  // Chains whose last block is no older than the order's size times this, over 4, come in this helping.
  static constexpr std::array<std::uint64_t, 3> kHelpings = {1, 8, ~std::uint64_t{0}};
  static constexpr int kRounds = 8;  // of the last helping

  // The record of its full group, in memory, of a block that may come; kNoId for any other.
  catalog::RecordId RecordOf(catalog::BlockId block) const;
  std::uint32_t AgeOf(catalog::RecordId record) const;
  bool Due(catalog::RecordId record) const;
  // From the block up to the chain's first one; empty: they are not all in memory.
  Task<std::vector<Climbed>> Climb(catalog::BlockId block);
  Task<std::optional<WholeChain>> Collect(const std::vector<Climbed>& climbed);
  bool BeginsBranch(catalog::BlockId block);
  bool HasCome(catalog::BlockId block) const {
    return block < marks_.size() && (marks_[block] == kCame || marks_[block] == kGiven);
  }

  Executor& executor_;
  StepBudget& steps_;
  catalog::Catalog& catalog_;
  const catalog::Forest& forest_;
  const residency::Residents& residents_;
  const std::vector<bool> wanted_;
  catalog::LazyArray<std::uint8_t> marks_;
  std::size_t helping_ = 0;
  // A chain changed while it was looked at, as drops do it: what is left of it comes in another round.
  bool changed_ = false;
  int rounds_ = 1;
  catalog::BlockId next_;  // ids rise along most chains: from the last one down, a leaf comes first
};

}  // namespace cistern::store
