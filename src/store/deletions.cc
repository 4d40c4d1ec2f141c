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
  const catalog::IncarnationTree* tree = forest_.tree(forest_.block(block).tree);
  if (tree == nullptr || forest_.block(tree->root).is(catalog::Block::kCut)) {
    removal_.RemoveRecordsOf(block);
    return nullptr;
  }
  Deletion deletion;
  deletion.top = deletion.at = block;
  deletion.tree = forest_.block(block).tree;
  deletion.reason = reason;
  expired_ = expired_ || reason == residency::LossReason::kExpired;
  if (forest_.block(block).has_key()) {
    deletion.key_hashes.push_back(forest_.block(block).key_hash());
    catalog_.gone().Note(forest_.block(block).key_hash(), HowWent(reason));
  }
  // A cut inside a subtree that is being collected belongs to that deletion.
  if (forest_.collecting()) {
    std::uint32_t budget = catalog::kStandingLooks;
    if (forest_.Standing(block, &budget) != catalog::Forest::Answer::kYes) deletion.since = *since_.begin();
    steps_.Count(catalog::kStandingLooks - budget);
  }
  // The top's index entries are cleared first: a match from block 0 stops there from now on.
  if (!forest_.block(block).placeholder()) ++deletion.blocks;
  removal_.RemoveRecordsOf(block);
  const catalog::BlockId parent = forest_.Cut(block);
  // The collector's position may be a descendant of the new cut.
  if (!deletions_.empty()) deletions_.front()->at = deletions_.front()->top;
  auto started = Start(std::move(deletion));
  removal_.Settle(parent);
  return started;
}

std::shared_ptr<Deletion> Deletions::Start(Deletion deletion) {
  deletion.made = catalog_.NextEvent();
  if (deletion.since == 0) deletion.since = deletion.made;
  since_.insert(deletion.since);
  of_tree_[deletion.tree]++;
  forest_.CollectingBegins();
  return deletions_.emplace_back(std::make_shared<Deletion>(std::move(deletion)));
}

void Deletions::Detach(catalog::BlockId block) {
  catalog::Block& b = forest_.block(block);
  if (!b.placeholder()) b.flags |= catalog::Block::kDetached;
  removal_.RemoveRecordsOf(block);
  forest_.TakeAway(block);
  steps_.Count();
}

// Ends puts of the cut blocks and of their descendants, if the puts were made before the cut; true: there
// may be more.
bool Deletions::EndPutsStep(Deletion& deletion) {
  if (pending_.size() == 0) {
    deletion.key_hashes.clear();
    return false;
  }
  if (deletion.whole_tree && deletion.next_put < pending_.end()) {
    const catalog::PutIndex put = deletion.next_put++;
    steps_.Count();
    const catalog::Put& p = pending_[put];
    if (p.name.tree == deletion.tree && p.state == catalog::Put::State::kOpen) puts_.End(put, Code::kMiss);
    return true;
  }
  if (deletion.key_hashes.empty()) return false;
  // One put a call. The oldest is first in the list, so puts made after the cut need no look.
  const catalog::KeyHash key_hash = deletion.key_hashes.back();
  for (const catalog::PutIndex put : {pending_.NextOf(deletion.tree, key_hash, catalog::kNoId),
                                      pending_.NextChildOf(deletion.tree, key_hash, catalog::kNoId)}) {
    steps_.Count();
    if (put == catalog::kNoId || pending_[put].made >= deletion.made) continue;
    const catalog::KeyHash ended = catalog::KeyHashOf(deletion.tree, pending_[put].name.key);
    puts_.End(put, Code::kMiss);
    if (ended != key_hash) deletion.key_hashes.push_back(ended);
    return true;
  }
  deletion.key_hashes.pop_back();
  return true;
}

void Deletions::CollectNode(Deletion& deletion) {
  const catalog::BlockId block = deletion.at;
  steps_.Count();
  catalog::Block& b = forest_.block(block);
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
      catalog_.gone().Note(b.key_hash(), dropped ? catalog::WentBy::kDropped : catalog::WentBy::kOrphaned);
    }
  }
  if (b.is(catalog::Block::kReaping)) removal_.LeaveToOther(block);
  if (block != deletion.top) {
    b.flags &= static_cast<std::uint16_t>(~catalog::Block::kHome);
    deletion.at = forest_.Free(block);
    return;
  }
  deletion.top = deletion.at = catalog::kNoId;
  if (deletion.whole_tree) {
    forest_.RemoveTree(deletion.tree);
  } else {
    forest_.Discard(block);
  }
}

void Deletions::End(Deletion& deletion) {
  deletion.done = true;
  since_.erase(since_.find(deletion.since));
  if (const auto of = of_tree_.find(deletion.tree); --of->second == 0) of_tree_.erase(of);
  switch (deletion.reason) {
    case residency::LossReason::kDropped: counters_.dropped.Add(deletion.blocks); break;
    case residency::LossReason::kExpired: counters_.expired.Add(deletion.blocks); break;
    case residency::LossReason::kBad:
    case residency::LossReason::kNoRoom: break;  // counted where it was found
  }
  deletions_.pop_front();
  forest_.CollectingEnded();
  collected_.Pulse();
}

bool Deletions::Collect() {
  while (!deletions_.empty() && !steps_.Spent()) {
    Deletion& deletion = *deletions_.front();
    if (EndPutsStep(deletion)) continue;
    if (deletion.top != catalog::kNoId) {
      CollectNode(deletion);
    } else {
      End(deletion);
    }
  }
  return !deletions_.empty();
}

// Waits for every deletion that was cut out of this one, too.
Task<void> Deletions::Collected(std::shared_ptr<Deletion> deletion) {
  while (!since_.empty() && *since_.begin() <= deletion->made) {
    Collect();
    if (!deletion->done || !since_.empty()) co_await Yield();
  }
}

}  // namespace cistern::store
