// SPDX-License-Identifier: Apache-2.0
// What goes for good: drops, expired and bad blocks (R9, R10). One flag at the top ends all below it at once;
// the rest is collected in slices, deepest first.
#include <algorithm>

#include "base/format.h"
#include "store/impl.h"

namespace cistern {

std::shared_ptr<BlockStore::Impl::Grave> BlockStore::Impl::Bury(Grave grave) {
  grave.made = ++last_made_;
  if (grave.since == 0) grave.since = grave.made;
  since_.insert(grave.since);
  tree_.CollectingBegins();
  return graves_.emplace_back(std::make_shared<Grave>(std::move(grave)));
}

std::shared_ptr<BlockStore::Impl::Grave> BlockStore::Impl::Cut(BlockId block, Reason reason) {
  // What was dropped with its namespace is collected with it, while it is known what its records take.
  const Realm* realm = tree_.realm(tree_.block(block).realm);
  if (realm == nullptr || tree_.block(realm->root).is(Block::kCut)) {
    RemoveRecordsOf(block);
    return nullptr;
  }
  Grave grave;
  grave.top = grave.at = block;
  grave.realm = tree_.block(block).realm;
  grave.reason = reason;
  expired_something_ = expired_something_ || reason == Reason::kExpired;
  if (tree_.block(block).has_key()) grave.tags.push_back(tree_.block(block).tag());
  // What is cut out of something that is being collected belongs to that.
  if (tree_.collecting()) {
    std::uint32_t budget = kStandingLooks;
    if (tree_.Standing(block, &budget) != Tree::Answer::kYes) grave.since = *since_.begin();
    Count(kStandingLooks - budget);
  }
  // The top's index entries are the first to go: a match from block 0 stops there from now on.
  if (!tree_.block(block).ghost()) ++grave.blocks;
  RemoveRecordsOf(block);
  const BlockId parent = tree_.Cut(block);
  // Where collecting stands may be below what was cut out just now.
  if (!graves_.empty()) graves_.front()->at = graves_.front()->top;
  auto buried = Bury(std::move(grave));
  Settle(parent);
  return buried;
}

void BlockStore::Impl::Disown(BlockId block) {
  RemoveRecordsOf(block);
  tree_.TakeAway(block);
  Count();
}

bool BlockStore::Impl::Collect() {
  while (!graves_.empty() && !Spent()) {
    Grave& grave = *graves_.front();
    if (EndPutsStep(grave)) continue;
    if (grave.top != kNoId) {
      CollectNode(grave);
    } else {
      EndGrave(grave);
    }
  }
  if (graves_.empty() && !Spent()) CascadeSlice();
  return !graves_.empty() || CascadeWaits();
}

// Ends puts of and below what was cut, if they were made before; whether there may be more of them.
bool BlockStore::Impl::EndPutsStep(Grave& grave) {
  if (pending_.size() == 0) {
    grave.tags.clear();
    return false;
  }
  if (grave.whole_realm && grave.next_put < pending_.end()) {
    const PutSlot put = grave.next_put++;
    Count();
    const Put& p = pending_[put];
    if (p.name.realm == grave.realm && p.state == Put::State::kOpen) EndPut(put, Code::kMiss);
    return true;
  }
  if (grave.tags.empty()) return false;
  // One at a time. The oldest comes first, so what was made later need not be looked at.
  const Tag tag = grave.tags.back();
  for (const PutSlot put :
       {pending_.NextOf(grave.realm, tag, kNoId), pending_.NextBelow(grave.realm, tag, kNoId)}) {
    Count();
    if (put == kNoId || pending_[put].made >= grave.made) continue;
    const Tag ended = TagOf(grave.realm, pending_[put].name.key);
    EndPut(put, Code::kMiss);
    if (ended != tag) grave.tags.push_back(ended);
    return true;
  }
  grave.tags.pop_back();
  return true;
}

void BlockStore::Impl::CollectNode(Grave& grave) {
  const BlockId block = grave.at;
  Count();
  Block& b = tree_.block(block);
  if (b.first_child != kNoId) {
    grave.at = b.first_child;
    return;
  }
  if (!b.ghost()) ++grave.blocks;
  RemoveRecordsOf(block);
  if (b.has_key()) grave.tags.push_back(b.tag());
  if (b.is(Block::kReaping)) std::erase(reap_, block);
  if (block != grave.top) {
    b.flags &= static_cast<std::uint16_t>(~Block::kHome);
    grave.at = tree_.Free(block);
    return;
  }
  grave.top = grave.at = kNoId;
  if (grave.whole_realm) {
    tree_.RemoveRealm(grave.realm);
  } else {
    tree_.Discard(block);
  }
}

void BlockStore::Impl::EndGrave(Grave& grave) {
  grave.done = true;
  since_.erase(since_.find(grave.since));
  switch (grave.reason) {
    case Reason::kDropped: counters_.dropped.Add(grave.blocks); break;
    case Reason::kExpired: counters_.expired.Add(grave.blocks); break;
    case Reason::kBad:
    case Reason::kNoRoom: break;  // counted where it was found
  }
  graves_.pop_front();
  tree_.CollectingEnded();
  collected_.Pulse();
}

// With all that was cut out of it meanwhile, which has graves of its own.
Task<void> BlockStore::Impl::Collected(std::shared_ptr<Grave> grave) {
  while (!since_.empty() && *since_.begin() <= grave->made) {
    Collect();
    if (!grave->done || !since_.empty()) co_await Yield();
  }
}

Task<Result<std::uint64_t>> BlockStore::Impl::Drop(std::uint32_t slot, std::span<const BlockKey> keys) {
  const RealmId realm = RealmOf(slot);
  if (EntryOf(realm) == nullptr) co_return Error(Code::kMiss, Text("namespace ", slot, ": is not attached"));
  if (journal_.tombstones() + keys.size() > options_.max_tombstones) {
    counters_.busy.Add();
    co_return Error(Code::kBusy, Text("drop: ", journal_.tombstones(), " drops are under way, ", keys.size(),
                                      " more are asked for and the limit is ", options_.max_tombstones));
  }
  std::vector<std::shared_ptr<Grave>> graves;
  std::vector<std::uint64_t> tombstones;
  std::vector<Task<Status>> logged;
  for (const BlockKey& key : keys) {
    BlockId block = kNoId;
    for (bool unsure = true; unsure;) {
      if (Spent()) co_await Yield();
      unsure = false;
      block = Find(realm, key, &unsure);
      if (unsure) co_await collected_.Wait();
    }
    const NamespaceEntry* entry = EntryOf(realm);
    if (entry == nullptr) break;  // all of it went
    tree_.NoteDrop(realm, ++last_made_);
    // Orphans may descend from anything, so from this: what the chain between has lost is not made up for.
    if (const BlockId orphans = tree_.realm(realm)->orphans; orphans != kNoId) {
      tree_.ForgetOrphans(realm);
      graves.push_back(Cut(orphans, Reason::kDropped));
    }
    const std::uint64_t incarnation = entry->incarnation;
    if (block != kNoId) {
      graves.push_back(Cut(block, Reason::kDropped));
    } else {
      // Puts of it and below it end all the same, and what is still being collected is waited for.
      Grave grave;
      grave.realm = realm;
      grave.tags.push_back(TagOf(realm, key));
      graves.push_back(Bury(std::move(grave)));
      // The media may hold what nobody here knows any more, or what another drop has just cut whose tombstone
      // is not durable yet: a restart would find it.
      if (tier_ == nullptr) continue;
    }
    const Tombstone tombstone{sequence_++, incarnation, key};
    tombstones.push_back(tombstone.sequence);
    logged.push_back(journal_.AddTombstone(tombstone));
  }
  std::uint64_t blocks = 0;
  for (const auto& grave : graves) {
    Count();
    if (Spent()) co_await Yield();
    co_await Collected(grave);
    blocks += grave->blocks;
  }
  Status status;
  for (Task<Status>& task : logged) {
    Count();
    if (Spent()) co_await Yield();
    if (Status one = co_await task; !one.ok()) status = std::move(one);
  }
  // Nothing older is left below them in memory: every generation has changed.
  for (const std::uint64_t sequence : tombstones) {
    Count();
    if (Spent()) co_await Yield();
    collected_tombstones_.insert(sequence);
  }
  co_await EndTombstones();
  if (!status.ok()) co_return std::unexpected(std::move(status));
  co_return blocks;
}

Task<void> BlockStore::Impl::ShareAll() {
  for (;;) {
    std::uint32_t budget = kSpentTouches / 2;
    const bool more = conversations_.ShareSome(&budget);
    Count(kSpentTouches / 2 - budget);
    if (!more) co_return;
    co_await Yield();
  }
}

Task<Result<std::uint64_t>> BlockStore::Impl::EndConversation(std::uint32_t slot,
                                                              std::uint64_t conversation) {
  constexpr std::size_t kTopsAtOnce = 256;
  const RealmId realm = RealmOf(slot);
  std::uint64_t blocks = 0;
  for (bool more = true; more;) {
    co_await ShareAll();
    std::vector<Conversations::Named> tops;
    while (tops.size() < kTopsAtOnce) {
      if (Spent()) co_await Yield();
      Count(4);
      std::optional<Conversations::Named> last = conversations_.TakeLast(realm, conversation);
      more = last.has_value();
      if (!more) break;
      if (!last->shared && !last->below_own) tops.push_back(*last);
    }
    std::vector<BlockKey> keys;
    for (const Conversations::Named& top : tops) keys.push_back(top.key);
    if (keys.empty()) continue;
    Result<std::uint64_t> dropped = co_await Drop(slot, keys);
    if (!dropped) {
      // To be asked again: what is below these goes with them.
      for (const Conversations::Named& top : tops)
        conversations_.Wrote(realm, top.key, top.parent, conversation);
      co_return std::unexpected(std::move(dropped.error()));
    }
    blocks += *dropped;
  }
  co_return blocks;
}

Task<Result<std::pair<std::uint64_t, std::uint64_t>>> BlockStore::Impl::DropNamespace(std::uint32_t slot) {
  while (naming_) co_await named_.Wait();
  const RealmId realm = RealmOf(slot);
  if (EntryOf(realm) == nullptr) co_return Error(Code::kMiss, Text("namespace ", slot, ": is not attached"));
  naming_ = true;
  NamespaceEntry entry = *EntryOf(realm);
  entry.incarnation = journal_.IncarnationOf(sequence_++);
  Status status = co_await journal_.PutNamespace(entry);
  std::shared_ptr<Grave> buried;
  if (status.ok()) {
    names_.SetIncarnation(slot, entry.incarnation);
    SetIncarnation(words_, index_.index(), slot, entry.incarnation);
    std::erase_if(realm_of_, [&](const auto& one) { return one.second == realm; });
    realms_[slot] = tree_.AddRealm(slot, entry.incarnation);
    realm_of_[entry.incarnation] = realms_[slot];
    Grave grave;
    grave.top = grave.at = tree_.realm(realm)->root;
    grave.realm = realm;
    grave.whole_realm = true;
    tree_.Cut(grave.top);
    buried = Bury(std::move(grave));
  }
  naming_ = false;
  named_.Pulse();
  if (!status.ok()) co_return std::unexpected(std::move(status));
  co_await Collected(buried);
  co_return std::pair(buried->blocks, entry.incarnation);
}

}  // namespace cistern
