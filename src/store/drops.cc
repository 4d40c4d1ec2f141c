// SPDX-License-Identifier: Apache-2.0
#include "store/drops.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/call_stations.h"
#include "base/format.h"

namespace cistern::store {

Task<Result<std::uint64_t>> Drops::Drop(std::uint32_t slot, std::span<const BlockKey> keys,
                                        CallStations* stations) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  if (context_.catalog.EntryOf(tree) == nullptr)
    co_return Error(Code::kMiss, Text("namespace ", slot, ": is not attached"));
  if (!HasRoom(keys.size())) {
    context_.counters.busy.Add();
    co_return Error(
        Code::kBusy,
        Text("drop: ", context_.journal.tombstones() + coming_, " tombstones of earlier drops are kept, ",
             keys.size(), " keys more are asked for and the limit is ", context_.options.max_tombstones,
             ": try again when no medium has anything older, or drop the namespace"));
  }
  DeletionList deletions;
  std::vector<std::uint64_t> tombstones;
  std::vector<Task<Status>> logged;
  coming_ += keys.size();
  for (const BlockKey& key : keys) {
    const std::optional<catalog::Tombstone> tombstone = co_await Cut(tree, key, &deletions);
    --coming_;
    if (!tombstone) continue;
    tombstones.push_back(tombstone->sequence);
    logged.push_back(context_.journal.AddTombstone(*tombstone));
  }
  std::uint64_t blocks = 0;
  {
    const AtStation at(stations, Station::kRemoval);
    blocks = co_await Collect(deletions);
  }
  Status status;
  {
    const AtStation at(stations, Station::kJournal);
    for (Task<Status>& task : logged) {
      context_.steps.Count();
      if (context_.steps.Spent()) co_await Yield();
      if (Status one = co_await task; !one.ok()) status = std::move(one);
    }
  }
  // Records older than the drops have left memory: every generation has changed.
  for (const std::uint64_t sequence : tombstones) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    tombstones_.Collected(sequence);
  }
  co_await tombstones_.End();
  if (!status.ok()) co_return std::unexpected(std::move(status));
  co_return blocks;
}

Task<std::optional<catalog::Tombstone>> Drops::Cut(catalog::TreeId tree, BlockKey key,
                                                   DeletionList* deletions) {
  catalog::BlockId block = catalog::kNoId;
  for (bool unsure = true, learned = false; unsure; learned = true) {
    if (context_.steps.Spent()) co_await Yield();
    unsure = false;
    block = context_.catalog.Find(tree, key, &unsure);
    if (!unsure) break;
    if (learned) {
      co_await deletions_.NextCollected();
    } else {
      co_await context_.catalog.LearnStanding(tree, catalog::KeyHashOf(tree, key));
    }
  }
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  if (entry == nullptr) co_return std::nullopt;  // the namespace was dropped
  context_.forest.NoteDrop(tree, context_.catalog.NextEvent());
  // Orphans may descend from any block, so also from this one: they are cut too, since the links between
  // are lost.
  if (const catalog::BlockId orphans = context_.forest.tree(tree)->orphans; orphans != catalog::kNoId) {
    context_.forest.ForgetOrphans(tree);
    deletions->push_back(deletions_.Cut(orphans, residency::LossReason::kDropped));
  }
  const std::uint64_t incarnation = entry->incarnation;
  if (block != catalog::kNoId) {
    deletions->push_back(deletions_.Cut(block, residency::LossReason::kDropped));
  } else {
    // Puts of the key and of its descendants end nevertheless, and blocks still being collected are waited
    // for.
    Deletion deletion;
    deletion.tree = tree;
    deletion.key_hashes.push_back(catalog::KeyHashOf(tree, key));
    deletions->push_back(deletions_.Start(std::move(deletion)));
    // A tombstone is needed all the same: the media may hold records that the forest does not know, or
    // that another drop has just cut whose tombstone is not durable yet. A restart would find them.
    if (!lower_.present()) co_return std::nullopt;
  }
  co_return catalog::Tombstone{context_.sequences.Next(), incarnation, key};
}

Task<std::uint64_t> Drops::Collect(const DeletionList& deletions) {
  std::uint64_t blocks = 0;
  for (const auto& deletion : deletions) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    co_await deletions_.Collected(deletion);
    blocks += deletion->blocks;
  }
  co_return blocks;
}

Task<std::uint64_t> Drops::Begin(std::uint32_t slot, std::span<const BlockKey> keys) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  if (context_.catalog.EntryOf(tree) == nullptr) co_return 0;
  DeletionList deletions;
  std::vector<std::uint64_t> tombstones;
  coming_ += keys.size();
  for (const BlockKey& key : keys) {
    const std::optional<catalog::Tombstone> tombstone = co_await Cut(tree, key, &deletions);
    --coming_;
    if (!tombstone) continue;
    context_.journal.NoteTombstone(*tombstone);
    tombstones.push_back(tombstone->sequence);
  }
  const std::uint64_t blocks = co_await Collect(deletions);
  for (const std::uint64_t sequence : tombstones) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    tombstones_.Collected(sequence);
  }
  // With a lower tier the next tick ends those that no medium needs.
  if (!lower_.present()) co_await tombstones_.End();
  co_return blocks;
}

Task<Result<std::uint64_t>> Drops::EndConversation(std::uint32_t slot, std::uint64_t conversation,
                                                   CallStations* stations) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  // An end under way has taken the notes of what it has not dropped yet: what it leaves is this one's, and
  // this one is not acknowledged before it is.
  while (context_.conversations.IsEnding({tree, conversation}))
    co_await context_.conversations.ended().Wait();
  const catalog::Conversations::Ending ending(context_.conversations, tree, conversation);
  Ended ended = co_await TakeNotes(tree, conversation);
  std::deque<BlockKey>& tops = ended.tops;
  std::uint64_t blocks = 0;
  for (std::size_t done = 0; done < tops.size();) {
    // What is there under another incarnation came after the drop of what this is an end in.
    if (context_.catalog.EntryOf(tree) == nullptr) co_return blocks;
    const std::size_t end = std::min(tops.size(), done + kTopsAtOnce);
    const std::vector<BlockKey> keys(tops.begin() + static_cast<std::ptrdiff_t>(done),
                                     tops.begin() + static_cast<std::ptrdiff_t>(end));
    const Result<std::uint64_t> dropped = co_await Drop(slot, keys, stations);
    if (!dropped) {
      tops.resize(done);
      co_await NoteAgain(tree, conversation, ended);
      co_return std::unexpected(dropped.error());
    }
    blocks += *dropped;
    done = end;
  }
  if (ended.end) {
    const AtStation at(stations, Station::kJournal);
    // Where this fails it is in what the journal writes next, and nothing more is to be done for it.
    if (Status status = co_await context_.journal.AddConversationEnd(*ended.end); !status.ok())
      co_return std::unexpected(std::move(status));
  }
  co_return blocks;
}

Task<Drops::Taken> Drops::TakeConversation(std::uint32_t slot, std::uint64_t conversation) {
  Ended ended = co_await TakeNotes(context_.catalog.TreeOf(slot), conversation);
  co_return Taken{std::move(ended.tops), ended.end};
}

Task<Drops::Ended> Drops::TakeNotes(catalog::TreeId tree, std::uint64_t conversation) {
  Ended ended;
  std::set<catalog::KeyHash> going;
  bool stamped = false;
  co_await context_.catalog.ShareUses();
  for (;;) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count(4);
    const std::optional<catalog::Conversations::Named> last =
        context_.conversations.TakeLast(tree, conversation);
    if (!last) break;
    if (last->stays) {
      stamped = stamped || last->stamped;
      ended.kept.push_back(*last);
    } else {
      going.insert(catalog::KeyHashOf(tree, last->key));
      ended.own.push_back(*last);
    }
  }
  // Numbered in the step that took the last note: what it writes from now on is its own.
  if (const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree); stamped && entry != nullptr)
    ended.end = {context_.sequences.Next(), entry->incarnation, conversation};
  // What hangs below another of them goes with that one.
  for (const catalog::Conversations::Named& named : ended.own) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    if (named.parent.none() || !going.contains(catalog::KeyHashOf(tree, named.parent)))
      ended.tops.push_back(named.key);
  }
  co_return ended;
}

// Of what a conversation wrote what did not go with `dropped`: for another call to end it, and for others to
// use it until then. A note of a block that went with one noted later does no harm: it is of nothing.
Task<void> Drops::NoteAgain(catalog::TreeId tree, std::uint64_t conversation, const Ended& ended) {
  const std::deque<catalog::Conversations::Named>& own = ended.own;
  std::set<catalog::KeyHash> gone;
  for (const BlockKey& key : ended.tops) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    gone.insert(catalog::KeyHashOf(tree, key));
  }
  for (std::size_t i = own.size(); i-- > 0;) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count(4);
    const catalog::KeyHash hash = catalog::KeyHashOf(tree, own[i].key);
    if (gone.contains(hash)) continue;
    if (gone.contains(catalog::KeyHashOf(tree, own[i].parent))) {
      gone.insert(hash);
    } else {
      context_.conversations.Wrote(tree, own[i].key, own[i].parent, conversation);
    }
  }
  for (const catalog::Conversations::Named& named : ended.kept) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count(4);
    if (context_.conversations.UsersOf(tree, named.key))
      context_.conversations.Uses(tree, named.key, conversation);
  }
}

}  // namespace cistern::store
