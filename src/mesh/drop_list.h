// SPDX-License-Identifier: Apache-2.0
// The list of a cell's drops at one member, and the rule that it is there for: a record that another member
// answered with `a`, its `applied`, is taken only if no drop in (a, seen] covers its namespace or a key of
// its chain. Drops are listed by their names, of what is known here and of what is not: the last kMost keys.
// Whoever answers from behind the list is refused.
//
// Names are kept as 64-bit hashes under a random seed: two that collide refuse a record that might have been
// taken, which is a miss and no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "mesh/cell_drop.h"

namespace cistern::mesh {

enum class Verdict : std::uint8_t {
  kTake,
  kCovered,  // by a drop that the answering member had not applied
  kBehind,   // it answers from behind the list, which does not know what it missed
};

class DropList final {
 public:
  static constexpr std::size_t kMost = 1u << 20;  // of keys, namespaces and ends together

  explicit DropList(std::uint64_t seed, std::size_t most = kMost) : seed_(seed), most_(most) {}

  // Empty; what was dropped and what ended up to `from` is not in it. Another history's revisions may be
  // lower.
  void Restart(std::int64_t from);
  // Without ends up to `from`.
  void RestartEnds(std::int64_t from);
  // Of no earlier revision than the last.
  void Add(std::int64_t revision, const CellDrop& drop);
  // A drop of keys, or a part of one.
  void AddKeys(std::int64_t revision, const SharedNamespace& name, std::span<const BlockKey> keys);

  // Drops up to here are not in the list.
  std::int64_t begin() const { return drops_.begin; }
  std::int64_t ends_begin() const { return ends_.begin; }
  // The revision of the last drop in it.
  std::int64_t last() const { return last_; }
  std::size_t size() const { return drops_.listed.size() + ends_.listed.size(); }

  // The revision of the last drop in it that covers one of the keys, or the namespace where there is none; 0:
  // none does.
  std::int64_t LastOf(const SharedNamespace& name, std::span<const BlockKey> keys) const;
  // Removes from a record's notes the conversations that ended in (a, seen]. kCovered: there were notes and
  // none is left, kBehind: the list does not know; the record is refused.
  Verdict CheckNotes(const SharedNamespace& name, std::vector<std::uint64_t>* notes, std::int64_t a) const;

 private:
  friend class ChainCheck;
  struct Listed {
    std::int64_t revision;
    std::uint64_t hash;
  };
  // What leaves the list first is what was listed first.
  struct Names {
    std::int64_t begin = 0;
    std::deque<Listed> listed;
    std::uint64_t ever = 0;                                // listed since the list is there
    std::unordered_map<std::uint64_t, std::int64_t> last;  // by hash: the revision of its last drop
    void Restart(std::int64_t from);
  };

  void List(Names& names, std::int64_t revision, std::uint64_t hash);
  void Forget(Names& names);
  std::uint64_t HashOf(const SharedNamespace& name) const;
  static std::uint64_t HashOf(std::uint64_t namespace_hash, const BlockKey& key);
  static std::uint64_t HashOf(std::uint64_t namespace_hash, std::uint64_t conversation);
  bool DroppedAfter(const Names& names, std::uint64_t hash, std::int64_t a) const;

  const std::uint64_t seed_;
  const std::size_t most_;
  std::int64_t last_ = 0;
  Names drops_, ends_;
};

// The rule for a record's chain, from its root on, whose `seen` is all that is listed. Long ones are looked
// at in slices of a core step each: the last one looks at what was listed since. Where nothing was listed
// since `a`, which is so nearly always, no key is looked at.
class ChainCheck final {
 public:
  // All is borrowed and stays as long as the check; the list may grow meanwhile, and begin anew.
  ChainCheck(const DropList& list, const SharedNamespace& name, std::span<const BlockKey> chain,
             std::int64_t a);
  // The chain has more blocks now, behind those that it had.
  void Extend(std::span<const BlockKey> chain) { chain_ = chain; }
  std::int64_t a() const { return a_; }
  // Looks at `touches` names at most. True: done, in this very step, so verdict() holds until the list
  // changes.
  bool Step(std::size_t touches);
  Verdict verdict() const { return verdict_; }
  // At how many names it has looked so far.
  std::size_t looked() const { return looked_; }

 private:
  const DropList& list_;
  std::span<const BlockKey> chain_;
  const std::int64_t a_;
  const SharedNamespace& name_;
  std::uint64_t namespace_hash_ = 0;   // once it is needed
  std::vector<std::uint64_t> hashes_;  // of the namespace and of the chain so far
  std::size_t looked_ = 0;
  std::uint64_t looked_to_;  // how many drops were ever listed that the check has seen
  Verdict verdict_ = Verdict::kTake;
};

}  // namespace cistern::mesh
