// SPDX-License-Identifier: Apache-2.0
// Facts about blocks, without their bytes: namespaces and the tree of each incarnation, blocks and records,
// pending puts, leases, conversations, sequence numbers. The catalog finds; residency decides where bytes
// are and which leave, and the store what becomes visible or is dropped.
//
// Finding counts against the step's budget (base/step_budget.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "arena/protocol.h"
#include "base/clock.h"
#include "base/step_budget.h"
#include "base/task.h"
#include "catalog/conversations.h"
#include "catalog/forest.h"
#include "catalog/forward_time.h"
#include "catalog/gone_blocks.h"
#include "catalog/leases.h"
#include "catalog/namespace_counters.h"
#include "catalog/namespace_table.h"
#include "catalog/pending_puts.h"
#include "catalog/sequences.h"
#include "catalog/store_options.h"
#include "policy/placement.h"
#include "record/seal.h"
#include "record/segments.h"

namespace cistern::catalog {

// A block, or the segments of a block in the lower tier that its reader needs: none (count 0), or segments
// that its record has not, stand for the whole block.
struct BlockName {
  BlockKey key;
  std::uint16_t group = 0;
  record::SegmentSpan asked{};
};

// Whether the block counts with this one, where blocks that were asked for are counted: an engine asks for
// each group by itself, and each of its ranks for its share.
inline bool Counts(const NamespaceEntry& entry, const BlockName& asked) {
  return asked.group == entry.CountedGroup() && asked.asked.first == 0;
}

// Ancestors that a step looks at to tell whether a block stands.
inline constexpr std::uint32_t kStandingLooks = 192;

class Catalog final {
 public:
  struct Parts {  // borrowed
    const Clock& clock;
    const Clock& boot;  // goes on while the host sleeps
    arena::Words& words;
    const arena::ArenaSpace& arena;
    std::uint64_t memory_bytes;  // of its slots, without room to grow
    Journal& journal;
    StepBudget& steps;
    const StoreOptions& options;
  };
  explicit Catalog(const Parts& parts);
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  Executor& executor() { return steps_.executor(); }

  Forest& forest() { return forest_; }
  PendingPuts& pending() { return pending_; }
  Leases& leases() { return leases_; }
  Conversations& conversations() { return conversations_; }
  Sequences& sequences() { return sequences_; }
  NamespaceTable& namespaces() { return namespaces_; }
  CountersOfNamespaces& counted() { return counted_; }
  GoneBlocks& gone() { return gone_; }

  std::uint32_t max_records_in_memory() const { return max_records_in_memory_; }
  std::uint32_t max_records() const { return max_records_; }  // in any tier

  // Seconds that never go back, over restarts too, and go on whatever the wall clock does (R10).
  std::uint64_t NowS();
  // One count for puts, cuts and drops, which gives their order.
  std::uint64_t NextEvent() { return ++last_event_; }

  // ---- namespaces ----
  // The tree of a namespace's current incarnation, kNoId for a slot number without one.
  TreeId TreeOf(std::uint32_t slot) const { return slot < trees_.size() ? trees_[slot] : kNoId; }
  // kNoId unless the incarnation is current.
  TreeId TreeOfIncarnation(std::uint64_t incarnation) const;
  // The tree of a new incarnation; the slot number's former tree, if any, is current no more.
  TreeId AddTree(std::uint32_t slot, std::uint64_t incarnation);
  // Removes the slot number's tree, which is empty.
  void RemoveTree(std::uint32_t slot);
  // The namespace of a current tree; null for a dropped one.
  const NamespaceEntry* EntryOf(TreeId tree) const;
  // As NamespaceTable::Fingerprint, computed once. The slot number has a namespace.
  std::uint64_t FingerprintOf(std::uint32_t slot);
  policy::LowerPolicy LowerPolicyOf(const Record& record) const;
  // Whose quota new records of the tree count for.
  policy::QuotaGroup GroupOf(TreeId tree) { return counted_.At(tree).group; }

  // Marks all ancestors of the blocks that several conversations use as shared.
  Task<void> ShareUses();

  // ---- finding ----
  // The block of a key that stands; kNoId for none. `unsure`, when not null, is set where a step cannot tell
  // because blocks are being collected: the result is then kNoId as well.
  BlockId Find(TreeId tree, const BlockKey& key, bool* unsure = nullptr) {
    return IfStanding(Counted([&] { return forest_.Find(tree, key); }), unsure);
  }
  // The block of a key hash, after a yield: it was found by its key before.
  BlockId FindKeyHash(TreeId tree, KeyHash key_hash, bool* unsure = nullptr) {
    return IfStanding(Counted([&] { return forest_.FindKeyHash(tree, key_hash); }), unsure);
  }
  // While blocks are being collected, one step can tell of a block whether it stands if one of its next
  // ancestors is known to (kStandingLooks). Deeper in a chain this asks from the ancestors down, in as many
  // steps as it takes, and Find then knows; unless others are cut faster than it asks.
  Task<void> LearnStanding(TreeId tree, KeyHash key_hash);
  // How many blocks have the key's hash, at most `most`.
  std::uint32_t CountKeyHash(KeyHash key_hash, std::uint32_t most) {
    return Counted([&] { return forest_.CountKeyHash(key_hash, most); });
  }
  // Prefetches the first of the names together: each takes two or three cache misses in a row, all of them
  // hardly longer than one. kNoId as well, while blocks are being collected, past what the step has left.
  static constexpr std::size_t kFoundAhead = 32;
  void FindAhead(TreeId tree, std::span<const BlockName> names, std::span<BlockId, kFoundAhead> found);
  // A new block, as Forest::Add.
  BlockId AddBlock(TreeId tree, KeyHash key_hash, BlockId parent);

  static bool Expired(std::uint32_t expiry, std::uint64_t now_s) { return expiry != 0 && now_s >= expiry; }
  // By now. The clock is read for what has an end alone.
  bool Expired(std::uint32_t expiry) { return expiry != 0 && Expired(expiry, NowS()); }
  // True if the block's record of the group may be read now, in any tier; and that record, or kNoId.
  bool Readable(BlockId block, std::uint16_t group, std::uint64_t now_s) const;
  RecordId ReadableRecord(BlockId block, std::uint16_t group, std::uint64_t now_s);

  RecordHandle HandleOf(RecordId record) const { return {record, forest_.record(record).serial}; }
  bool Lives(RecordHandle handle) const { return forest_.record(handle.record).serial == handle.serial; }
  // True if the record lives and its block stands; `unsure` as Find has it.
  bool Stands(RecordHandle handle, bool* unsure = nullptr) {
    return Lives(handle) && IfStanding(forest_.record(handle.record).block, unsure) != kNoId;
  }

  // Bytes of a record of the group with a body of `body_bytes`, all units counted; 0 for an unknown tree. A
  // dropped namespace keeps its list for this.
  std::uint64_t RecordBytesOf(const NamespaceEntry& entry, std::uint16_t group,
                              std::uint64_t body_bytes) const;
  std::uint64_t RecordBytesOf(TreeId tree, std::uint16_t group, std::uint64_t body_bytes) const;
  // Place of the segments in the record's body; the whole body where `segments` is empty or reaches past it.
  record::BodySpan SpanOf(const Record& record, const record::SegmentSpan& segments) const;
  // True if a seal that was read is that of the record's block.
  bool IsSealOf(const Record& record, const record::SealView& seal) const;

 private:
  BlockId IfStanding(BlockId block, bool* unsure = nullptr);
  // Every kApart-th ancestor, from the block up to one of which is known whether it stands.
  Task<std::vector<KeyHash>> WayUp(TreeId tree, KeyHash key_hash);
  // What the forest finds. A look-up's first looks are in its one touch; whoever made keys of one hash pays
  // for more.
  template <class Call>
  std::invoke_result_t<Call> Counted(Call find) {
    constexpr std::uint64_t kLooksOfAFind = 4, kLooksATouch = 4;
    const std::uint64_t before = forest_.looks();
    const auto found = find();
    const std::uint64_t looks = forest_.looks() - before;
    if (looks > kLooksOfAFind)
      steps_.Count(static_cast<std::uint32_t>((looks - kLooksOfAFind) / kLooksATouch));
    return found;
  }

  const Clock& clock_;
  const Clock& boot_;
  arena::Words& words_;
  const arena::ArenaSpace& arena_;
  StepBudget& steps_;
  const StoreOptions& options_;
  const std::uint32_t max_records_in_memory_;
  const std::uint32_t max_records_;
  NamespaceTable namespaces_;
  std::vector<TreeId> trees_;                          // by namespace slot
  std::unordered_map<std::uint64_t, TreeId> tree_of_;  // by incarnation, current ones only
  Forest forest_;
  CountersOfNamespaces counted_;
  GoneBlocks gone_;
  PendingPuts pending_;
  Leases leases_;
  Conversations conversations_;
  Sequences sequences_;
  ForwardTime time_;
  std::uint64_t last_event_ = 0;
};

}  // namespace cistern::catalog
