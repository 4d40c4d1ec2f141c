// SPDX-License-Identifier: Apache-2.0
#include "store/matcher.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/format.h"
#include "store/namespaces.h"

namespace cistern::store {

// For each block of `rest`: how many blocks back from it each group has without a gap. A full group ends the
// match at its first gap; a window only has to reach back its length, or to block 0.
Task<Result<std::vector<MatchRun>>> Matcher::MatchRest(std::uint32_t slot, std::uint32_t matched,
                                                       std::span<const BlockKey> rest, Unmatched* unmatched) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  if (context_.catalog.EntryOf(tree) == nullptr) co_return std::unexpected(UnknownNamespace(slot));
  if (!switches_.on(Switch::kReads, slot) || !term_.Serves(*context_.catalog.EntryOf(tree))) {
    if (unmatched != nullptr) context_.counters.miss_off.Add(rest.size());
    co_return std::vector<MatchRun>();
  }
  const std::vector<catalog::Group> groups = context_.catalog.EntryOf(tree)->groups;
  std::vector<std::uint64_t> run(groups.size(), 0);
  MatchedRuns runs;
  const auto learn_standing = [&](const BlockKey& key) {
    return context_.catalog.LearnStanding(tree, catalog::KeyHashOf(tree, key));
  };
  // Blocks that the index matched.
  if (matched > 0 && !rest.empty()) {
    if (context_.forest.collecting()) co_await learn_standing(rest[0]);
    co_await LookBack(tree, catalog::KeyHashOf(tree, rest[0]), matched, &run);
  }
  std::uint64_t now_s = 0;  // of the step: a look at the clock costs as much as one at a block
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (i == 0 || context_.steps.Spent()) {
      if (context_.steps.Spent()) co_await Yield();
      if (context_.catalog.EntryOf(tree) == nullptr) co_return std::vector<MatchRun>();
      now_s = context_.catalog.NowS();
    }
    catalog::BlockId block = context_.catalog.Find(tree, rest[i]);
    if (block == catalog::kNoId && context_.forest.collecting()) {
      co_await learn_standing(rest[i]);
      if (context_.catalog.EntryOf(tree) == nullptr) co_return std::vector<MatchRun>();
      block = context_.catalog.Find(tree, rest[i]);
    }
    bool full = true, windows = true;
    bool expired = false;
    std::uint64_t lower_bytes = 0;
    tier::Location lower_location;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto copy =
          block == catalog::kNoId ? std::nullopt : context_.forest.See(block, static_cast<std::uint16_t>(g));
      const bool lives = copy && !catalog::Catalog::Expired(copy->expiry, now_s);
      expired = expired || (copy && !lives);
      const bool here = lives && MayCome(tree, static_cast<std::uint16_t>(g), *copy);
      if (here && !copy->in_memory) {
        lower_bytes += copy->body_bytes;
        lower_location = copy->location;
      }
      run[g] = here ? run[g] + 1 : 0;
      if (groups[g].reach == Reach::kFull) {
        full = full && here;
      } else {
        windows = windows && run[g] >= std::min<std::uint64_t>(groups[g].window_blocks, matched + i + 1);
      }
    }
    context_.steps.Count(static_cast<std::uint32_t>(groups.size()));
    if (expired) deletions_.Cut(block, residency::LossReason::kExpired);
    if (!full || expired) {
      if (unmatched != nullptr) *unmatched = {i, rest.size() - i, expired};
      break;
    }
    runs.Add(lower_bytes, lower_location, windows);
  }
  const std::size_t first_lower = runs.first_lower();
  std::vector<MatchRun> found = runs.Take(lower_);
  std::size_t blocks = 0;
  for (const MatchRun& one : found) blocks += one.blocks;
  if (unmatched != nullptr) context_.counters.found_below.Add(blocks);
  if (first_lower < blocks) fetcher_.ReadAhead(tree, rest.subspan(first_lower, blocks - first_lower));
  co_return found;
}

bool Matcher::MayCome(catalog::TreeId tree, std::uint16_t group, const catalog::Forest::Copy& copy) const {
  // A body that a put may have always has a slot.
  return copy.in_memory || copy.body_bytes <= context_.slots.max_body_bytes() ||
         context_.slots.CanHold(context_.catalog.RecordBytesOf(tree, group, copy.body_bytes));
}

std::optional<BlockLook> Matcher::LookAt(std::uint32_t slot, const BlockKey& key) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  if (entry == nullptr) return std::nullopt;
  const catalog::KeyHash key_hash = catalog::KeyHashOf(tree, key);
  BlockLook look{.reads_off = !switches_.on(Switch::kReads, slot),
                 .strict = !term_.Serves(*entry),
                 .pending = context_.pending.NextOf(tree, key_hash, catalog::kNoId) != catalog::kNoId,
                 .went = context_.catalog.gone().Of(key_hash)};
  const catalog::BlockId block = context_.catalog.Find(tree, key);
  bool full = block != catalog::kNoId, in_memory = true;
  for (std::size_t g = 0; full && g < entry->groups.size(); ++g) {
    const auto copy = context_.forest.See(block, static_cast<std::uint16_t>(g));
    const bool expired = copy && context_.catalog.Expired(copy->expiry);
    if (expired) look.went = catalog::WentBy::kExpired;
    in_memory = in_memory && (!copy || copy->in_memory);
    full = (copy && !expired && MayCome(tree, static_cast<std::uint16_t>(g), *copy)) ||
           entry->groups[g].reach != Reach::kFull;
  }
  context_.steps.Count(static_cast<std::uint32_t>(1 + entry->groups.size()));
  if (full) look.here = in_memory ? Where::kMemory : Where::kFlash;
  return look;
}

void Matcher::NoteMisses(std::uint32_t slot, std::span<const BlockKey> rest, std::size_t had,
                         Unmatched unmatched) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  const std::size_t from = std::max(had, unmatched.from);
  if (unmatched.blocks == 0 || from >= rest.size() || context_.catalog.EntryOf(tree) == nullptr) return;
  NoteMisses(tree, rest[from], unmatched.expired && from == unmatched.from, rest.size() - from);
}

void Matcher::NoteMisses(catalog::TreeId tree, const BlockKey& first, bool expired, std::size_t count) {
  const catalog::KeyHash key_hash = catalog::KeyHashOf(tree, first);
  context_.catalog.counted().At(tree).misses += count;
  if (context_.pending.size() > 0 &&
      context_.pending.NextOf(tree, key_hash, catalog::kNoId) != catalog::kNoId) {
    context_.counters.miss_pending.Add(count);
    return;
  }
  switch (expired ? catalog::WentBy::kExpired : context_.catalog.gone().Of(key_hash)) {
    case catalog::WentBy::kUnknown:
      (KinHas(tree, first) ? context_.counters.miss_other_namespace : context_.counters.miss_unknown)
          .Add(count);
      break;
    case catalog::WentBy::kEvicted: context_.counters.miss_evicted.Add(count); break;
    case catalog::WentBy::kExpired: context_.counters.miss_expired.Add(count); break;
    case catalog::WentBy::kDropped: context_.counters.miss_dropped.Add(count); break;
    case catalog::WentBy::kBad: context_.counters.miss_bad.Add(count); break;
    case catalog::WentBy::kOrphaned: context_.counters.miss_orphaned.Add(count); break;
  }
}

// The newest are asked. Whether what was found there is being collected is not: that may take a step's looks
// for each of them.
bool Matcher::KinHas(catalog::TreeId tree, const BlockKey& key) {
  constexpr std::size_t kMost = 8;
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  if (entry == nullptr) return false;
  const std::uint32_t own = entry->slot;
  const std::span<const std::uint32_t> kin = context_.namespaces.KinOf(own);
  const std::span<const std::uint32_t> newest = kin.last(std::min(kin.size(), kMost + 1));
  context_.steps.Count(static_cast<std::uint32_t>(newest.size()));
  return std::ranges::any_of(newest, [&](std::uint32_t slot) {
    const catalog::BlockId block =
        slot == own ? catalog::kNoId : context_.forest.Find(context_.catalog.TreeOf(slot), key);
    return block != catalog::kNoId && !context_.forest.block(block).placeholder();
  });
}

// The end of a chain keeps its ancestors: the last copy of a full group's record stays while the block has a
// child. Records that a window needs may leave one by one, so each is leased.
Task<Result<catalog::LeaseId>> Matcher::Hold(catalog::Caller caller, std::uint32_t slot,
                                             std::span<const BlockKey> chain, std::int64_t hold_us) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  if (context_.catalog.EntryOf(tree) == nullptr) co_return std::unexpected(UnknownNamespace(slot));
  if (!switches_.on(Switch::kReads, slot)) co_return Error(Code::kMiss, "hold: reads are off");
  if (!term_.Serves(*context_.catalog.EntryOf(tree)))
    co_return Error(Code::kMiss, "hold: the namespace is strict, and this node's membership does not stand");
  if (hold_us <= 0 || chain.empty()) {
    co_return Error(Code::kInvalid, Text("hold_us: is ", hold_us, " for ", chain.size(),
                                         " blocks; a hold takes at least 1 of both"));
  }
  const Instant deadline = context_.clock.Now().PlusUs(std::min(hold_us, kMaxLeaseUs));
  // During a collection each block is found after its parent: then its standing costs one look.
  for (std::size_t i = 0; context_.forest.collecting() && i + 1 < chain.size(); ++i) {
    if (context_.steps.Spent()) co_await Yield();
    if (context_.catalog.Find(tree, chain[i]) == catalog::kNoId) break;
  }
  if (!context_.leases.CheckRoom(caller.owner, chain.size()).ok()) co_await residents_.DropAllEnded();
  if (context_.steps.Spent()) co_await Yield();
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  std::vector<residency::RecordReference> references;
  std::vector<std::uint64_t> bytes;  // of memory, that each keeps
  const std::uint32_t cuts = context_.forest.cuts();
  bool whole = entry != nullptr;
  const std::uint64_t now_s = context_.catalog.NowS();
  for (std::size_t back = 0; whole && back < chain.size(); ++back) {
    if (context_.steps.Spent()) {
      // The chain's end is leased by now, and with it the records that full groups need.
      co_await Yield();
      entry = context_.catalog.EntryOf(tree);
      if (entry == nullptr) break;
    }
    bool wanted = false;
    catalog::BlockId block = catalog::kNoId;
    for (std::uint16_t g = 0; g < entry->groups.size(); ++g) {
      const catalog::Group& group = entry->groups[g];
      if (back >= (group.reach == Reach::kFull ? 1 : group.window_blocks)) continue;
      if (!wanted) block = context_.catalog.Find(tree, chain[chain.size() - 1 - back]);
      wanted = true;
      const catalog::RecordId record =
          block == catalog::kNoId ? catalog::kNoId : context_.catalog.ReadableRecord(block, g, now_s);
      if (record == catalog::kNoId) {
        whole = false;
        break;
      }
      references.emplace_back(residents_, context_.catalog.HandleOf(record));
      const catalog::Record& r = context_.forest.record(record);
      bytes.push_back(r.in_memory() ? context_.slots.SlotBytes(r.place) : 0);
    }
    if (!wanted) break;
  }
  Result<std::uint64_t> kept = 0;
  if (whole) kept = co_await residents_.CheckGrant(caller.owner, references, bytes, cuts);
  whole = whole && context_.catalog.EntryOf(tree) != nullptr &&
          std::ranges::all_of(references, &residency::RecordReference::holds);
  if (whole && kept) {
    context_.counters.leases_granted.Add();
    co_return context_.leases.Add(caller, residency::DetachAll(references), *kept, deadline);
  }
  for (residency::RecordReference& reference : references) {
    if (context_.steps.Spent()) co_await Yield();
    reference.Drop();
  }
  if (!whole) {
    context_.counters.lapsed_holds.Add(chain.size());
    co_return Error(Code::kMiss, "hold: some of the chain is not here any more");
  }
  context_.counters.busy.Add();
  co_return std::unexpected(kept.error());
}

Task<std::uint32_t> Matcher::Touch(std::uint32_t slot, std::span<const BlockKey> keys,
                                   std::uint64_t conversation) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  std::uint32_t applied = 0;
  residents_.NoteTime();
  if (prompts_.AwaitsTouch(tree, keys)) co_await prompts_.TakeIn(tree, keys.front());
  catalog::BlockId last = catalog::kNoId;  // of this step
  for (const BlockKey& key : keys) {
    if (context_.steps.Spent()) {
      last = catalog::kNoId;
      co_await Yield();
    }
    if (context_.catalog.EntryOf(tree) == nullptr) break;
    bool unsure = false;
    catalog::BlockId block = context_.catalog.Find(tree, key, &unsure);
    if (unsure) {
      co_await context_.catalog.LearnStanding(tree, catalog::KeyHashOf(tree, key));
      last = catalog::kNoId;
      block = context_.catalog.Find(tree, key);
    }
    if (block == catalog::kNoId || context_.forest.block(block).placeholder()) continue;
    uses_.UseBlock(block);
    if (conversation != 0) {
      const bool beside = last != catalog::kNoId && (context_.forest.block(block).parent == last ||
                                                     context_.forest.block(last).parent == block);
      context_.conversations.Uses(tree, key, conversation, beside);
    }
    last = block;
    ++applied;
  }
  if (conversation != 0) co_await context_.catalog.ShareUses();
  context_.counters.touches_applied.Add(applied);
  co_return applied;
}

Task<void> Matcher::LookBack(catalog::TreeId tree, catalog::KeyHash key_hash, std::uint32_t most,
                             std::vector<std::uint64_t>* run) {
  for (std::uint32_t back = 0; back <= most;) {
    if (context_.steps.Spent()) co_await Yield();
    // Each step finds the block by its key hash again: the id may be another block's by now.
    const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
    catalog::BlockId at = entry == nullptr ? catalog::kNoId : context_.catalog.FindKeyHash(tree, key_hash);
    const std::uint64_t now_s = context_.catalog.NowS();
    for (; at != catalog::kNoId && !context_.steps.Spent(); at = context_.forest.block(at).parent) {
      const catalog::Block& b = context_.forest.block(at);
      if (!b.has_key() || back > most) co_return;
      key_hash = b.key_hash();
      bool wanted = back == 0;
      for (std::size_t g = 0; back > 0 && g < run->size(); ++g) {
        context_.steps.Count();
        std::uint64_t& there = (*run)[g];
        if (there + 1 != back || back > entry->groups[g].window_blocks) continue;
        if (!context_.catalog.Readable(at, static_cast<std::uint16_t>(g), now_s)) continue;
        ++there;
        wanted = true;
      }
      if (!wanted) co_return;
      ++back;
    }
    if (at == catalog::kNoId) co_return;
    key_hash = context_.forest.block(at).key_hash();
  }
}

}  // namespace cistern::store
