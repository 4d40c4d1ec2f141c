// SPDX-License-Identifier: Apache-2.0
// A model of a member's store, for tests: what is in its tree, and what its medium keeps over a kill.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/random.h"
#include "mesh/local_store.h"

namespace cistern::mesh {

struct RecordName {
  SharedNamespace name;
  BlockKey key;
  friend auto operator<=>(const RecordName&, const RecordName&) = default;
};

struct ModelRecord {
  std::uint64_t put = 0;             // of which write this is a copy
  std::vector<BlockKey> chain;       // from the root to its own key
  std::vector<std::uint64_t> notes;  // of conversations; none: it was shared from the start
  std::uint64_t born = 0, incarnation = 0;
};

inline bool Covers(const CellDrop& drop, const SharedNamespace& name, const std::vector<BlockKey>& chain) {
  if (drop.is_end() || drop.name != name) return false;
  return drop.what == CellDrop::What::kNamespace || std::ranges::any_of(chain, [&](const BlockKey& key) {
           return std::ranges::find(drop.keys, key) != drop.keys.end();
         });
}

// What a kill leaves.
struct ModelMedium {
  struct Tomb {
    std::uint64_t sequence = 0;
    CellDrop drop;
    bool all_noted = false;  // instead of `drop`
  };
  std::map<RecordName, ModelRecord> records;  // also those that were evicted from the tree
  std::vector<Tomb> tombs;
  std::uint64_t incarnation = 1;
  std::uint64_t sequence = 0;
  Standing standing;
};

class ModelStore final : public LocalStore {
 public:
  struct Faults {
    std::int64_t sync_us = 300;  // half of it to one and a half
    std::int64_t begin_us = 0;   // before each drop
    double slow_sync = 0;        // takes a thousand times as long
    double failed_sync = 0;
    double failed_discard = 0;  // as well
  };

  ModelStore(Executor& runs_on, ModelMedium& medium, std::uint64_t seed, const Faults& faults)
      : executor_(runs_on),
        medium_(medium),
        random_(seed),
        faults_(faults),
        incarnation_(medium.incarnation),
        tombs_(medium.tombs) {
    for (auto& [name, record] : medium.records) {
      if (record.incarnation != incarnation_) continue;
      ModelRecord found = record;
      bool gone = false;
      for (const ModelMedium::Tomb& tomb : tombs_)
        gone = gone || (tomb.sequence > record.born && Take(tomb, name, found));
      if (!gone) tree_.emplace(name, std::move(found));
    }
  }

  Executor& executor() { return executor_; }
  const std::map<RecordName, ModelRecord>& tree() const { return tree_; }

  // The first wins.
  void Put(const RecordName& name, ModelRecord record) {
    record.born = ++medium_.sequence;
    record.incarnation = incarnation_;
    if (tree_.emplace(name, record).second) medium_.records[name] = std::move(record);
  }
  void Evict(const RecordName& name) { tree_.erase(name); }

  Standing remembered() const override { return medium_.standing; }

  Task<void> Begin(const std::vector<CellDrop>& drops) override {
    for (const CellDrop& drop : drops) {
      if (faults_.begin_us > 0) (void)co_await SleepUntil(executor_.Now().PlusUs(faults_.begin_us));
      if (random_.Chance(0.2)) co_await Yield();
      AddTomb({++medium_.sequence, drop});
    }
  }
  Task<Status> Discard() override {
    // A sequence number, as of a store's: one that a kill took before it was durable is never another's.
    incarnation_ = ++medium_.sequence;
    tree_.clear();
    const std::uint64_t incarnation = incarnation_;
    if (Status status = co_await Sync(); !status.ok()) co_return status;
    if (random_.Chance(faults_.failed_discard)) co_return Status(Code::kIoError, "the disk failed");
    medium_.incarnation = std::max(medium_.incarnation, incarnation);
    co_return Status();
  }
  Task<Status> DiscardNoted() override {
    AddTomb({.sequence = ++medium_.sequence, .all_noted = true});
    const std::size_t tombs = tombs_.size();
    if (Status status = co_await Sync(); !status.ok()) co_return status;
    Keep(tombs);
    co_return Status();
  }
  Task<Status> Settle(const Standing& standing) override {
    const Standing as_of = standing;
    const std::size_t tombs = tombs_.size();
    if (Status status = co_await Sync(); !status.ok()) co_return status;
    Keep(tombs);
    medium_.standing = as_of;
    co_return Status();
  }

 private:
  // Whether the record goes, or only some of its notes.
  static bool Take(const ModelMedium::Tomb& tomb, const RecordName& name, ModelRecord& record) {
    if (tomb.all_noted) return !record.notes.empty();
    if (!tomb.drop.is_end()) return Covers(tomb.drop, name.name, record.chain);
    if (tomb.drop.name != name.name) return false;
    return std::erase(record.notes, tomb.drop.conversation) > 0 && record.notes.empty();
  }
  void AddTomb(ModelMedium::Tomb tomb) {
    for (auto at = tree_.begin(); at != tree_.end();)
      at = Take(tomb, at->first, at->second) ? tree_.erase(at) : std::next(at);
    tombs_.push_back(std::move(tomb));
  }
  void Keep(std::size_t tombs) {
    for (std::size_t i = medium_.tombs.size(); i < tombs; ++i) medium_.tombs.push_back(tombs_[i]);
  }
  Task<Status> Sync() {
    const auto us =
        static_cast<std::uint64_t>(faults_.sync_us) * (random_.Chance(faults_.slow_sync) ? 1000 : 1);
    const Instant until = executor_.Now().PlusUs(static_cast<std::int64_t>(us / 2 + random_.Below(us + 1)));
    (void)co_await SleepUntil(until);
    if (random_.Chance(faults_.failed_sync)) co_return Status(Code::kIoError, "the disk failed");
    co_return Status();
  }

  Executor& executor_;
  ModelMedium& medium_;
  Random random_;
  const Faults faults_;
  std::uint64_t incarnation_;
  std::vector<ModelMedium::Tomb> tombs_;
  std::map<RecordName, ModelRecord> tree_;
};

}  // namespace cistern::mesh
