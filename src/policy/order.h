// SPDX-License-Identifier: Apache-2.0
// Which resident leaves memory next: by `reuse`, the one of least expected hits per block-second, or by
// `lru`, the least recently used. One order for all that evicts: the store and the simulator.
//
// Ids are parked as in Lru. Each has a size class too: one that leaves makes room for one of the same size;
// and a group, whose quota it counts for: who asks for the next to leave says of which groups it may be.
// Within a class of reuse the least recently used goes first, so a decision looks at one id a class, size and
// group.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/paged_array.h"
#include "cistern/policy.h"
#include "policy/evict.h"
#include "policy/quota.h"
#include "policy/reuse.h"

namespace cistern::policy {

// A size of slots on a memory node (memory::SlotKind).
using SizeClass = std::uint16_t;

struct AnySize {
  constexpr bool operator()(SizeClass) const { return true; }
};

// In place of the id of a block that lies below memory.
inline constexpr EntryId kBelow = 0xffff'ffff;

class Order final {
 public:
  // Of a store of `blocks`: 24 bytes for each id up to the largest ever inserted, 16 of them Lru's, and what
  // Reuse takes.
  Order(EvictionPolicy policy, std::uint64_t blocks);

  // Makes room for ids less than `entries`, so that inserting them does not allocate.
  void Reserve(EntryId entries);
  // Milliseconds, never before those of the call before.
  void SetNow(std::uint64_t ms) { now_ = static_cast<UseTime>(ms); }

  // ---- requests: as in Reuse, which may be asked for where it is there only ----
  bool learns() const { return reuse_ != nullptr; }
  // A prompt was taken in, so that newcomers may be held to be something.
  bool taught() const { return reuse_ != nullptr && reuse_->taught(); }
  void Begin(Reuse::Prompt& prompt) { reuse_->Begin(prompt, now_); }
  void Look(Reuse::Prompt& prompt, std::uint64_t position, std::uint64_t key) {
    reuse_->Look(prompt, position, key);
  }
  void Classify(Reuse::Prompt& prompt, std::optional<EntryId> last) {
    reuse_->Classify(prompt, UsageOf(last));
  }
  void Use(Reuse::Prompt& prompt, std::uint64_t position, std::uint64_t key, std::optional<EntryId> id);
  void End(Reuse::Prompt& prompt) { reuse_->End(prompt); }
  // All of these in one call, for an owner that need not pause: `keys` of all blocks of the prompt, of which
  // the first ones are there: `residents`, or kBelow. What `asked` says of their numbers is not used. No
  // effect by `lru`.
  void TakeIn(Reuse::Asked asked, std::span<const std::uint64_t> keys, std::span<const EntryId> residents);
  // The id, of the same block as `first`, is used as that one was.
  void Follow(EntryId id, EntryId first);

  // As in Reuse; 1 by `lru`, which knows no better.
  double ReturnsWithin(Reuse::Class in, double ms) const {
    return reuse_ == nullptr ? 1 : reuse_->ReturnsWithin(in, ms);
  }
  // 0 too for an id that was never inserted.
  Reuse::Class ClassOf(EntryId id) const {
    const Usage* usage = usage_.Find(id);
    return usage != nullptr ? Reuse::Class{usage->in} : Reuse::Class{0};
  }

  // ---- newcomers ----
  Standing StandingOf(std::uint64_t key, const Standing& parent) const {
    return reuse_ == nullptr ? Standing() : reuse_->StandingOf(key, parent);
  }
  // Of one that is fetched from below memory.
  Standing StandingBelow(std::uint64_t key, const Standing& parent) const {
    return reuse_ == nullptr ? Standing() : reuse_->StandingBelow(key, parent);
  }
  // Of a resident, for its children.
  Standing StandingOf(EntryId id) const;
  // A newcomer is worth less than this resident, which it would displace, is proven to be. Never where no
  // prompt told of it, nor where the resident's class was hardly ever seen to return.
  bool StaysOut(const Standing& newcomer, EntryId resident) const;

  // The id that leaves for the newcomer, whose block takes the room of one: the coldest for which `may(id)`
  // holds, the others are parked on the way. None: the newcomer stays out, or no id may leave.
  template <class May>
  std::optional<EntryId> LeavesFor(const Standing& newcomer, May may) {
    while (const std::optional<EntryId> id = Coldest()) {
      if (may(*id)) return StaysOut(newcomer, *id) ? std::nullopt : id;
      Park(*id);
    }
    return std::nullopt;
  }

  // A block that is fetched from below is worth less than what would leave for it, the coldest for which
  // `may(id)` holds, is proven to be: it is read, and takes nobody's place. The others are parked on the way,
  // a few at most; what leaves before all others in any case does not count. That is asked of the size
  // classes for which `of(size_class)` holds.
  template <class May, class Of = AnySize>
  bool Passes(const Standing& fetched, QuotaGroups groups, May may, Of of = {}) {
    for (std::size_t look = 0; look < kMostLooks && fetched.told && learns(); ++look) {
      const std::optional<EntryId> id = ColdestOn(groups, kCold, of);
      if (!id) return false;
      if (may(*id)) return StaysOut(fetched, *id);
      Park(*id);
    }
    return false;
  }

  // ---- residents ----
  // An absent id.
  void Insert(EntryId id, SizeClass size_class, const Standing& standing, QuotaGroup group = 0);
  // An id that is not absent counts for another group from now on, as recent as it was.
  void Regroup(EntryId id, QuotaGroup group);
  // The same for its size class: it lies elsewhere now.
  void Reclass(EntryId id, SizeClass size_class);
  // The id, absent or not, leaves before all others until it is touched.
  void MakeColdest(EntryId id, SizeClass size_class);
  // An id that is not absent is used; `key` as in a prompt.
  void Touch(EntryId id, std::uint64_t key);
  void Remove(EntryId id) {
    CountOn(lru_.shelf(id), -1);
    lru_.Remove(id);
  }
  void Park(EntryId id) { lru_.Park(id); }
  void Unpark(EntryId id) { lru_.Unpark(id); }
  bool Contains(EntryId id) const { return lru_.Contains(id); }
  bool Parked(EntryId id) const { return lru_.Parked(id); }
  std::size_t size() const { return lru_.size(); }
  SizeClass size_class(EntryId id) const { return ranks_[lru_.shelf(id) / kStride].size_class; }
  // Ids of one class of reuse, size class and group stand on one, the least recently used first.
  Shelf shelf(EntryId id) const { return lru_.shelf(id); }
  QuotaGroup group(EntryId id) const { return ranks_[lru_.shelf(id) / kStride].group; }

  // The next to leave, or nothing when all are parked; and the next of one size class.
  std::optional<EntryId> Coldest() const { return ColdestIn(kAllGroups); }
  std::optional<EntryId> ColdestIn(QuotaGroups groups) const {
    if (!grouped_ && (groups & 1) != 0) return ColdestAmong(0, ranks_.size() * kStride);
    return ColdestOf(AnySize(), groups);
  }
  std::optional<EntryId> Coldest(SizeClass size_class, QuotaGroups groups = kAllGroups) const {
    return ColdestOf([size_class](SizeClass its) { return its == size_class; }, groups);
  }
  // Of the size classes for which `of(size_class)` holds.
  template <class Of>
  std::optional<EntryId> ColdestOf(Of of, QuotaGroups groups = kAllGroups) const {
    return ColdestOn(groups, kStride, of);
  }
  // Of two that are not absent, the first would leave before the second.
  bool Colder(EntryId id, EntryId other) const { return ColdnessOf(id) < ColdnessOf(other); }

  // ---- held for a turn to come (policy/fetch_ahead.h) ----
  // A resident leaves after all that are not held, however it is used, until LetGo, or until it is made the
  // coldest. No effect by `lru`, which knows of no turns.
  void Hold(EntryId id);
  void LetGo(EntryId id);
  bool Held(EntryId id) const { return lru_.Contains(id) && lru_.shelf(id) % kStride == kHeld; }
  std::size_t held() const { return held_; }
  // Milliseconds since it was used last, or came; by `reuse`.
  std::uint64_t SinceUse(EntryId id) const { return static_cast<UseTime>(now_ - usage_[id].last); }
  // Any that is held and not parked.
  std::optional<EntryId> FirstHeld() const;

  // ---- by recency alone: for a choice between size classes ----
  std::optional<EntryId> Oldest() const { return lru_.Coldest(); }
  std::optional<EntryId> Oldest(SizeClass size_class, QuotaGroups groups = kAllGroups) const {
    return OldestOf([size_class](SizeClass its) { return its == size_class; }, groups);
  }
  // The oldest of the size classes for which `may(size_class)` holds.
  template <class May>
  std::optional<EntryId> OldestOf(May may, QuotaGroups groups = kAllGroups) const {
    const std::optional<EntryId> oldest = OldestOn(kHeld, may, groups);
    return oldest || held_ == 0 ? oldest : OldestOn(kStride, may, groups);
  }
  // Uses since the size class's most recent one; it has one.
  std::uint64_t LeastAge(SizeClass size_class) const;
  std::uint64_t Age(EntryId id) const { return lru_.Age(id); }
  std::uint64_t uses() const { return lru_.uses(); }

  // ---- a walk from the cold ends ----
  // The next shelf in use from `from` on, and its first id; the next on the shelf is Warmer().
  struct Shelved {
    Shelf shelf;
    EntryId id;
  };
  std::optional<Shelved> FirstOf(std::size_t from) const;
  std::size_t shelves_in_use() const;
  std::optional<EntryId> Warmer(EntryId id) const { return lru_.Warmer(id); }
  // The id stands on the shelf, and is not parked.
  bool StandsOn(EntryId id, Shelf shelf) const {
    return Contains(id) && !Parked(id) && lru_.shelf(id) == shelf;
  }

 private:
  static constexpr std::size_t kStride = 128;  // shelves of a size class
  static constexpr std::size_t kHeld = kStride - 1;
  static constexpr std::size_t kCold = kHeld - 1;
  static constexpr std::size_t kMostLooks = 64;  // for one that passes
  static_assert(Reuse::kClasses <= kCold);

  // The shelves of a size class and group, by their first one.
  struct Rank {
    SizeClass size_class;
    QuotaGroup group;
  };
  template <class May, class See>
  void ForRanks(QuotaGroups groups, May may, See see) const {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if ((groups >> ranks_[rank].group & 1) != 0 && may(ranks_[rank].size_class)) see(rank * kStride);
    }
  }
  // Of the first `shelves` of each rank.
  template <class May>
  std::optional<EntryId> OldestOn(std::size_t shelves, May may, QuotaGroups groups) const {
    std::optional<EntryId> oldest;
    ForRanks(groups, may, [&](std::size_t first) {
      const std::optional<EntryId> id = lru_.ColdestAmong(first, first + shelves);
      if (id && (!oldest || Age(*id) > Age(*oldest))) oldest = id;
    });
    return oldest;
  }
  template <class Of>
  std::optional<EntryId> ColdestOn(QuotaGroups groups, std::size_t shelves, Of of) const {
    Coldness coldest;
    ForRanks(groups, of, [&](std::size_t first) { LookAmong(first, first + shelves, coldest); });
    return coldest.found();
  }
  // What leaves first has the least value, and of these is the oldest.
  struct Coldness {
    EntryId id = kBelow;  // none
    double value = 0;
    std::uint64_t age = 0;
    std::optional<EntryId> found() const { return id == kBelow ? std::nullopt : std::optional(id); }
    bool operator<(const Coldness& other) const {
      return value != other.value ? value < other.value : age > other.age;
    }
  };
  Coldness ColdnessOf(EntryId id) const {
    return {.id = id, .value = reuse_ == nullptr ? 0 : ValueOf(id).expected, .age = lru_.Age(id)};
  }
  // Replaces `coldest` by what is colder on the shelves from `first` on, up to `end`.
  void LookAmong(std::size_t first, std::size_t end, Coldness& coldest) const;
  // Where there are shelves for no more ranks the id counts for no quota.
  Shelf ShelfOf(SizeClass size_class, std::size_t in, QuotaGroup group);
  Usage* UsageOf(std::optional<EntryId> id) { return id ? &usage_[*id] : nullptr; }
  Reuse::Value ValueOf(EntryId id) const;
  Reuse::Value ValueOf(std::size_t in, UseTime age) const;
  // The numbers of ids on shelves of kept prompts, and of those that are held, as one leaves its shelf or
  // comes to it.
  void CountOn(Shelf shelf, int by) {
    const std::size_t in = shelf % kStride;
    if (Reuse::IsKept(static_cast<Reuse::Class>(in))) kept_ += static_cast<std::size_t>(by);
    if (in == kHeld) held_ += static_cast<std::size_t>(by);
  }
  // As recent as it was.
  void Reshelve(EntryId id, std::size_t in);
  std::optional<EntryId> ColdestAmong(std::size_t first, std::size_t end) const {
    Coldness coldest;
    LookAmong(first, end, coldest);
    return coldest.found();
  }
  void MoveTo(EntryId id, std::size_t in);

  Lru lru_;  // a shelf a size class and class, in each the least recently used first
  PagedArray<Usage> usage_;
  std::unique_ptr<Reuse> reuse_;  // null: lru
  UseTime now_ = 0;
  std::size_t kept_ = 0;  // ids that are there of prompts to be kept
  std::size_t held_ = 0;
  std::vector<Rank> ranks_;          // in the order of their first use
  std::vector<std::uint16_t> rank_;  // by group and size class, where in there; kUnused: not there
  bool grouped_ = false;             // one of them has a group
};

}  // namespace cistern::policy
