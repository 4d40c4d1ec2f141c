// SPDX-License-Identifier: Apache-2.0
#include "workload/contender.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace cistern::workload {
namespace {

using policy::EntryId;
using policy::Lru;
using policy::Shelf;

// Shelves of one order are lists of their own.
class Lists : public Contender {
 public:
  explicit Lists(const Extended& extended) : extended_(extended) {}
  void Unpark(EntryId id) final { order_.Unpark(id); }

 protected:
  std::optional<EntryId> EvictFrom(Shelf list) {
    while (const std::optional<EntryId> id = order_.Coldest(list)) {
      if (!extended_(*id)) {
        order_.Remove(*id);
        return id;
      }
      order_.Park(*id);
    }
    return std::nullopt;
  }
  static void Move(Lru& order, EntryId id, Shelf to) {
    order.Remove(id);
    order.Insert(id, to);
  }
  Lru order_;

 private:
  const Extended& extended_;
};

class LeastRecent final : public Lists {
 public:
  using Lists::Lists;
  void Touch(EntryId id) override { order_.Touch(id); }
  void Insert(EntryId id) override { order_.Insert(id); }
  EntryId Evict() override { return *EvictFrom(0); }
};

class FirstIn final : public Lists {
 public:
  using Lists::Lists;
  void Touch(EntryId) override {}
  void Insert(EntryId id) override { order_.Insert(id); }
  EntryId Evict() override { return *EvictFrom(0); }
};

class Segmented final : public Lists {
 public:
  Segmented(const Extended& extended, std::uint64_t blocks) : Lists(extended), most_(blocks / 5) {}

  void Touch(EntryId id) override {
    if (order_.shelf(id) == kProtected) {
      order_.Touch(id);
      return;
    }
    Move(order_, id, kProtected);
    ++protected_;
    while (protected_ > most_) {
      const std::optional<EntryId> demoted = order_.Coldest(kProtected);
      if (!demoted) break;
      Move(order_, *demoted, kProbation);
      --protected_;
    }
  }
  void Insert(EntryId id) override { order_.Insert(id, kProbation); }
  EntryId Evict() override {
    if (const auto id = EvictFrom(kProbation)) return *id;
    --protected_;
    return *EvictFrom(kProtected);
  }

 private:
  static constexpr Shelf kProbation = 0, kProtected = 1;
  const std::uint64_t most_;
  std::uint64_t protected_ = 0;
};

// Keys in order, the least leaves first; the last part is the time of the last use, so keys differ.
class Ranked : public Contender {
 public:
  explicit Ranked(const Extended& extended) : extended_(extended) {}

 protected:
  using Rank = std::pair<std::uint64_t, std::uint64_t>;
  EntryId EvictLeast() {
    const auto least =
        std::ranges::find_if(order_, [&](const auto& ranked) { return !extended_(ranked.second); });
    const EntryId id = least->second;
    order_.erase(least);
    return id;
  }
  void Put(EntryId id, const Rank& rank) {
    if (id >= ranks_.size()) ranks_.resize(std::size_t{id} + 1);
    order_.erase({ranks_[id], id});
    ranks_[id] = rank;
    order_.emplace(rank, id);
  }
  // Of the last use, or before the id was evicted of its last there.
  const Rank& rank(EntryId id) const { return ranks_[id]; }
  bool known(EntryId id) const { return id < ranks_.size(); }
  void Forget(EntryId id) { ranks_[id] = {}; }
  std::uint64_t Now() { return ++now_; }

 private:
  const Extended& extended_;
  std::set<std::pair<Rank, EntryId>> order_;
  std::vector<Rank> ranks_;
  std::uint64_t now_ = 0;
};

class LeastFrequent final : public Ranked {
 public:
  using Ranked::Ranked;
  void Touch(EntryId id) override { Put(id, {rank(id).first + 1, Now()}); }
  void Insert(EntryId id) override { Put(id, {evicted_ + 1, Now()}); }
  EntryId Evict() override {
    const EntryId id = EvictLeast();
    evicted_ = std::max(evicted_, rank(id).first);
    return id;
  }

 private:
  std::uint64_t evicted_ = 0;
};

class SecondLast final : public Ranked {
 public:
  SecondLast(const Extended& extended, std::uint64_t blocks) : Ranked(extended), most_(4 * blocks) {}
  void Touch(EntryId id) override { Put(id, {rank(id).second, Now()}); }
  void Insert(EntryId id) override {
    if (history_.Contains(id)) history_.Remove(id);
    Put(id, {known(id) ? rank(id).second : 0, Now()});
  }
  EntryId Evict() override {
    const EntryId id = EvictLeast();
    history_.Insert(id);
    if (history_.size() > most_) {
      const EntryId oldest = *history_.Coldest();
      history_.Remove(oldest);
      Forget(oldest);
    }
    return id;
  }

 private:
  const std::uint64_t most_;
  Lru history_;
};

class Adaptive final : public Lists {
 public:
  Adaptive(const Extended& extended, std::uint64_t blocks) : Lists(extended), blocks_(blocks) {}

  void Touch(EntryId id) override {
    if (order_.shelf(id) == kOnce) --once_;
    Move(order_, id, kAgain);
  }
  void Insert(EntryId id) override {
    if (!ghosts_.Contains(id)) {
      order_.Insert(id, kOnce);
      ++once_;
      return;
    }
    const Shelf list = ghosts_.shelf(id);
    const std::uint64_t step = std::max<std::uint64_t>(gone_[1 - list] / gone_[list], 1);
    share_ = list == kOnce ? std::min(share_ + step, blocks_) : share_ - std::min(share_, step);
    ghosts_.Remove(id);
    --gone_[list];
    order_.Insert(id, kAgain);
  }
  EntryId Evict() override {
    const Shelf first = once_ > share_ ? kOnce : kAgain;
    for (const Shelf list : {first, static_cast<Shelf>(1 - first)}) {
      const std::optional<EntryId> id = EvictFrom(list);
      if (!id) continue;
      if (list == kOnce) --once_;
      ghosts_.Insert(*id, list);
      ++gone_[list];
      // Ids used once, resident and gone, are at most `blocks`, and so are all that are gone.
      while (gone_[kOnce] > 0 && once_ + gone_[kOnce] > blocks_) Forget(kOnce);
      while (gone_[kOnce] + gone_[kAgain] > blocks_) Forget(gone_[kAgain] > 0 ? kAgain : kOnce);
      return *id;
    }
    __builtin_unreachable();
  }

 private:
  static constexpr Shelf kOnce = 0, kAgain = 1;
  void Forget(Shelf list) {
    ghosts_.Remove(*ghosts_.Coldest(list));
    --gone_[list];
  }
  const std::uint64_t blocks_;
  std::uint64_t share_ = 0;  // of the ids used once
  std::uint64_t once_ = 0;   // resident ones used once
  std::uint64_t gone_[2] = {};
  Lru ghosts_;
};

}  // namespace

std::unique_ptr<Contender> MakeLru(const Extended& extended) {
  return std::make_unique<LeastRecent>(extended);
}
std::unique_ptr<Contender> MakeFifo(const Extended& extended) { return std::make_unique<FirstIn>(extended); }
std::unique_ptr<Contender> MakeSlru(const Extended& extended, std::uint64_t blocks) {
  return std::make_unique<Segmented>(extended, blocks);
}
std::unique_ptr<Contender> MakeLfu(const Extended& extended) {
  return std::make_unique<LeastFrequent>(extended);
}
std::unique_ptr<Contender> MakeLru2(const Extended& extended, std::uint64_t blocks) {
  return std::make_unique<SecondLast>(extended, blocks);
}
std::unique_ptr<Contender> MakeArc(const Extended& extended, std::uint64_t blocks) {
  return std::make_unique<Adaptive>(extended, blocks);
}

}  // namespace cistern::workload
