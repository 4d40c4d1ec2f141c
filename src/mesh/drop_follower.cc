// SPDX-License-Identifier: Apache-2.0
#include "mesh/drop_follower.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/event.h"
#include "base/format.h"
#include "mesh/cell_history.h"

namespace cistern::mesh {

using etcd::KeyRange;
using etcd::Operation;
using etcd::WatchEvent;
using What = Conclusion::What;

namespace {

// The order in which one revision's changes come means nothing.
std::uint64_t ChangeHash(const std::string& key, bool put) {
  return SplitMix(BatchHash(key) + (put ? 1 : 0));
}

// Of a key of the cell's drops that is read.
constexpr std::uint32_t kTouchesOfBatch = 4;

// So many as this page's have about as many bytes as a page of the largest.
std::int64_t KeysOfNextPage(const etcd::RangeAnswer& page) {
  std::uint64_t bytes = page.keys.size();
  for (const etcd::KeyValue& key : page.keys) bytes += key.key.size() + key.value.size();
  const std::uint64_t keys =
      CellLimits::kPageKeys * DropLimits::kBatchBytes * page.keys.size() / std::max<std::uint64_t>(bytes, 1);
  return std::max(CellLimits::kPageKeys, static_cast<std::int64_t>(keys));
}

Conclusion OtherHistory() {
  return {What::kJoinAnew, Status(Code::kMismatch, "the cell's history is another one")};
}

// As Membership::Confirm says.
Conclusion NotAMember(Status why) {
  const What what = why.code() == Code::kDenied ? What::kEnd : What::kJoinAnew;
  return {what, std::move(why)};
}

}  // namespace

DropFollower::DropFollower(etcd::Etcd& etcd, const CellKeys& keys, std::span<const net::CellKey> cell_keys,
                           LocalStore& store, Membership& membership, CellState& state, std::uint64_t seed,
                           std::function<void()> told)
    : etcd_(etcd),
      keys_(keys),
      cell_keys_(cell_keys),
      store_(store),
      membership_(membership),
      state_(state),
      random_(seed),
      steps_(etcd.executor()),
      told_(std::move(told)),
      settled_(store.remembered()) {
  state_.past = {settled_.cluster_id, settled_.highest_revision, false};
  state_.history = settled_.history;
  state_.seen = state_.applied = settled_.applied;
  state_.last_seen = state_.last_applied = settled_.last;
  state_.list.Restart(settled_.applied);
}

Instant DropFollower::Soon(std::int64_t least_us, std::int64_t most_us) {
  return executor().Now().PlusUs(static_cast<std::int64_t>(
      random_.Between(static_cast<std::uint64_t>(least_us), static_cast<std::uint64_t>(most_us))));
}

bool DropFollower::IsLately(const std::optional<Instant>& since) {
  return !since || executor().Now().UsSince(*since) < CellLimits::kUnfitUs;
}

bool DropFollower::MakesDurable() {
  // A device that hangs refuses nothing.
  return IsLately(refused_since_) && (store_calls_.empty() || IsLately(*store_calls_.begin()));
}

bool DropFollower::CanFollow() { return IsLately(unread_since_) && MakesDurable(); }

void DropFollower::Note(const Status& durable) {
  refused_ = durable;
  if (durable.ok()) {
    refused_since_.reset();
  } else if (!refused_since_) {
    refused_since_ = executor().Now();
  }
}

Conclusion DropFollower::Unreached(const Status& why) {
  if (!unread_since_) unread_since_ = executor().Now();
  state_.trouble = why;
  return {What::kUnreached, why};
}

// ---- what etcd is asked ----------------------------------------------------------------------------------

Task<Result<etcd::TransactionAnswer>> DropFollower::Ask(std::vector<Operation> more) {
  const auto range = [](KeyRange keys) {
    return Operation{.kind = Operation::Kind::kRange, .keys = std::move(keys)};
  };
  const Witness witness = state_.witness;
  const std::int64_t highest = state_.past.highest_revision;
  etcd::Transaction look;
  look.then = {range({keys_.History(), ""}), range({keys_.Floor(), ""}), range({membership_.key(), ""}),
               range({witness.key.empty() ? keys_.History() : witness.key, ""})};
  std::ranges::move(more, std::back_inserter(look.then));
  auto answer = co_await etcd_.Commit(std::move(look), executor().Now().PlusUs(CellLimits::kCallUs));
  if (!answer) co_return Error(answer.error());
  CISTERN_ASSERT(answer->ranges.size() >= kLookRanges);
  const etcd::Header& header = answer->header;
  EtcdPast& past = state_.past;
  // Others write to etcd: by the next question its revision may have risen past this one.
  if (header.revision < highest) past.contradicted = true;
  past.highest_revision = std::max(past.highest_revision, header.revision);
  // Who trims raises the floor first: what is missing above it was never there.
  const etcd::RangeAnswer& seen_before = answer->ranges[3];
  if (seen_before.keys.empty() || seen_before.keys.front().mod_revision != witness.revision) {
    const etcd::RangeAnswer& floor = answer->ranges[1];
    const CellFloor found =
        floor.keys.empty() ? CellFloor() : CellFloor::Decode(floor.keys.front().value).value_or(CellFloor());
    if (witness.revision > (witness.of_end ? found.ends : found.drops)) past.contradicted = true;
  }
  co_return answer;
}

HistoryStep DropFollower::Judge(const FoundHistory& found, std::int64_t highest_before) const {
  EtcdPast past = state_.past;
  past.highest_revision = highest_before;
  return JudgeHistory(state_.history, past, found, cell_keys_);
}

Task<Conclusion> DropFollower::Look() {
  const std::int64_t highest = state_.past.highest_revision;
  const Instant asked_at = executor().Now();
  const auto answer = co_await Ask({});
  if (!answer) co_return Unreached(answer.error());
  const HistoryStep step = Judge(HistoryIn(answer->ranges[0]), highest);
  if (step != HistoryStep::kSame && step != HistoryStep::kChecks) co_return OtherHistory();
  if (Status status = membership_.Confirm(answer->ranges[2], asked_at); !status.ok())
    co_return NotAMember(std::move(status));
  looked_revision_ = answer->header.revision;
  unread_since_.reset();
  state_.trouble = Status();
  co_return Conclusion{};
}

// ---- joining ---------------------------------------------------------------------------------------------

Task<Conclusion> DropFollower::AgreeOnHistory(std::int64_t* history_revision) {
  for (;;) {
    const std::int64_t highest = state_.past.highest_revision;
    const auto answer = co_await Ask({});
    if (!answer) co_return Unreached(answer.error());
    const FoundHistory found = HistoryIn(answer->ranges[0]);
    *history_revision = found.key_revision;
    HistoryValue made = found.value.value_or(HistoryValue());
    switch (Judge(found, highest)) {
      case HistoryStep::kSame: co_return Conclusion{};
      case HistoryStep::kRefuse: co_return Conclusion{What::kEnd, NoKeyFits(keys_, found, cell_keys_.size())};
      case HistoryStep::kMake:
      case HistoryStep::kReplace: made = NewHistory(random_.Next(), cell_keys_); break;
      case HistoryStep::kDiscard:
        if (state_.history != 0) co_return Conclusion{};
        [[fallthrough]];  // who begins empty tells of its keys, too
      case HistoryStep::kChecks:
        made.checks = made.ChecksWith(cell_keys_);
        if (made.checks == found.value->checks) co_return Conclusion{};
        break;
    }
    const Instant deadline = executor().Now().PlusUs(CellLimits::kCallUs);
    const auto written = co_await etcd_.Commit(HistoryWrite(keys_, found, made), deadline);
    if (!written) co_return Unreached(written.error());
  }
}

Task<Conclusion> DropFollower::Join() {
  // Else the cell's drops would wait for it again.
  if (!MakesDurable()) {
    const Status why = refused_since_ ? refused_ : Status(Code::kIoError, "the store has not answered");
    state_.trouble = Status(why.code(), Text("drops are not durable here: ", why.message()));
    co_return Conclusion{What::kUnreached, state_.trouble};
  }
  std::int64_t history_revision = 0;
  if (Conclusion agreed = co_await AgreeOnHistory(&history_revision); agreed.what != What::kGoOn)
    co_return agreed;
  if (Status status = co_await membership_.Enter(history_revision); !status.ok()) co_return Unreached(status);
  state_.reading = true;
  state_.changed.Pulse();
  Conclusion read = co_await ReadAll();
  state_.reading = false;
  if (read.what != What::kGoOn) co_return read;
  state_.joined = true;
  state_.trouble = Status();
  state_.changed.Pulse();
  co_return read;
}

// ---- reading all -----------------------------------------------------------------------------------------

Task<void> DropFollower::AddBatches(etcd::RangeAnswer page, bool ends, Snapshot* snapshot) {
  for (const etcd::KeyValue& key : page.keys) {
    steps_.Count(kTouchesOfBatch);
    if (steps_.Spent()) co_await Yield();
    const BatchMark mark{key.mod_revision, BatchHash(key.key)};
    snapshot->known.Add(mark, ends);
    NoteChange(snapshot->last_changes, key.key, key.mod_revision, true);
    const std::uint64_t bytes = key.key.size() + key.value.size();
    (ends ? snapshot->end_bytes : snapshot->drop_bytes).emplace_back(key.mod_revision, bytes);
    if (key.mod_revision > snapshot->witness.revision) snapshot->witness = {key.key, key.mod_revision, ends};
    if (key.mod_revision <= state_.seen) {
      const BatchMark& last = state_.last_seen;
      if (mark != last && mark.revision >= last.revision) snapshot->contradicted = true;
      continue;
    }
    // With all that is here goes whatever they drop of it.
    const bool same = snapshot->history.value->number == state_.history;
    if (!same || snapshot->floor.drops > state_.seen) continue;
    co_await Yield();
    std::optional<std::vector<CellDrop>> drops = DecodeBatch(key.value);
    if (drops) {
      snapshot->batches.push_back({key.mod_revision, std::move(*drops)});
    } else {
      snapshot->unreadable = true;
    }
  }
}

Task<Conclusion> DropFollower::ReadSnapshot(Snapshot* snapshot) {
  const auto range = [](KeyRange keys, std::int64_t limit) {
    return Operation{.kind = Operation::Kind::kRange, .keys = std::move(keys), .limit = limit};
  };
  const std::int64_t highest = state_.past.highest_revision;
  const Instant asked_at = executor().Now();
  std::vector<Operation> more = {range(KeyRange::Prefix(keys_.Members()), 0),
                                 range(KeyRange::Prefix(keys_.Drops()), CellLimits::kPageKeys),
                                 range(KeyRange::Prefix(keys_.Ends()), CellLimits::kPageKeys)};
  auto answer = co_await Ask(std::move(more));
  if (!answer) co_return Unreached(answer.error());
  *snapshot = {.header = answer->header, .history = HistoryIn(answer->ranges[0])};
  const HistoryStep step = Judge(snapshot->history, highest);
  if (step != HistoryStep::kSame && step != HistoryStep::kChecks && step != HistoryStep::kDiscard)
    co_return OtherHistory();
  if (Status status = membership_.Confirm(answer->ranges[2], asked_at); !status.ok())
    co_return NotAMember(std::move(status));
  snapshot->history_revision = answer->ranges[0].keys.front().mod_revision;
  if (const auto& floor = answer->ranges[1].keys; !floor.empty()) {
    snapshot->floor = CellFloor::Decode(floor.front().value).value_or(CellFloor());
    snapshot->floor_revision = floor.front().mod_revision;
  }
  snapshot->view.revision = answer->header.revision;
  for (const std::size_t range_of_one : {0, 1}) {
    for (const etcd::KeyValue& key : answer->ranges[range_of_one].keys)
      NoteChange(snapshot->last_changes, key.key, key.mod_revision, true);
  }
  for (const etcd::KeyValue& key : answer->ranges[kLookRanges].keys) {
    NoteChange(snapshot->last_changes, key.key, key.mod_revision, true);
    if (const auto value = MemberValue::Decode(key.value))
      snapshot->view.members[std::string(keys_.IdOf(key.key))] = *value;
  }
  for (const bool ends : {false, true}) {
    etcd::RangeAnswer page = std::move(answer->ranges[kLookRanges + (ends ? 2 : 1)]);
    const KeyRange all = KeyRange::Prefix(ends ? keys_.Ends() : keys_.Drops());
    std::int64_t most = CellLimits::kMostPageKeys;
    while (!page.keys.empty()) {
      // Behind the last key, as of the same revision.
      etcd::RangeRequest rest{.keys = {page.keys.back().key + '\0', all.end},
                              .revision = answer->header.revision,
                              .limit = std::min(most, KeysOfNextPage(page))};
      const bool goes_on = page.more;
      co_await AddBatches(std::exchange(page, {}), ends, snapshot);
      if (!goes_on) break;
      auto next = co_await etcd_.Range(rest, executor().Now().PlusUs(CellLimits::kCallUs));
      if (!next && rest.limit > CellLimits::kPageKeys) {
        // They may be larger than those before them.
        rest.limit = most = CellLimits::kPageKeys;
        next = co_await etcd_.Range(std::move(rest), executor().Now().PlusUs(CellLimits::kCallUs));
      }
      if (!next) co_return Unreached(next.error());
      page = std::move(*next);
    }
  }
  std::ranges::sort(snapshot->batches, {}, &Batch::revision);
  const BatchMark& last = state_.last_seen;
  if (last.revision > std::max({snapshot->floor.drops, snapshot->floor.ends, snapshot->known.forgotten()}) &&
      !snapshot->known.Has(last))
    snapshot->contradicted = true;
  if (snapshot->contradicted && snapshot->history.value->number == state_.history) {
    state_.past.contradicted = true;
    co_return Conclusion{What::kJoinAnew, Status(Code::kMismatch, "etcd is not the one that it was")};
  }
  co_return Conclusion{};
}

Task<void> DropFollower::DiscardAll() {
  state_.joined = false;  // nothing is shared meanwhile
  state_.changed.Pulse();
  return Discard(&LocalStore::Discard);
}

Task<void> DropFollower::Discard(Task<Status> (LocalStore::*what)()) {
  for (;;) {
    if (ends_) co_await forever_.Wait();
    {
      const StoreCall call(*this);
      const Status discarded = co_await (store_.*what)();
      Note(discarded);
      if (discarded.ok()) co_return;
    }
    (void)co_await SleepUntil(Soon(500'000, 1'000'000));
  }
}

Task<void> DropFollower::Begin(const std::vector<CellDrop>& drops) {
  if (ends_) co_await forever_.Wait();
  const StoreCall call(*this);
  co_await store_.Begin(drops);
}

Task<void> DropFollower::List(std::int64_t revision, const std::vector<CellDrop>& drops) {
  for (const CellDrop& drop : drops) {
    std::span<const BlockKey> rest = drop.keys;
    if (rest.empty()) state_.list.Add(revision, drop);
    do {
      const auto some = rest.first(std::min<std::size_t>(rest.size(), kSpentTouches));
      state_.list.AddKeys(revision, drop.name, some);
      rest = rest.subspan(some.size());
      steps_.Count(static_cast<std::uint32_t>(std::max<std::size_t>(1, some.size())));
      if (steps_.Spent()) co_await Yield();
    } while (!rest.empty());
  }
}

Task<void> DropFollower::EndStoreCalls() {
  ends_ = true;
  while (!store_calls_.empty()) co_await store_idle_.Wait();
}

Task<void> DropFollower::Adopt(Snapshot snapshot) {
  const bool other = snapshot.history.value->number != state_.history;
  const bool behind = snapshot.floor.drops > state_.seen;
  const bool ends_behind = snapshot.floor.ends > state_.seen;
  const bool discards = other || behind || snapshot.unreadable;
  if (discards) {
    co_await DiscardAll();
    // All that was dropped up to now is gone with it. Who follows etcd has come as far as to its last change,
    // which is no earlier than this member's own key.
    const std::int64_t now = snapshot.last_changes.begin()->first;
    state_.list.Restart(now);
    snapshot.batches.clear();
  } else if (ends_behind) {
    co_await Discard(&LocalStore::DiscardNoted);
    state_.list.RestartEnds(std::min(snapshot.header.revision, snapshot.floor.ends));
  }
  // Before they are known, and before they begin: what is taken meanwhile meets the list, or goes then.
  for (const Batch& batch : snapshot.batches) co_await List(batch.revision, batch.drops);
  state_.known = std::move(snapshot.known);
  for (const Batch& batch : snapshot.batches) co_await Begin(batch.drops);
  if (other) state_.past = {snapshot.header.cluster_id, snapshot.header.revision, false};
  state_.history = snapshot.history.value->number;
  state_.history_revision = snapshot.history_revision;
  if (other) state_.applied = 0;
  state_.seen = snapshot.header.revision;
  state_.floor = snapshot.floor;
  state_.floor_revision = snapshot.floor_revision;
  state_.view = std::move(snapshot.view);
  ++state_.views;
  state_.witness = std::move(snapshot.witness);
  last_changes_ = std::move(snapshot.last_changes);
  read_all_at_ = snapshot.header.revision;
  state_.last_seen = state_.known.newest();
  for (const bool ends : {false, true}) {
    Retention& kept = ends ? state_.kept_ends : state_.kept_drops;
    if (other) kept.Clear();
    kept.Trimmed(ends ? snapshot.floor.ends : snapshot.floor.drops);
    auto& bytes = ends ? snapshot.end_bytes : snapshot.drop_bytes;
    std::ranges::sort(bytes);
    // What was seen before is as old as it was.
    for (const auto& [revision, size] : bytes) {
      if (revision > kept.last()) kept.Add(executor().Now(), revision, size);
    }
  }
}

Task<Conclusion> DropFollower::ReadAll() {
  Snapshot snapshot;
  Conclusion read = co_await ReadSnapshot(&snapshot);
  if (read.what == What::kGoOn) {
    unread_since_.reset();
    co_await Adopt(std::move(snapshot));
  }
  co_return read;
}

Task<Conclusion> DropFollower::ReadAgain() {
  // The next watch begins with the last put, and one of long ago may be compacted too.
  const Status written = co_await membership_.WriteAgain();
  Conclusion read{What::kUnreached, written};
  if (written.ok()) read = co_await ReadAll();
  if (read.what == What::kGoOn) {
    state_.joined = true;
    state_.changed.Pulse();
  } else if (read.what == What::kUnreached) {
    // The next look says so where the membership does not stand.
    (void)co_await SleepUntil(Soon(100'000, 500'000));
  }
  co_return read;
}

// ---- following -------------------------------------------------------------------------------------------

Task<Conclusion> DropFollower::Follow() {
  std::unique_ptr<etcd::Watch> watch;
  bool believed = false, first = true;
  Instant look_at, read_at;
  std::int64_t behind = 0;  // what the last look saw that the watch had not shown
  int deaf = 0;             // watches in a row that brought nothing
  bool reads_again = false;
  for (;;) {
    if (std::exchange(reads_again, false)) {
      watch.reset();
      Conclusion read = co_await ReadAgain();
      if (read.what != What::kGoOn && read.what != What::kUnreached) co_return read;
    }
    if (watch == nullptr) {
      watch = etcd_.WatchFrom(KeyRange::Prefix(keys_.prefix()), last_changes_.begin()->first);
      believed = false;
      first = true;
    }
    if (!believed || look_at <= executor().Now()) {
      Conclusion looked = co_await Look();
      look_at = executor().Now().PlusUs(CellLimits::kLookUs);
      if (looked.what == What::kUnreached) {
        if (!believed) {
          watch.reset();
          (void)co_await SleepUntil(Soon(100'000, 500'000));
          continue;
        }
      } else if (looked.what != What::kGoOn) {
        co_return looked;
      } else {
        believed = true;
        // Silent, or others than this cell write to etcd: another watch tells, and costs little.
        const bool silent = behind > state_.seen;
        behind = looked_revision_;
        if (silent) {
          behind = 0;
          ++deaf;
          watch.reset();
          continue;
        }
        // A watch that lives begins with a change that was seen.
        if (deaf >= kDeafWatches && behind > state_.seen && read_at <= executor().Now()) {
          read_at = executor().Now().PlusUs(CellLimits::kLookUs);
          reads_again = true;
          continue;
        }
      }
    }
    auto events = co_await watch->Next(look_at);
    if (events) {
      deaf = 0;
      reads_again =
          std::ranges::any_of(*events, [this](const WatchEvent& event) { return MayHaveGone(event); });
      if (reads_again) continue;
      auto unseen = Unseen(std::move(*events), std::exchange(first, false));
      if (!unseen) {
        state_.past.contradicted = true;
        co_return Conclusion{What::kJoinAnew, Status(Code::kMismatch, "etcd is not the one that it was")};
      }
      if (unseen->empty()) continue;
      Conclusion taken = co_await Take(std::move(*unseen), watch->next_revision() - 1);
      if (taken.what != What::kGoOn) co_return taken;
    } else if (events.error().code() == Code::kLapsed) {
      reads_again = true;
    } else if (events.error().code() != Code::kTooLate) {
      watch.reset();
      (void)co_await SleepUntil(Soon(20'000, 200'000));
    }
  }
}

void DropFollower::NoteChange(Changes& changes, const std::string& key, std::int64_t revision,
                              bool put) const {
  if (!IsRead(key)) return;
  if (put) changes.erase(changes.begin(), changes.lower_bound(revision));
  if (!changes.empty() && revision < changes.begin()->first) return;
  changes[revision] ^= ChangeHash(key, put);
}

bool DropFollower::MayHaveGone(const WatchEvent& event) const {
  const std::int64_t revision = event.key.mod_revision;
  return event.kind == WatchEvent::Kind::kPut && !keys_.IdOf(event.key.key).empty() &&
         revision > last_changes_.begin()->first && revision <= read_all_at_;
}

std::optional<std::vector<WatchEvent>> DropFollower::Unseen(std::vector<WatchEvent> events,
                                                            bool first) const {
  if (first && events.front().key.mod_revision != last_changes_.begin()->first) return std::nullopt;
  Changes again;
  std::vector<WatchEvent> unseen;
  for (WatchEvent& event : events) {
    const std::int64_t revision = event.key.mod_revision;
    const bool put = event.kind == WatchEvent::Kind::kPut;
    if (revision > state_.seen) {
      unseen.push_back(std::move(event));
    } else if (IsRead(event.key.key) && (put || revision > read_all_at_)) {
      again[revision] ^= ChangeHash(event.key.key, put);
    }
  }
  for (const auto& [revision, changes] : again) {
    const auto seen = last_changes_.find(revision);
    if (seen == last_changes_.end() || seen->second != changes) return std::nullopt;
  }
  return unseen;
}

Task<Conclusion> DropFollower::Take(std::vector<WatchEvent> events, std::int64_t up_to) {
  for (const WatchEvent& event : events) {
    if (event.key.key == keys_.History()) {
      const auto value =
          event.kind == WatchEvent::Kind::kPut ? HistoryValue::Decode(event.key.value) : std::nullopt;
      if (!value || value->number != state_.history) co_return OtherHistory();
    }
    if (Status status = membership_.Confirm(event); !status.ok()) co_return NotAMember(std::move(status));
  }
  std::vector<CellDrop> drops;
  bool unreadable = false, of_members = false;
  for (const WatchEvent& event : events) {
    if (event.kind != WatchEvent::Kind::kPut || !keys_.IsBatch(event.key.key)) continue;
    std::optional<std::vector<CellDrop>> batch = DecodeBatch(event.key.value);
    unreadable = unreadable || !batch;
    if (!batch) continue;
    co_await List(event.key.mod_revision, *batch);
    std::ranges::move(*batch, std::back_inserter(drops));
  }
  CellView view = state_.view;
  Witness witness = state_.witness;
  BatchMark last = state_.last_seen;
  for (const WatchEvent& event : events) {
    const std::string& key = event.key.key;
    const std::int64_t revision = event.key.mod_revision;
    const bool put = event.kind == WatchEvent::Kind::kPut;
    NoteChange(last_changes_, key, revision, put);
    if (key == keys_.History()) {
      state_.history_revision = revision;
    } else if (key == keys_.Floor()) {
      state_.floor = put ? CellFloor::Decode(event.key.value).value_or(state_.floor) : CellFloor();
      state_.floor_revision = put ? revision : 0;
      state_.kept_drops.Trimmed(state_.floor.drops);
      state_.kept_ends.Trimmed(state_.floor.ends);
    } else if (const std::string_view id = keys_.IdOf(key); !id.empty()) {
      of_members = true;
      const auto value = put ? MemberValue::Decode(event.key.value) : std::nullopt;
      if (value) view.members[std::string(id)] = *value;
      if (!put) view.members.erase(std::string(id));
    } else if (put && keys_.IsBatch(key)) {
      const bool ends = key.starts_with(keys_.Ends());
      witness = {key, revision, ends};
      last = {revision, BatchHash(key)};
      state_.known.Add(last, ends);
      (ends ? state_.kept_ends : state_.kept_drops)
          .Add(executor().Now(), revision, key.size() + event.key.value.size());
    }
  }
  if (unreadable) {
    co_await DiscardAll();
    state_.list.Restart(up_to);
    state_.joined = true;
  } else if (!drops.empty()) {
    co_await Begin(drops);
  }
  view.revision = up_to;
  state_.view = std::move(view);
  if (of_members) ++state_.views;
  state_.witness = std::move(witness);
  state_.last_seen = last;
  state_.past.highest_revision = std::max(state_.past.highest_revision, up_to);
  state_.seen = std::max(state_.seen, up_to);
  state_.changed.Pulse();
  co_return Conclusion{};
}

Task<void> DropFollower::Settle() {
  for (;;) {
    if (ends_) co_await forever_.Wait();
    const Standing wanted{state_.history, state_.past.cluster_id, state_.past.highest_revision, state_.seen,
                          state_.last_seen};
    if (wanted.history == settled_.history && wanted.applied == settled_.applied) {
      co_await state_.changed.Wait();
      continue;
    }
    Status status;
    {
      const StoreCall call(*this);
      status = co_await store_.Settle(wanted);
    }
    Note(status);
    if (!status.ok()) {
      (void)co_await SleepUntil(Soon(500'000, 1'000'000));
      continue;
    }
    settled_ = wanted;
    if (state_.history != wanted.history) continue;
    state_.applied = std::max(state_.applied, wanted.applied);
    state_.last_applied = wanted.last;
    told_();
    state_.changed.Pulse();
  }
}

}  // namespace cistern::mesh
