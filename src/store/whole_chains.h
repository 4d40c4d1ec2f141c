// SPDX-License-Identifier: Apache-2.0
// A walk of the blocks in memory by whole chains, root to leaf: for who gives them to another node, where a
// block is worth nothing without all that stands before it. Each block comes once, its parent with it or
// before it; what was used lately comes before what was not, in a few helpings. The walk goes on in slices of
// a step, beside whatever else the store does, and a chain that changes meanwhile is left out: it is a
// choice of what to give, and whoever takes it proves it.
//
// Where it is asked for, chains come last of which some lies in the lower tier alone. Such a block knows its
// key by a hash, and the key itself is in the record there: it is fetched, and the chain comes piece by
// piece, so that what is fetched for it is still in memory when somebody reads it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/task.h"
#include "catalog/slab.h"
#include "residency/context.h"
#include "residency/fetcher.h"
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

struct WalkOrder {
  std::vector<bool> wanted;  // by slot, whether blocks of the namespace in it come at all
  bool lower_tier = false;   // and what lies there alone
  Instant deadline;          // of fetches from there
  bool cooled = false;       // chains whose last block has cooled (BlockStore::TakeCooled)
  // Chains whose last block came or was used since another such walk began (residency::FreshRecords).
  bool fresh = false;
  bool taken = true;  // also those whose last block another node handed over, and nobody has used here
};

class WholeChains final {
 public:
  static constexpr std::size_t kMostBlocks = 16'384;  // of a chain; what lies deeper does not come
  // Of a piece, where some of the chain was fetched for it; and of fetches that are under way.
  static constexpr std::uint64_t kPieceBytes = 8u << 20, kFetchBytes = 4u << 20;
  static constexpr std::size_t kPieceBlocks = 512, kFetches = 16;

  WholeChains(const residency::StoreContext& context, residency::Residents& residents,
              residency::Fetcher& fetcher, WalkOrder order);
  ~WholeChains();
  WholeChains(const WholeChains&) = delete;
  WholeChains& operator=(const WholeChains&) = delete;

  Executor& executor() { return context_.executor; }

  // The next chain of the walk; none: the walk has ended.
  Task<std::optional<WholeChain>> Next();
  // Another node has the blocks [begin, end) of the chain: at most as many as a step may touch.
  void NoteGiven(const WholeChain& chain, std::size_t begin, std::size_t end);
  bool given(const WholeChain& chain, std::size_t at) const {
    const catalog::BlockId block = chain.blocks[at - chain.first].id;
    return block < marks_.size() && marks_[block] == kGiven;
  }
  // Blocks of [begin, end) that were not given are walked again: in the next walk of fresh blocks, or in the
  // next round of this walk.
  void Again(const WholeChain& chain, std::size_t begin, std::size_t end);
  // After the end: the walk goes on with what comes again. False: nothing does.
  bool BeginRound();
  // Blocks, of whatever namespace, of which memory alone has a record, or any tier if it walks over all, and
  // that were not given.
  Task<std::uint64_t> CountLeft();

 private:
  // kNoted: it came, and is fresh for another walk.
  enum Mark : std::uint8_t { kNew = 0, kCame = 1, kGiven = 2, kNotWhole = 3, kNoted = 4 };
  struct Climbed {
    catalog::BlockId block = catalog::kNoId;
    catalog::KeyHash key_hash = 0;
    BlockKey key;          // none(): not known yet
    bool fetched = false;  // for it: it was in the lower tier alone
  };
  // A chain of which the blocks [0, left) have not come yet; those of all of it, leaf to root.
  struct Unfinished {
    explicit Unfinished(std::vector<Climbed> its) : climbed(std::move(its)), left(climbed.size()) {}

    std::vector<Climbed> climbed;
    std::size_t left;
    WholeChain chain;
    catalog::BlockId parent = catalog::kNoId;
    std::uint64_t bytes = 0;  // of this piece
  };
  // Chains whose last block is no older than the order's size times this, over 4, come in this helping.
  static constexpr std::array<std::uint64_t, 3> kHelpings = {1, 8, ~std::uint64_t{0}};
  static constexpr int kRounds = 8;          // of the last helping
  static constexpr std::size_t kAgain = 64;  // blocks of a chain that are noted to come again
  static constexpr std::size_t kSharedKeys = 1u << 16;

  // The record of its full group, in a tier that is walked over now, of a block that may come.
  std::optional<catalog::Forest::Copy> See(catalog::BlockId block) const;
  std::uint32_t AgeOf(const catalog::Forest::Copy& copy, bool fetched = false) const;
  bool Due(const catalog::Forest::Copy& copy) const;
  // One of its first children that is due and has not come; kNoId: none is.
  catalog::BlockId DueChild(catalog::BlockId block);
  // Lets others have their turn. False: the id is another block's by now.
  Task<bool> StandsOverYield(catalog::BlockId block);
  // The last of those that are due and stand on each other, from the block on: it comes with them, whichever
  // has the lower id, since they may leave before they are looked at. kNoId: it has changed meanwhile.
  Task<catalog::BlockId> LastDue(catalog::BlockId block);
  // The next block that may be a chain's last one; kNoId: there is none in this round.
  catalog::BlockId TakeNext();
  // Whether one of the block's records is fresh; then none is any more.
  bool TakeFresh(catalog::BlockId block);
  // It is all the same: its chain changed while it was looked at.
  void NoteFresh(catalog::BlockId block);
  // It is once more, for another walk, if it is the block of this key still.
  void NoteAgain(catalog::BlockId block, const BlockKey& key);
  // Whether there are chains of another helping, or round.
  Task<bool> BeginNext();
  // From the block up to the chain's first one; empty: they are not all there.
  Task<std::vector<Climbed>> Climb(catalog::BlockId block);
  // The unfinished chain's next piece, or all of it; none: it has changed.
  Task<std::optional<WholeChain>> Collect();
  // The key of the last block that is left, and of some behind it. False: it cannot be had now.
  Task<bool> LearnKeys();
  // A copy of what has come, of which the rest is to come.
  Task<WholeChain> TakePiece();
  void MarkCame(const std::vector<WholeChain::Block>& blocks);
  bool IsStill(const Climbed& climbed) const {
    return climbed.block < context_.forest.block_end() &&
           context_.forest.block(climbed.block).key_hash() == climbed.key_hash;
  }
  bool BeginsBranch(catalog::BlockId block);
  bool HasCome(catalog::BlockId block) const {
    return block < marks_.size() && marks_[block] != kNew && marks_[block] != kNotWhole;
  }

  const residency::StoreContext context_;
  residency::Residents& residents_;
  residency::Fetcher& fetcher_;
  const WalkOrder order_;
  catalog::LazyArray<std::uint8_t> marks_;
  std::size_t helping_ = 0;
  bool lower_ = false;  // what comes now lies in the lower tier, in part
  std::optional<Unfinished> unfinished_;
  // Of blocks that several chains stand on.
  std::unordered_map<catalog::BlockId, BlockKey> shared_keys_;
  // A chain changed while it was looked at, as drops do it: what is left of it comes in another round.
  bool changed_ = false;
  int rounds_ = 1;
  bool again_ = false;  // some of what came comes in another round
  // Ids rise along most chains, and uses go along them: from the last one down, a leaf comes first.
  catalog::BlockId next_;
  std::vector<catalog::RecordHandle> fresh_;  // the next one last
  bool all_fresh_ = false;
};

}  // namespace cistern::store
