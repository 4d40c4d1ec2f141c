// SPDX-License-Identifier: Apache-2.0
#include "store/deletions.h"

namespace cistern::store {

namespace {

catalog::WentBy HowWent(residency::LossReason reason) {
  switch (reason) {
    case residency::LossReason::kDropped: return catalog::WentBy::kDropped;
    case residency::LossReason::kExpired: return catalog::WentBy::kExpired;
    case residency::LossReason::kBad: return catalog::WentBy::kBad;
    case residency::LossReason::kNoRoom: return catalog::WentBy::kEvicted;
  }
  return catalog::WentBy::kUnknown;
}

}  // namespace

std::shared_ptr<Deletion> Deletions::Cut(catalog::BlockId block, residency::LossReason reason) {
  // A block of a dropped namespace is collected with it, while the sizes of its records are known.
  const catalog::IncarnationTree* tree = context_.forest.tree(context_.forest.block(block).tree);
  if (tree == nullptr || context_.forest.block(tree->root).is(catalog::Block::kCut)) {
    removal_.RemoveRecordsOf(block);
    return nullptr;
  }
  Deletion deletion;
  deletion.top = deletion.at = block;
  deletion.tree = context_.forest.block(block).tree;
  deletion.reason = reason;
  expired_ = expired_ || reason == residency::LossReason::kExpired;
  if (context_.forest.block(block).has_key()) {
    deletion.key_hashes.push_back(context_.forest.block(block).key_hash());
    context_.catalog.gone().Note(context_.forest.block(block).key_hash(), HowWent(reason));
  }
  // A cut inside a subtree that is being collected belongs to that deletion.
  const auto before = of_trees_.find(deletion.tree);
  if (before != of_trees_.end()) {
    std::uint32_t budget = catalog::kStandingLooks;
    if (context_.forest.Standing(block, &budget) != catalog::Forest::Answer::kYes)
      deletion.since = *before->second.since.begin();
    context_.steps.Count(catalog::kStandingLooks - budget);
  }
  // The top's index entries are cleared first: a match from block 0 stops there from now on.
  if (!context_.forest.block(block).placeholder()) ++deletion.blocks;
  removal_.RemoveRecordsOf(block);
  const catalog::BlockId parent = context_.forest.Cut(block);
  // The collector's position may be a descendant of the new cut.
  if (before != of_trees_.end()) {
    Deletion& collected = *before->second.deletions.front();
    collected.at = collected.top;
  }
  auto started = Start(std::move(deletion));
  removal_.Settle(parent);
  return started;
}

// What lies below memory alone is in no list of what expires: who meets it there cuts it.
bool Deletions::CutExpired(catalog::BlockId block, std::uint16_t group, std::uint64_t now_s) {
  const auto copy = context_.forest.See(block, group);
  if (!copy || !catalog::Catalog::Expired(copy->expiry, now_s)) return false;
  Cut(block, residency::LossReason::kExpired);
  return true;
}

std::shared_ptr<Deletion> Deletions::Start(Deletion deletion) {
  deletion.made = context_.catalog.NextEvent();
  if (deletion.since == 0) deletion.since = deletion.made;
  deletion.slot = context_.forest.tree(deletion.tree)->slot;
  of_slot_[deletion.slot]++;
  context_.forest.CollectingBegins();
  OfTree& of = of_trees_[deletion.tree];
  of.since.insert(deletion.since);
  return of.deletions.emplace_back(std::make_shared<Deletion>(std::move(deletion)));
}

void Deletions::Freed(catalog::BlockId block, catalog::BlockId parent) {
  if (parent == catalog::kNoId) return;
  const auto of = of_trees_.find(context_.forest.block(parent).tree);
  if (of == of_trees_.end()) return;
  Deletion& collected = *of->second.deletions.front();
  if (collected.at == block) collected.at = parent;
}

void Deletions::Detach(catalog::BlockId block) {
  catalog::Block& b = context_.forest.block(block);
  if (!b.placeholder()) b.flags |= catalog::Block::kDetached;
  removal_.RemoveRecordsOf(block);
  context_.forest.TakeAway(block);
  context_.steps.Count();
}

// Ends puts of the cut blocks and of their descendants, if the puts were made before the cut; true: there
// may be more.
bool Deletions::EndPutsStep(Deletion& deletion) {
  if (context_.pending.size() == 0) {
    deletion.key_hashes.clear();
    return false;
  }
  if (deletion.whole_tree && deletion.next_put < context_.pending.end()) {
    const catalog::PutIndex put = deletion.next_put++;
    context_.steps.Count();
    const catalog::Put& p = context_.pending[put];
    if (p.name.tree == deletion.tree && p.state == catalog::Put::State::kOpen) puts_.End(put, Code::kMiss);
    return true;
  }
  if (deletion.key_hashes.empty()) return false;
  // One put a call. The oldest is first in the list, so puts made after the cut need no look.
  const catalog::KeyHash key_hash = deletion.key_hashes.back();
  for (const catalog::PutIndex put :
       {context_.pending.NextOf(deletion.tree, key_hash, catalog::kNoId),
        context_.pending.NextChildOf(deletion.tree, key_hash, catalog::kNoId)}) {
    context_.steps.Count();
    if (put == catalog::kNoId || context_.pending[put].made >= deletion.made) continue;
    const catalog::KeyHash ended = catalog::KeyHashOf(deletion.tree, context_.pending[put].name.key);
    puts_.End(put, Code::kMiss);
    if (ended != key_hash) deletion.key_hashes.push_back(ended);
    return true;
  }
  deletion.key_hashes.pop_back();
  return true;
}

void Deletions::CollectNode(Deletion& deletion) {
  const catalog::BlockId block = deletion.at;
  context_.steps.Count();
  catalog::Block& b = context_.forest.block(block);
  if (b.first_child != catalog::kNoId) {
    deletion.at = b.first_child;
    return;
  }
  if (!b.placeholder() || b.is(catalog::Block::kDetached)) ++deletion.blocks;
  removal_.RemoveRecordsOf(block);
  if (b.has_key()) {
    deletion.key_hashes.push_back(b.key_hash());
    // Of a dropped namespace nobody asks under these hashes any more.
    if (block != deletion.top && !deletion.whole_tree) {
      const bool dropped = deletion.reason == residency::LossReason::kDropped;
      context_.catalog.gone().Note(b.key_hash(),
                                   dropped ? catalog::WentBy::kDropped : catalog::WentBy::kOrphaned);
    }
  }
  if (b.is(catalog::Block::kReaping)) removal_.LeaveToOther(block);
  if (block != deletion.top) {
    b.flags &= static_cast<std::uint16_t>(~catalog::Block::kHome);
    deletion.at = context_.forest.Free(block);
    return;
  }
  deletion.top = deletion.at = catalog::kNoId;
  if (deletion.whole_tree) {
    context_.forest.RemoveTree(deletion.tree);
  } else {
    context_.forest.Discard(block);
  }
}

void Deletions::End(Deletion& deletion) {
  if (const auto of = of_slot_.find(deletion.slot); --of->second == 0) of_slot_.erase(of);
  switch (deletion.reason) {
    case residency::LossReason::kDropped: context_.counters.dropped.Add(deletion.blocks); break;
    case residency::LossReason::kExpired: context_.counters.expired.Add(deletion.blocks); break;
    case residency::LossReason::kBad:
    case residency::LossReason::kNoRoom: break;  // counted where it was found
  }
  const auto tree = of_trees_.find(deletion.tree);
  tree->second.since.erase(tree->second.since.find(deletion.since));
  tree->second.deletions.pop_front();
  if (tree->second.deletions.empty()) of_trees_.erase(tree);
  context_.forest.CollectingEnded();
  collected_.Pulse();
}

bool Deletions::Collect() {
  const catalog::TreeId turn = turn_;
  while (!of_trees_.empty() && !context_.steps.Spent()) {
    auto of = of_trees_.lower_bound(turn);
    if (of == of_trees_.end()) of = of_trees_.begin();
    turn_ = of->first + 1;
    Deletion& deletion = *of->second.deletions.front();
    if (EndPutsStep(deletion)) continue;
    if (deletion.top != catalog::kNoId) {
      CollectNode(deletion);
    } else {
      End(deletion);
    }
  }
  return !of_trees_.empty();
}

Task<void> Deletions::Collected(std::shared_ptr<Deletion> deletion) {
  for (;;) {
    const auto of = of_trees_.find(deletion->tree);
    if (of == of_trees_.end() || *of->second.since.begin() > deletion->made) co_return;
    if (Collect()) co_await Yield();
  }
}

}  // namespace cistern::store
