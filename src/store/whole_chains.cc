// SPDX-License-Identifier: Apache-2.0
#include "store/whole_chains.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "policy/hand_over.h"

namespace cistern::store {
namespace {

constexpr std::size_t kKeysAStep = kStepBytes / sizeof(BlockKey);

}  // namespace

WholeChains::WholeChains(const residency::StoreContext& context, residency::Residents& residents,
                         residency::Fetcher& fetcher, WalkOrder order)
    : context_(context),
      residents_(residents),
      fetcher_(fetcher),
      order_(std::move(order)),
      marks_(context.forest.block_end()),
      next_(context.forest.block_end()) {
  // What is asked for by its time of use comes in one helping.
  if (order_.cooled || order_.fresh) helping_ = kHelpings.size() - 1;
  if (!order_.fresh) return;
  residency::FreshRecords::Taken taken = residents_.fresh().Take();
  all_fresh_ = taken.all;
  // Those listed are among all where these are looked at one by one.
  if (taken.more || taken.all) return;
  fresh_ = std::move(taken.listed);
  next_ = 0;
}

WholeChains::~WholeChains() {
  if (order_.fresh && (!fresh_.empty() || next_ > 0) && !residents_.abandoned())
    residents_.fresh().GiveBack(all_fresh_);
}

std::optional<catalog::Forest::Copy> WholeChains::See(catalog::BlockId block) const {
  const catalog::Block& b = context_.forest.block(block);
  if (!b.has_key() || b.is(catalog::Block::kCut)) return std::nullopt;
  const catalog::IncarnationTree* tree = context_.forest.tree(b.tree);
  const catalog::NamespaceEntry* entry = tree == nullptr ? nullptr : context_.catalog.EntryOf(b.tree);
  if (entry == nullptr || entry->first_full == catalog::kNoGroup || tree->slot >= order_.wanted.size() ||
      !order_.wanted[tree->slot])
    return std::nullopt;
  const std::optional<catalog::Forest::Copy> copy = context_.forest.See(block, entry->first_full);
  if (!copy || (!copy->in_memory && !lower_) || context_.catalog.Expired(copy->expiry)) return std::nullopt;
  return copy;
}

// What lies in the lower tier alone was used no later than anything in memory.
std::uint32_t WholeChains::AgeOf(const catalog::Forest::Copy& copy, bool fetched) const {
  const policy::Order& order = residents_.order();
  std::optional<policy::EntryId> as;
  if (fetched || !copy.in_memory) {
    as = order.Oldest();
  } else if (order.Contains(copy.record)) {
    as = copy.record;
  }
  return as ? static_cast<std::uint32_t>(std::min<std::uint64_t>(order.Age(*as), UINT32_MAX)) : 0;
}

bool WholeChains::Due(const catalog::Forest::Copy& copy) const {
  const policy::Order& order = residents_.order();
  if (copy.in_memory && !order_.taken && context_.forest.record(copy.record).is(catalog::Record::kTaken))
    return false;
  if (order_.cooled &&
      (!copy.in_memory || !order.Contains(copy.record) || !residents_.cooling().Cooled(order, copy.record)))
    return false;
  const std::uint64_t most = kHelpings[helping_];
  return most == ~std::uint64_t{0} || AgeOf(copy) <= residents_.order().size() * most / 4;
}

catalog::BlockId WholeChains::DueChild(catalog::BlockId block) {
  std::size_t looked = 0;
  for (catalog::BlockId child = context_.forest.block(block).first_child;
       child != catalog::kNoId && looked < policy::kManyChildren;
       child = context_.forest.block(child).next_sibling, ++looked) {
    context_.steps.Count(2);
    const std::optional<catalog::Forest::Copy> copy = See(child);
    if (copy && Due(*copy) && child < marks_.size() && marks_[child] == kNew) return child;
  }
  return catalog::kNoId;
}

Task<bool> WholeChains::StandsOverYield(catalog::BlockId block) {
  const catalog::KeyHash key_hash = context_.forest.block(block).key_hash();
  co_await Yield();
  const bool stands =
      block < context_.forest.block_end() && context_.forest.block(block).key_hash() == key_hash;
  changed_ = changed_ || !stands;
  co_return stands;
}

Task<catalog::BlockId> WholeChains::LastDue(catalog::BlockId block) {
  while (!order_.fresh) {  // of children only fresh ones come
    if (context_.steps.Spent()) {
      const bool stands = co_await StandsOverYield(block);
      if (!stands) co_return catalog::kNoId;
    }
    const catalog::BlockId child = DueChild(block);
    if (child == catalog::kNoId) break;
    block = child;
  }
  co_return block;
}

catalog::BlockId WholeChains::TakeNext() {
  while (!fresh_.empty()) {
    const catalog::RecordHandle handle = fresh_.back();
    fresh_.pop_back();
    context_.steps.Count();
    if (context_.catalog.Lives(handle)) return context_.forest.record(handle.record).block;
    if (context_.steps.Spent()) return catalog::kNoId;
  }
  return next_ == 0 ? catalog::kNoId : --next_;
}

bool WholeChains::TakeFresh(catalog::BlockId block) {
  const catalog::Block& b = context_.forest.block(block);
  if (!b.has_key() || b.folded()) return false;
  bool fresh = all_fresh_;
  for (catalog::RecordId id = b.first_record; id != catalog::kNoId; id = context_.forest.record(id).next) {
    context_.steps.Count();
    catalog::Record& r = context_.forest.record(id);
    fresh = fresh || r.is(catalog::Record::kFresh);
    r.flags &= static_cast<std::uint8_t>(~catalog::Record::kFresh);
  }
  return fresh;
}

void WholeChains::Again(const WholeChain& chain, std::size_t begin, std::size_t end) {
  // The last one brings all before it, unless it has left by then.
  if (order_.fresh) begin = std::max(begin, end - std::min(end, kAgain));
  for (std::size_t at = begin; at < end; ++at) {
    const catalog::BlockId block = chain.blocks[at - chain.first].id;
    if (order_.fresh) {
      NoteAgain(block, chain.keys[at]);
    } else if (block < marks_.size() && marks_[block] == kCame) {
      marks_[block] = kNew;
      again_ = true;
    }
  }
  context_.steps.Count(static_cast<std::uint32_t>(end - begin) / (order_.fresh ? 1 : 8) + 1);
}

bool WholeChains::BeginRound() {
  if (!std::exchange(again_, false)) return false;
  next_ = static_cast<catalog::BlockId>(marks_.size());
  rounds_ = 1;
  return true;
}

void WholeChains::NoteFresh(catalog::BlockId block) {
  const std::optional<catalog::Forest::Copy> copy =
      block < context_.forest.block_end() ? See(block) : std::nullopt;
  if (copy && copy->in_memory) residents_.fresh().Note(copy->record, context_.forest.record(copy->record));
}

void WholeChains::NoteAgain(catalog::BlockId block, const BlockKey& key) {
  const std::optional<catalog::Forest::Copy> copy = block < marks_.size() ? See(block) : std::nullopt;
  if (!copy || !copy->in_memory) return;
  catalog::Record& record = context_.forest.record(copy->record);
  if (record.key != key) return;
  // Where it is listed for this walk is not looked at any more.
  marks_[block] = kNoted;
  record.flags &= static_cast<std::uint8_t>(~catalog::Record::kFresh);
  residents_.fresh().Note(copy->record, record);
}

Task<bool> WholeChains::BeginNext() {
  // What changed while it was looked at is fresh again.
  if (order_.fresh) co_return false;
  next_ = static_cast<catalog::BlockId>(marks_.size());
  if (helping_ + 1 < kHelpings.size()) {
    ++helping_;
    co_return true;
  }
  if (std::exchange(changed_, false) && ++rounds_ < kRounds) co_return true;
  if (!order_.lower_tier || std::exchange(lower_, true)) co_return false;
  rounds_ = 1;
  for (std::size_t block = 0; block < marks_.size(); ++block) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    if (marks_[block] == kNotWhole) marks_[block] = kNew;
  }
  co_return true;
}

Task<std::optional<WholeChain>> WholeChains::Next() {
  for (;;) {
    if (lower_ && context_.executor.Now() >= order_.deadline) co_return std::nullopt;
    if (!unfinished_) {
      if (context_.steps.Spent()) co_await Yield();
      catalog::BlockId block = TakeNext();
      if (block == catalog::kNoId && !fresh_.empty()) continue;
      if (block == catalog::kNoId) {
        const bool more = co_await BeginNext();
        if (!more) co_return std::nullopt;
        continue;
      }
      context_.steps.Count();
      if (block >= context_.forest.block_end()) continue;
      if (order_.fresh && block < marks_.size() && marks_[block] == kNoted) continue;
      if (order_.fresh && !TakeFresh(block)) continue;
      if (block < marks_.size() && marks_[block] != kNew) continue;
      const std::optional<catalog::Forest::Copy> copy = See(block);
      if (!copy || !Due(*copy)) continue;
      block = co_await LastDue(block);
      if (block == catalog::kNoId) continue;
      context_.steps.Count(2);
      std::vector<Climbed> climbed = co_await Climb(block);
      if (climbed.empty() && order_.fresh && std::exchange(changed_, false)) NoteFresh(block);
      if (climbed.empty()) continue;
      unfinished_.emplace(std::move(climbed));
    }
    std::optional<WholeChain> chain = co_await Collect();
    if (!chain) changed_ = true;
    if (!chain && order_.fresh) NoteFresh(unfinished_->climbed.front().block);
    if (!chain || unfinished_->left == 0) unfinished_.reset();
    // Of one that has come with others already nothing is left.
    if (chain && !chain->blocks.empty()) co_return chain;
  }
}

Task<std::vector<WholeChains::Climbed>> WholeChains::Climb(catalog::BlockId block) {
  std::vector<Climbed> climbed;
  catalog::BlockId at = block;
  while (climbed.size() < kMostBlocks) {
    if (context_.steps.Spent()) {
      const bool stands = co_await StandsOverYield(at);
      if (!stands) co_return std::vector<Climbed>();
    }
    context_.steps.Count(2);
    if (!See(at)) break;
    const catalog::Block& b = context_.forest.block(at);
    climbed.push_back({.block = at, .key_hash = b.key_hash()});
    if (b.parent == catalog::kNoId || context_.forest.block(b.parent).is(catalog::Block::kHome)) break;
    if (context_.forest.block(b.parent).is(catalog::Block::kRoot)) co_return climbed;
    at = b.parent;
  }
  // What stands on a block that is not there is worth nothing elsewhere.
  for (std::size_t i = 0; i < climbed.size(); ++i) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    if (climbed[i].block < marks_.size()) marks_[climbed[i].block] = kNotWhole;
  }
  co_return std::vector<Climbed>();
}

bool WholeChains::BeginsBranch(catalog::BlockId block) {
  const catalog::BlockId parent = context_.forest.block(block).parent;
  const bool has_parent = !context_.forest.block(parent).is(catalog::Block::kRoot);
  std::size_t siblings = 0;
  for (catalog::BlockId child = context_.forest.block(parent).first_child;
       has_parent && child != catalog::kNoId && siblings < policy::kManyChildren;
       child = context_.forest.block(child).next_sibling)
    ++siblings;
  context_.steps.Count(static_cast<std::uint32_t>(siblings));
  return policy::BeginsBranch(has_parent, siblings);
}

Task<bool> WholeChains::LearnKeys() {
  Unfinished& of = *unfinished_;
  struct Asked {
    std::size_t at;
    residency::RecordReference reference;
    std::shared_ptr<residency::PendingFetch> fetch;
  };
  std::vector<Asked> asked;
  std::uint64_t bytes = 0;
  for (std::size_t at = of.left; at-- > 0 && asked.size() < kFetches && bytes < kFetchBytes;) {
    if (!IsStill(of.climbed[at])) break;
    const std::optional<catalog::Forest::Copy> copy = See(of.climbed[at].block);
    if (!copy) break;
    const catalog::RecordId record = context_.forest.Take(of.climbed[at].block, copy->group);
    context_.steps.Count(3);
    bytes += copy->body_bytes;
    of.climbed[at].key = context_.forest.record(record).key;
    if (!of.climbed[at].key.none()) continue;
    of.climbed[at].fetched = true;
    fetcher_.DecidePromotion(record);
    residency::RecordReference reference(residents_, context_.catalog.HandleOf(record));
    asked.push_back({at, std::move(reference), fetcher_.Start(record)});
  }
  for (Asked& one : asked) {
    const Status ended = co_await one.fetch->done.Wait(order_.deadline);
    const catalog::RecordHandle handle = one.reference.handle();
    // It may have come by another way, whatever became of the fetch.
    if (ended.ok() && context_.catalog.Lives(handle))
      of.climbed[one.at].key = context_.forest.record(handle.record).key;
    one.reference.Drop(residency::Residents::Used::kNo);
  }
  of.bytes += bytes;
  co_return !of.climbed[of.left - 1].key.none();
}

Task<WholeChain> WholeChains::TakePiece() {
  Unfinished& of = *unfinished_;
  WholeChain piece{.slot = of.chain.slot,
                   .incarnation = of.chain.incarnation,
                   .keys = {},
                   .first = of.chain.first,
                   .blocks = std::exchange(of.chain.blocks, {}),
                   .branches = of.chain.branches};
  piece.keys.reserve(of.chain.keys.size());
  while (piece.keys.size() < of.chain.keys.size()) {
    const auto from = of.chain.keys.begin() + static_cast<std::ptrdiff_t>(piece.keys.size());
    const auto count = std::min<std::ptrdiff_t>(kKeysAStep, of.chain.keys.end() - from);
    piece.keys.insert(piece.keys.end(), from, from + count);
    co_await Yield();
  }
  of.chain.first = of.chain.keys.size();
  of.bytes = 0;
  co_return piece;
}

Task<std::optional<WholeChain>> WholeChains::Collect() {
  Unfinished& of = *unfinished_;
  WholeChain& chain = of.chain;
  chain.keys.reserve(of.climbed.size());
  while (of.left > 0) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count(2);
    Climbed& at = of.climbed[of.left - 1];
    const catalog::BlockId block = at.block;
    // It has changed meanwhile.
    std::optional<catalog::Forest::Copy> copy = IsStill(at) ? See(block) : std::nullopt;
    if (copy && copy->in_memory) at.key = context_.forest.record(copy->record).key;
    if (const auto known = shared_keys_.find(block); copy && at.key.none() && known != shared_keys_.end())
      at.key = known->second;
    if (copy && at.key.none()) {
      const bool learned = co_await LearnKeys();
      copy = learned && IsStill(at) ? See(block) : std::nullopt;
    }
    if (!copy || (of.parent != catalog::kNoId && context_.forest.block(block).parent != of.parent))
      co_return std::nullopt;
    const catalog::Block& b = context_.forest.block(block);
    if (catalog::KeyHashOf(b.tree, at.key) != at.key_hash) co_return std::nullopt;
    if (chain.keys.empty()) {
      const catalog::IncarnationTree& tree = *context_.forest.tree(b.tree);
      chain.slot = tree.slot;
      chain.incarnation = tree.incarnation;
    }
    const bool shared = b.first_child != catalog::kNoId &&
                        context_.forest.block(b.first_child).next_sibling != catalog::kNoId;
    if (lower_ && shared && shared_keys_.size() < kSharedKeys) shared_keys_[block] = at.key;
    if (BeginsBranch(block)) chain.branches.push_back(chain.keys.size());
    chain.keys.push_back(at.key);
    const bool came = HasCome(block);
    if (came && chain.blocks.empty()) chain.first = chain.keys.size();
    if (!came || !chain.blocks.empty())
      chain.blocks.push_back({block, copy->body_bytes, AgeOf(*copy, at.fetched)});
    of.parent = block;
    --of.left;
    if (lower_ && of.left > 0 && !chain.blocks.empty() &&
        (of.bytes >= kPieceBytes || chain.blocks.size() >= kPieceBlocks)) {
      MarkCame(chain.blocks);
      co_return co_await TakePiece();
    }
  }
  for (std::size_t i = 0; i < chain.blocks.size(); ++i) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    const catalog::BlockId block = chain.blocks[i].id;
    if (block < marks_.size()) marks_[block] = kCame;
  }
  co_return std::move(chain);
}

void WholeChains::MarkCame(const std::vector<WholeChain::Block>& blocks) {
  for (const WholeChain::Block& block : blocks) {
    if (block.id < marks_.size()) marks_[block.id] = kCame;
  }
  context_.steps.Count(static_cast<std::uint32_t>(blocks.size()) / 8 + 1);
}

void WholeChains::NoteGiven(const WholeChain& chain, std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < end; ++at) {
    const catalog::BlockId block = chain.blocks[at - chain.first].id;
    if (block < marks_.size()) marks_[block] = kGiven;
  }
  context_.steps.Count(static_cast<std::uint32_t>(end - begin) / 8 + 1);
}

Task<std::uint64_t> WholeChains::CountLeft() {
  std::uint64_t left = 0;
  for (catalog::BlockId block = 0; block < context_.forest.block_end(); ++block) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    if (block < marks_.size() && marks_[block] == kGiven) continue;
    const catalog::Block& b = context_.forest.block(block);
    if (!b.has_key() || b.is(catalog::Block::kCut)) continue;
    if (order_.lower_tier) {
      left += b.placeholder() ? 0 : 1;
      continue;
    }
    if (b.folded()) continue;
    bool alone = false;
    for (catalog::RecordId record = b.first_record; record != catalog::kNoId && !alone;
         record = context_.forest.record(record).next) {
      context_.steps.Count();
      alone = context_.forest.record(record).in_memory() && !context_.forest.record(record).in_lower_tier();
    }
    left += alone ? 1 : 0;
  }
  co_return left;
}

}  // namespace cistern::store
