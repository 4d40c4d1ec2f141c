// SPDX-License-Identifier: Apache-2.0
#include "catalog/catalog.h"

#include <algorithm>
#include <limits>
#include <ranges>

#include "base/limits.h"
#include "policy/evict.h"

namespace cistern::catalog {
namespace {

constexpr std::uint32_t kApart = kStandingLooks / 2;

// Of memory that grows into its room not more than the index has entries, which is made for the memory of the
// start (arena/geometry.h): twice as many as that holds.
std::uint32_t MaxRecords(const arena::Geometry& geometry, std::uint64_t memory_bytes) {
  const std::uint64_t bytes = std::min(geometry.slots_bytes(), 2 * memory_bytes);
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(bytes / geometry.min_slot_bytes(), policy::Lru::kMaxEntries - 1));
}

// A wall clock that stands later is wrong, as that of a host whose RTC reads all ones: the time never goes
// back (R10), and no expiry of 32 bits would lie behind it.
constexpr std::uint32_t kLatestWallS = std::numeric_limits<std::uint32_t>::max() - (1u << 27);  // in 2101

// Besides blocks with records: roots, and placeholders, for which a quarter is plenty.
std::uint32_t MaxBlocks(std::uint32_t max_records, std::uint32_t max_lower_blocks) {
  return std::min<std::uint32_t>(policy::Lru::kMaxEntries - max_records - 2, max_lower_blocks) + max_records +
         1 + max_records / 4 + 2 * arena::kMaxNamespaces;
}

// A block has a record in each of its groups.
std::uint32_t MaxRecordIds(std::uint32_t max_blocks) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::uint64_t{max_blocks} * kMaxGroups, policy::Lru::kMaxEntries - 1));
}

}  // namespace

Catalog::Catalog(const Parts& parts)
    : clock_(parts.clock),
      boot_(parts.boot),
      words_(parts.words),
      arena_(parts.arena),
      steps_(parts.steps),
      options_(parts.options),
      max_records_in_memory_(MaxRecords(parts.arena.geometry(), parts.memory_bytes)),
      max_records_(MaxRecordIds(MaxBlocks(max_records_in_memory_, parts.options.max_lower_blocks))),
      forest_(MaxBlocks(max_records_in_memory_, parts.options.max_lower_blocks), parts.arena.geometry()),
      counted_(forest_),
      pending_(PendingBound::Of(parts.memory_bytes, parts.options.max_pending)),
      leases_(parts.options.max_leases, parts.options.max_leased_blocks),
      conversations_(parts.options.max_noted_blocks),
      sequences_(parts.journal) {
  counted_.SetTime(clock_.Now());
}

std::uint64_t Catalog::NowS() {
  const std::uint32_t wall_s = clock_.Wall().seconds;
  // Without a clock it goes on from the second that was known last, or from the first.
  const std::uint64_t known_s = arena::AdvanceTime(words_, arena_, wall_s < kLatestWallS ? wall_s : 1);
  return arena::AdvanceTime(words_, arena_, time_.Seconds(boot_.Now(), known_s));
}

TreeId Catalog::TreeOfIncarnation(std::uint64_t incarnation) const {
  const auto found = tree_of_.find(incarnation);
  return found == tree_of_.end() ? kNoId : found->second;
}

TreeId Catalog::AddTree(std::uint32_t slot, std::uint64_t incarnation) {
  if (trees_.size() <= slot) trees_.resize(slot + 1, kNoId);
  if (const TreeId before = trees_[slot]; before != kNoId) tree_of_.erase(forest_.tree(before)->incarnation);
  const TreeId tree = forest_.AddTree(slot, incarnation);
  trees_[slot] = tree;
  tree_of_[incarnation] = tree;
  return tree;
}

void Catalog::RemoveTree(std::uint32_t slot) {
  const TreeId tree = trees_[slot];
  tree_of_.erase(forest_.tree(tree)->incarnation);
  forest_.RemoveTree(tree);
  trees_[slot] = kNoId;
}

const NamespaceEntry* Catalog::EntryOf(TreeId tree) const {
  const IncarnationTree* found = forest_.tree(tree);
  return found != nullptr && TreeOf(found->slot) == tree ? namespaces_.at(found->slot) : nullptr;
}

std::uint64_t Catalog::FingerprintOf(std::uint32_t slot) {
  std::uint64_t& fingerprint = counted_.of(slot).fingerprint;
  if (fingerprint == 0) fingerprint = NamespaceTable::Fingerprint(*namespaces_.at(slot));
  return fingerprint;
}

policy::LowerPolicy Catalog::LowerPolicyOf(const Record& record) const {
  const NamespaceEntry* entry = EntryOf(forest_.block(record.block).tree);
  return entry == nullptr ? options_.lower : entry->lower.Over(options_.lower);
}

BlockId Catalog::IfStanding(BlockId block, bool* unsure) {
  steps_.Count();
  if (block == kNoId || !forest_.collecting()) return block;
  std::uint32_t budget = kStandingLooks;
  const Forest::Answer answer = forest_.Standing(block, &budget);
  steps_.Count(kStandingLooks - budget);
  if (answer == Forest::Answer::kUnknown && unsure != nullptr) *unsure = true;
  return answer == Forest::Answer::kYes ? block : kNoId;
}

void Catalog::FindAhead(TreeId tree, std::span<const BlockName> names,
                        std::span<BlockId, kFoundAhead> found) {
  std::array<KeyHash, kFoundAhead> key_hashes;
  const std::size_t count = std::min(names.size(), kFoundAhead);
  for (std::size_t i = 0; i < count; ++i) {
    key_hashes[i] = KeyHashOf(tree, names[i].key);
    forest_.PrefetchBucket(key_hashes[i]);
  }
  for (std::size_t i = 0; i < count; ++i) forest_.PrefetchBlock(key_hashes[i]);
  for (std::size_t i = 0; i < count; ++i) found[i] = forest_.PrefetchRecord(tree, key_hashes[i]);
  for (std::size_t i = 0; i < count; ++i) {
    const BlockKey& key = names[i].key;
    if (found[i] != kNoId && !forest_.MayHaveKey(found[i], key)) {
      found[i] = Counted([&] { return forest_.Find(tree, key, key_hashes[i]); });
    }
    // While others are collected one may take all the looks of a step, and the rest is not told of.
    found[i] = forest_.collecting() && steps_.Spent() ? kNoId : IfStanding(found[i]);
  }
}

BlockId Catalog::AddBlock(TreeId tree, KeyHash key_hash, BlockId parent) {
  constexpr std::uint32_t kMovesATouch = 8;  // moves in the table of blocks: they are prefetched in waves
  const std::uint64_t moved = forest_.moved();
  const BlockId block = forest_.Add(tree, key_hash, parent);
  steps_.Count(static_cast<std::uint32_t>(forest_.moved() - moved) / kMovesATouch);
  return block;
}

Task<std::vector<KeyHash>> Catalog::WayUp(TreeId tree, KeyHash key_hash) {
  std::vector<KeyHash> way;
  BlockId at = forest_.FindKeyHash(tree, key_hash);
  for (std::uint32_t above = 1; at != kNoId; ++above) {
    std::uint32_t no_looks = 0;
    if (forest_.Standing(at, &no_looks) != Forest::Answer::kUnknown) break;
    if (above % kApart == 0) way.push_back(forest_.block(at).key_hash());
    at = forest_.block(at).parent;
    steps_.Count();
    if (!steps_.Spent() || !forest_.block(at).has_key()) continue;
    // The id may be another block's after the yield.
    const KeyHash hash = forest_.block(at).key_hash();
    co_await Yield();
    at = EntryOf(tree) == nullptr ? kNoId : forest_.FindKeyHash(tree, hash);
  }
  co_return way;
}

Task<void> Catalog::LearnStanding(TreeId tree, KeyHash key_hash) {
  constexpr int kTries = 8;
  for (int tries = 0; EntryOf(tree) != nullptr; ++tries) {
    bool unsure = false;
    FindKeyHash(tree, key_hash, &unsure);
    if (!unsure || tries == kTries) co_return;
    const std::vector<KeyHash> way = co_await WayUp(tree, key_hash);
    for (const KeyHash ancestor : std::views::reverse(way)) {
      if (steps_.Spent()) co_await Yield();
      if (EntryOf(tree) == nullptr) co_return;
      FindKeyHash(tree, ancestor);  // which is remembered
    }
    if (steps_.Spent()) co_await Yield();
  }
}

Task<void> Catalog::ShareUses() {
  for (;;) {
    // Each look is two touches.
    std::uint32_t budget = kSpentTouches / 4;
    const bool more = conversations_.ShareSome(forest_, &budget);
    steps_.Count(2 * (kSpentTouches / 4 - budget));
    if (!more) co_return;
    co_await Yield();
  }
}

bool Catalog::Readable(BlockId block, std::uint16_t group, std::uint64_t now_s) const {
  const auto copy = forest_.See(block, group);
  return copy && !Expired(copy->expiry, now_s);
}

RecordId Catalog::ReadableRecord(BlockId block, std::uint16_t group, std::uint64_t now_s) {
  return Readable(block, group, now_s) ? forest_.Take(block, group) : kNoId;
}

std::uint64_t Catalog::RecordBytesOf(const NamespaceEntry& entry, std::uint16_t group,
                                     std::uint64_t body_bytes) const {
  const std::uint32_t alignment = arena_.geometry().alignment;
  const std::vector<std::uint32_t>& parts = entry.groups[group].part_bytes;
  if (parts.empty()) return record::RecordBytes(body_bytes, alignment);
  return record::RecordBytes(body_bytes, record::SegmentCount(parts),
                             static_cast<std::uint32_t>(parts.size()), alignment);
}

std::uint64_t Catalog::RecordBytesOf(TreeId tree, std::uint16_t group, std::uint64_t body_bytes) const {
  const IncarnationTree* found = forest_.tree(tree);
  const NamespaceEntry* entry = found == nullptr ? nullptr : namespaces_.at(found->slot);
  return entry == nullptr ? 0 : RecordBytesOf(*entry, group, body_bytes);
}

record::BodySpan Catalog::SpanOf(const Record& record, const record::SegmentSpan& segments) const {
  const record::BodySpan all{0, record.body_bytes};
  const NamespaceEntry* entry = EntryOf(forest_.block(record.block).tree);
  if (entry == nullptr || segments.count == 0) return all;
  const std::vector<std::uint32_t>& parts = entry->groups[record.group].part_bytes;
  const record::BodySpan span = parts.empty() ? record::BytesOf(std::span(&record.body_bytes, 1), segments)
                                              : record::BytesOf(parts, segments);
  return span.bytes == 0 ? all : span;
}

bool Catalog::IsSealOf(const Record& record, const record::SealView& seal) const {
  const Block& block = forest_.block(record.block);
  const NamespaceEntry* entry = EntryOf(block.tree);
  return entry != nullptr && seal.incarnation() == entry->incarnation && seal.group() == record.group &&
         seal.body_bytes() == record.body_bytes && seal.part_count() == record.part_count() &&
         KeyHashOf(block.tree, seal.key()) == block.key_hash() &&
         (record.key.none() || seal.HasKey(record.key));
}

}  // namespace cistern::catalog
