// SPDX-License-Identifier: Apache-2.0
#include "mesh/sample_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/assert.h"
#include "base/random.h"

namespace cistern::mesh {
namespace {

// Then none is kept but first blocks, and of these two hashes. Numbers and hashes that members make up may be
// such that no less takes any of them.
constexpr std::uint32_t kMostDoublings = 24, kMostRootDoublings = 63;
static_assert(Sample::kNumbers == 1u << kMostDoublings);

}  // namespace

std::uint64_t SampleSeed(std::uint64_t history, const SharedNamespace& name) {
  std::uint64_t seed = HashOfText(SplitMix(history), name.tenant);
  for (std::size_t i = 0; i < name.list_hash.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, name.list_hash.data() + i, 8);
    seed = SplitMix(seed ^ word);
  }
  return seed;
}

std::uint64_t SampleHash(std::uint64_t seed, std::uint64_t key_hash) { return SplitMix(seed ^ key_hash); }

SampleIndex::SampleIndex(const Options& options)
    : budget_bytes_(options.budget_bytes),
      shift_(64 - static_cast<std::uint32_t>(std::countr_zero(options.shards))),
      shards_(options.shards),
      of_(kMemberNumbers) {
  CISTERN_ASSERT(std::has_single_bit(options.shards) && options.shards > 1);
}

SampleIndex::~SampleIndex() = default;

std::uint64_t SampleIndex::bytes() const {
  return sizeof(*this) + shards_.size() * sizeof(Shard) + of_.size() * sizeof(OfMember) +
         room_ * sizeof(Entry);
}

bool SampleIndex::Kept(std::uint64_t hash, std::uint32_t number) const {
  // The low bits: the high ones choose the shard.
  if (number == 0) return (hash & ((std::uint64_t{1} << root_doublings_) - 1)) == 0;
  return (number & ((1u << doublings_) - 1)) == 0;
}

// Hashes are as good as random, so an entry lies about where its hash lies among all of the shard.
std::uint32_t SampleIndex::LowerBound(const Shard& shard, std::uint64_t hash, MemberNumber member) const {
  const auto below = [&](const Entry& entry) {
    return entry.hash() < hash || (entry.hash() == hash && entry.member() < member);
  };
  const std::uint64_t in_shard = hash << (64 - shift_) >> 32;
  auto at = static_cast<std::uint32_t>(in_shard * shard.count >> 32);
  while (at > 0 && !below(shard.entries[at - 1])) --at;
  while (at < shard.count && below(shard.entries[at])) ++at;
  return at;
}

void SampleIndex::Resize(Shard& shard, std::uint32_t room) {
  auto entries = room == 0 ? nullptr : std::make_unique_for_overwrite<Entry[]>(room);
  if (shard.count > 0) std::memcpy(entries.get(), shard.entries.get(), shard.count * sizeof(Entry));
  shard.entries = std::move(entries);
  room_ = room_ - shard.room + room;
  shard.room = room;
}

void SampleIndex::Add(MemberNumber member, const Sample& sample) {
  CISTERN_ASSERT(sample.number < Sample::kNumbers && !forgotten_[member]);
  if (!Kept(sample.hash, sample.number)) return;
  Shard& shard = shards_[sample.hash >> shift_];
  const std::uint32_t at = LowerBound(shard, sample.hash, member);
  const std::uint32_t what = sample.number << 8 | member;
  if (at < shard.count && shard.entries[at].hash() == sample.hash && shard.entries[at].member() == member) {
    if ((shard.entries[at].number() == 0) != (sample.number == 0)) sample.number == 0 ? ++roots_ : --roots_;
    shard.entries[at].what = what;
    return;
  }
  if (shard.count == shard.room) Resize(shard, shard.room + std::max(4u, shard.room / 16));
  std::memmove(&shard.entries[at + 1], &shard.entries[at], (shard.count - at) * sizeof(Entry));
  shard.entries[at] = {static_cast<std::uint32_t>(sample.hash), static_cast<std::uint32_t>(sample.hash >> 32),
                       what};
  ++shard.count;
  ++entries_;
  ++of_[member].entries;
  if (sample.number == 0) ++roots_;
  if (!sweeping_ && bytes() > budget_bytes_) Thin();
}

void SampleIndex::Remove(MemberNumber member, std::uint64_t hash) {
  Shard& shard = shards_[hash >> shift_];
  const std::uint32_t at = LowerBound(shard, hash, member);
  if (at == shard.count || shard.entries[at].hash() != hash || shard.entries[at].member() != member) return;
  if (shard.entries[at].number() == 0) --roots_;
  --shard.count;
  std::memmove(&shard.entries[at], &shard.entries[at + 1], (shard.count - at) * sizeof(Entry));
  --entries_;
  --of_[member].entries;
  if (shard.count + std::max(8u, shard.room / 4) < shard.room) Resize(shard, shard.count + shard.count / 16);
}

void SampleIndex::Forget(MemberNumber member) {
  forgotten_.set(member);
  (sweeping_ ? again_ : sweeping_) = true;
}

// Roots are many where prompts have little in common: then they are the ones to be fewer.
void SampleIndex::Thin() {
  const bool roots = roots_ * sizeof(Entry) > budget_bytes_ / 4 || doublings_ == kMostDoublings;
  if (roots && root_doublings_ == kMostRootDoublings) return;  // there is nothing left to take
  ++(roots ? root_doublings_ : doublings_);
  (sweeping_ ? again_ : sweeping_) = true;
}

bool SampleIndex::Sweep(std::uint32_t shards) {
  if (!sweeping_) return false;
  if (sweep_at_ == 0) forgotten_in_pass_ = forgotten_;
  for (; shards > 0 && sweep_at_ < shards_.size(); --shards, ++sweep_at_) {
    Shard& shard = shards_[sweep_at_];
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < shard.count; ++i) {
      const Entry entry = shard.entries[i];
      if (!forgotten_[entry.member()] && Kept(entry.hash(), entry.number())) {
        shard.entries[kept++] = entry;
        continue;
      }
      --entries_;
      --of_[entry.member()].entries;
      if (entry.number() == 0) --roots_;
    }
    shard.count = kept;
    if (kept + std::max(8u, shard.room / 4) < shard.room) Resize(shard, kept + kept / 16);
  }
  if (sweep_at_ < shards_.size()) return true;
  sweep_at_ = 0;
  sweeping_ = again_;
  again_ = false;
  forgotten_ &= ~forgotten_in_pass_;
  if (!sweeping_ && bytes() > budget_bytes_) Thin();
  return sweeping_;
}

MemberSet SampleIndex::Holders(std::uint64_t hash) const {
  MemberSet holders;
  const Shard& shard = ShardOf(hash);
  for (std::uint32_t at = LowerBound(shard, hash, 0); at < shard.count && shard.entries[at].hash() == hash;
       ++at)
    holders.set(shard.entries[at].member());
  return holders & ~forgotten_;
}

SampleIndex::Deepest SampleIndex::Find(std::uint64_t seed, std::span<const BlockKey> chain, std::size_t local,
                                       std::uint32_t block_tokens, const MemberSet& among) const {
  Deepest found;
  const std::size_t coarsest = std::size_t{SampleGrid::kMostBlocks} << doublings_;
  const auto look = [&](std::size_t depth) {
    const MemberSet holders = Holders(SampleHash(seed, chain[depth].Hash())) & among;
    if (holders.none()) return false;
    // A grid that has both this sample and the next.
    const std::size_t stride = depth == 0 ? coarsest : std::min((depth + 1) & -(depth + 1), coarsest);
    found = {depth + 1, depth + 1 + stride, holders};
    return true;
  };
  for (std::size_t stride = std::size_t{SampleGrid(block_tokens).stride()} << doublings_; stride <= coarsest;
       stride *= 2) {
    // Samples of the grid, counted from 1. Mostly nobody has more, or not much: so the first behind what is
    // known is looked for before halving.
    std::size_t known = std::max(local, found.blocks) / stride;
    if (stride == 1 && known == 0) known = 1;  // the first block, looked for below
    const std::size_t last = chain.size() / stride;
    if (known >= last || !look((known + 1) * stride - 1)) continue;
    ++known;
    for (std::size_t unknown = last + 1; known + 1 < unknown;) {
      const std::size_t half = known + (unknown - known) / 2;
      (look(half * stride - 1) ? known : unknown) = half;
    }
  }
  if (found.blocks == 0 && local == 0 && !chain.empty()) look(0);
  return found;
}

}  // namespace cistern::mesh
