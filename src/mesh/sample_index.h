// SPDX-License-Identifier: Apache-2.0
// What a member knows of what the others hold: of each chain its first block and every s-th, s blocks being
// 256 tokens or less. So a prompt that nobody knows costs a few looks and no message, and of one that is
// known the candidate is told: the member with its deepest sample. It is a hint; the candidate's answer
// counts.
//
// An entry takes 12 bytes: 64 bits of hash, the sample's number in its chain, the member. Entries lie in
// many small sorted arrays, so that no change moves more than a few KiB. Past the budget only every second
// sample is kept, then every fourth, for all members alike; first blocks past a quarter of it are sampled by
// hash.
#pragma once

#include <algorithm>
#include <bit>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cistern/key.h"
#include "mesh/cell_drop.h"

namespace cistern::mesh {

// Names of members in the index, given out anew after Sweep.
using MemberNumber = std::uint8_t;
inline constexpr std::size_t kMemberNumbers = 256;
using MemberSet = std::bitset<kMemberNumbers>;

// Which blocks of a chain are sampled: the first, as number 0, and those at depth s-1 mod s, as 1, 2, ...
// Members may have been told of one namespace that its blocks have other lengths, by programs that leave the
// length out: s is a power of two, so that what one of them samples another does too, or samples all of it.
class SampleGrid final {
 public:
  static constexpr std::uint32_t kTokens = 256;
  static constexpr std::uint32_t kMostBlocks = 16;  // s at most, where nothing was said as well

  explicit constexpr SampleGrid(std::uint32_t block_tokens)
      : stride_(std::bit_floor(std::clamp(kTokens / block_tokens, 1u, kMostBlocks))) {}

  constexpr std::uint32_t stride() const { return stride_; }  // s
  // Whether the block at `depth` is one, whose number then is NumberOf.
  constexpr bool Sampled(std::uint64_t depth) const { return depth == 0 || (depth + 1) % stride_ == 0; }
  constexpr std::uint32_t NumberOf(std::uint64_t depth) const {
    return depth == 0 ? 0 : static_cast<std::uint32_t>((depth + 1) / stride_);
  }

 private:
  std::uint32_t stride_;
};

// A sample as members tell each other of it. The hash is seeded by the cell's history, which clients do not
// know, and by the namespace.
struct Sample {
  static constexpr std::uint32_t kNumbers = 1u << 24;
  std::uint64_t hash = 0;
  std::uint32_t number = 0;  // below kNumbers
  friend bool operator==(const Sample&, const Sample&) = default;
};

std::uint64_t SampleSeed(std::uint64_t history, const SharedNamespace& name);
// `key_hash`: BlockKey::Hash() of the block's key.
std::uint64_t SampleHash(std::uint64_t seed, std::uint64_t key_hash);

class SampleIndex final {
 public:
  struct Options {
    std::uint64_t budget_bytes = 256u << 20;
    std::uint32_t shards = 1u << 16;  // a power of two
  };
  explicit SampleIndex(const Options& options);
  ~SampleIndex();
  SampleIndex(const SampleIndex&) = delete;
  SampleIndex& operator=(const SampleIndex&) = delete;

  // No effect where it is there already, or is none that is kept by now.
  void Add(MemberNumber member, const Sample& sample);
  void Remove(MemberNumber member, std::uint64_t hash);
  // The member's entries count no more; Sweep takes them out. Its number is not given to another meanwhile.
  void Forget(MemberNumber member);
  // Looks at `shards` more for entries that are not kept any more. True: there are more to look at.
  bool Sweep(std::uint32_t shards);
  // Whether entries of this number may still lie here.
  bool forgetting(MemberNumber member) const { return forgotten_[member]; }

  MemberSet Holders(std::uint64_t hash) const;

  struct Deepest {
    std::size_t blocks =
        0;  // of the chain, from its first on, that the holders are said to have; 0: no holder
    // The first that they lack is no further: there would be another sample.
    std::size_t reach = 0;
    MemberSet holders;
  };
  // Who of `among` has more of the chain than its first `local` blocks. A chain's holder holds all before
  // it, so the deepest sample is searched by halves: among those of members that sample as this one does or
  // more, and then of those that sample less.
  Deepest Find(std::uint64_t seed, std::span<const BlockKey> chain, std::size_t local,
               std::uint32_t block_tokens, const MemberSet& among) const;

  std::uint64_t entries() const { return entries_; }
  std::uint64_t EntriesOf(MemberNumber member) const { return of_[member].entries; }
  // All that it takes.
  std::uint64_t bytes() const;
  // One of so many samples is kept.
  std::uint32_t thinning() const { return 1u << doublings_; }

 private:
  struct Entry {
    std::uint32_t low, high;  // of the hash
    std::uint32_t what;       // number << 8 | member
    std::uint64_t hash() const { return std::uint64_t{high} << 32 | low; }
    std::uint32_t number() const { return what >> 8; }
    MemberNumber member() const { return static_cast<MemberNumber>(what); }
  };
  static_assert(sizeof(Entry) == 12);
  struct Shard {
    std::unique_ptr<Entry[]> entries;  // by hash, then member
    std::uint32_t count = 0, room = 0;
  };
  struct OfMember {
    std::uint64_t entries = 0;
  };

  const Shard& ShardOf(std::uint64_t hash) const { return shards_[hash >> shift_]; }
  // The first entry that is not below.
  std::uint32_t LowerBound(const Shard& shard, std::uint64_t hash, MemberNumber member) const;
  bool Kept(std::uint64_t hash, std::uint32_t number) const;
  void Thin();
  void Resize(Shard& shard, std::uint32_t room);

  const std::uint64_t budget_bytes_;
  const std::uint32_t shift_;
  std::vector<Shard> shards_;
  std::uint64_t room_ = 0;  // entries that the shards have room for
  std::uint64_t entries_ = 0;
  std::uint64_t roots_ = 0;  // of them, first blocks
  std::uint32_t doublings_ = 0;
  std::uint32_t root_doublings_ = 0;
  std::vector<OfMember> of_;
  MemberSet forgotten_;
  MemberSet forgotten_in_pass_;            // were forgotten before the pass began
  std::size_t sweep_at_ = 0;               // next shard
  bool sweeping_ = false, again_ = false;  // again: something changed during this pass
};

}  // namespace cistern::mesh
