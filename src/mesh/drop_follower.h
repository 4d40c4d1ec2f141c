// SPDX-License-Identifier: Apache-2.0
// The follower of a cell's drops: reads what etcd has in one transaction, then watches what changes, lets
// every drop begin to take effect here, and says how far it has come once that is durable.
//
// A watch alone proves nothing: at a stopped etcd it is silent, and at a restored one it may go on with
// revisions that mean something else. So etcd is asked every two seconds, and before anything is believed of
// a new watch, for the history, the floor, one's own key and a key that was seen; and a new watch begins with
// the last change that was seen, which has to be the same one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/random.h"
#include "base/step_budget.h"
#include "base/task.h"
#include "etcd/etcd.h"
#include "mesh/cell_keys.h"
#include "mesh/cell_state.h"
#include "mesh/local_store.h"
#include "mesh/membership.h"

namespace cistern::mesh {

// What a member does next.
struct Conclusion {
  enum class What : std::uint8_t {
    kGoOn,
    kUnreached,  // etcd did not answer: whatever was known stands
    kJoinAnew,
    kEnd,  // only a person can help
  };
  What what = What::kGoOn;
  Status why;
};

class DropFollower final {
 public:
  // All is borrowed. `told` is called whenever `applied` has changed.
  DropFollower(etcd::Etcd& etcd, const CellKeys& keys, std::span<const net::CellKey> cell_keys,
               LocalStore& store, Membership& membership, CellState& state, std::uint64_t seed,
               std::function<void()> told);
  DropFollower(const DropFollower&) = delete;
  DropFollower& operator=(const DropFollower&) = delete;

  Executor& executor() { return etcd_.executor(); }

  // Joins: agrees on the history, writes the member's key, reads to its revision or further.
  Task<Conclusion> Join();
  // Follows until something ends it. The member has joined.
  Task<Conclusion> Follow();
  // False: for kUnfitUs it could not read etcd, or the store did not begin, or make durable, what it was
  // given.
  bool CanFollow();
  // False: for kUnfitUs the store did not begin, or make durable, what it was given.
  bool MakesDurable();
  // Makes durable what has begun, for ever; `applied` follows `seen`.
  Task<void> Settle();
  // Asks nothing more of the store, and waits for what it was asked. Then all tasks of this end by being
  // dropped.
  Task<void> EndStoreCalls();

 private:
  // A call of the store that is under way: it makes something durable, or may wait for what does.
  class StoreCall {
   public:
    explicit StoreCall(DropFollower& follower)
        : follower_(follower), begun_(follower.store_calls_.insert(follower.executor().Now())) {}
    ~StoreCall() {
      follower_.store_calls_.erase(begun_);
      if (follower_.store_calls_.empty()) follower_.store_idle_.Pulse();
    }
    StoreCall(const StoreCall&) = delete;
    StoreCall& operator=(const StoreCall&) = delete;

   private:
    DropFollower& follower_;
    const std::multiset<Instant>::iterator begun_;
  };
  struct Batch {
    std::int64_t revision;
    std::vector<CellDrop> drops;
  };
  // By revision, what changed.
  using Changes = std::map<std::int64_t, std::uint64_t>;
  // What a snapshot of the cell says.
  struct Snapshot {
    etcd::Header header;
    FoundHistory history;
    std::int64_t history_revision = 0, floor_revision = 0;
    CellFloor floor;
    CellView view;
    std::vector<Batch> batches;  // later than what is seen, in order; none where all that is here goes
    std::vector<std::pair<std::int64_t, std::uint64_t>> drop_bytes, end_bytes;  // of each batch's revision
    KnownBatches known;
    Witness witness;
    Changes last_changes;
    bool unreadable = false;    // one of the batches
    bool contradicted = false;  // a batch is there that should have been seen, or is not that was
  };
  static constexpr std::size_t kLookRanges = 4;
  static constexpr int kDeafWatches = 2;  // in a row; then all is read by itself

  // Asks for what every look asks for, and more: kLookRanges answers, then the others.
  Task<Result<etcd::TransactionAnswer>> Ask(std::vector<etcd::Operation> more);
  HistoryStep Judge(const FoundHistory& found, std::int64_t highest_before) const;
  Task<Conclusion> Look();
  // Makes, replaces or completes the history until there is one that counts; its key's revision.
  Task<Conclusion> AgreeOnHistory(std::int64_t* history_revision);
  Task<Conclusion> ReadAll();
  // The same while this is a member, where the watch does not bring what there is.
  Task<Conclusion> ReadAgain();
  Task<Conclusion> ReadSnapshot(Snapshot* snapshot);
  Task<void> AddBatches(etcd::RangeAnswer page, bool ends, Snapshot* snapshot);
  // Whoever calls it pulses `changed`.
  Task<void> Adopt(Snapshot snapshot);
  // A key that a snapshot has.
  bool IsRead(const std::string& key) const {
    return key == keys_.History() || key == keys_.Floor() || !keys_.IdOf(key).empty() || keys_.IsBatch(key);
  }
  // Keeps the last put and what came since.
  void NoteChange(Changes& changes, const std::string& key, std::int64_t revision, bool put) const;
  // A member's key that came before all was read and is not in it: it went by then, or etcd is another one.
  bool MayHaveGone(const etcd::WatchEvent& event) const;
  // The changes that a watch gave, without those that were seen before. None: it is not the etcd that they
  // were seen of.
  std::optional<std::vector<etcd::WatchEvent>> Unseen(std::vector<etcd::WatchEvent> events, bool first) const;
  // In steps; `seen` follows when all of it has begun.
  Task<void> List(std::int64_t revision, const std::vector<CellDrop>& drops);
  Task<Conclusion> Take(std::vector<etcd::WatchEvent> events, std::int64_t up_to);
  Task<void> DiscardAll();
  // Until the store has done it.
  Task<void> Discard(Task<Status> (LocalStore::*what)());
  Task<void> Begin(const std::vector<CellDrop>& drops);
  Conclusion Unreached(const Status& why);
  bool IsLately(const std::optional<Instant>& since);
  // What the store said that was to make something durable.
  void Note(const Status& durable);
  Instant Soon(std::int64_t least_us, std::int64_t most_us);

  etcd::Etcd& etcd_;
  const CellKeys& keys_;
  const std::span<const net::CellKey> cell_keys_;
  LocalStore& store_;
  Membership& membership_;
  CellState& state_;
  Random random_;
  StepBudget steps_;
  const std::function<void()> told_;
  std::int64_t looked_revision_ = 0;  // of etcd, at the last look
  // Where a new watch begins: the last change that was a put, and what came since, by revision. A compaction
  // forgets deletes before it forgets such a put.
  Changes last_changes_;
  std::int64_t read_all_at_ = 0;                         // deletes up to there are not among them
  std::optional<Instant> unread_since_, refused_since_;  // none: etcd is read, what is dropped is durable
  Status refused_;                                       // what the store said last
  std::multiset<Instant> store_calls_;                   // since when each is under way
  Standing settled_;
  bool ends_ = false;
  Event store_idle_, forever_;
};

}  // namespace cistern::mesh
