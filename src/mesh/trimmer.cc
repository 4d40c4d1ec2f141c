// SPDX-License-Identifier: Apache-2.0
#include "mesh/trimmer.h"

#include <algorithm>
#include <utility>

#include "base/event.h"
#include "base/format.h"

namespace cistern::mesh {

using etcd::Compare;
using etcd::KeyRange;
using etcd::Operation;

Task<void> Trimmer::Run() {
  for (;;) {
    (void)co_await SleepUntil(executor().Now().PlusUs(kEveryUs));
    const auto& members = state_.view.members;
    if (!state_.joined || members.empty() || members.begin()->first != id_) continue;
    CellFloor floor{state_.kept_drops.FloorAt(executor().Now()), state_.kept_ends.FloorAt(executor().Now())};
    floor.drops = std::max(floor.drops, state_.floor.drops);
    floor.ends = std::max(floor.ends, state_.floor.ends);
    if (floor != done_) (void)co_await Trim(floor);  // what failed is tried again in a minute
  }
}

Task<Status> Trimmer::Trim(CellFloor floor) {
  const auto known_for_long = [this](const Retention& kept) {
    return kept.HereFor(CellLimits::kTrimAgeUs, executor().Now());
  };
  floor.drops = std::max(state_.floor.drops, std::min(floor.drops, known_for_long(state_.kept_drops)));
  floor.ends = std::max(state_.floor.ends, std::min(floor.ends, known_for_long(state_.kept_ends)));
  etcd::Transaction raise;
  raise.conditions.push_back({.key = keys_.Floor(), .number = state_.floor_revision});
  raise.conditions.push_back({.key = keys_.History(), .number = state_.history_revision});
  // A restored etcd has what was trimmed meanwhile and not what was seen last: its drops are another
  // history's.
  const Witness& seen = state_.witness;
  if (seen.revision > (seen.of_end ? state_.floor.ends : state_.floor.drops))
    raise.conditions.push_back({.key = seen.key, .number = seen.revision});
  raise.then.push_back({.keys = {keys_.Floor(), ""}, .value = floor.Encode()});
  Instant deadline = executor().Now().PlusUs(CellLimits::kCallUs);
  const auto raised = co_await etcd_.Commit(std::move(raise), deadline);
  if (!raised) co_return raised.error();
  if (!raised->succeeded)
    co_return Status(Code::kLapsed, "trim: another member has changed the floor, or etcd is another one");
  std::int64_t revision = raised->header.revision;
  if (Status status = co_await DeleteUpTo(keys_.Drops(), floor.drops, &revision); !status.ok())
    co_return status;
  if (Status status = co_await DeleteUpTo(keys_.Ends(), floor.ends, &revision); !status.ok())
    co_return status;
  if (compacts_) {
    deadline = executor().Now().PlusUs(CellLimits::kCallUs);
    if (Status status = co_await etcd_.Compact(revision, deadline); !status.ok()) co_return status;
  }
  done_ = floor;
  co_return Status();
}

Task<Status> Trimmer::DeleteUpTo(const std::string& prefix, std::int64_t floor, std::int64_t* revision) {
  KeyRange rest = KeyRange::Prefix(prefix);
  for (;;) {
    etcd::RangeRequest page{.keys = rest, .limit = CellLimits::kPageKeys};
    Instant deadline = executor().Now().PlusUs(CellLimits::kCallUs);
    const auto found = co_await etcd_.Range(std::move(page), deadline);
    if (!found) co_return found.error();
    etcd::Transaction remove;
    for (std::size_t i = 0; i < found->keys.size(); ++i) {
      const etcd::KeyValue& key = found->keys[i];
      if (key.mod_revision <= floor)
        remove.then.push_back({.kind = Operation::Kind::kDelete, .keys = {key.key, ""}});
      const bool full = remove.then.size() == etcd::Limits::kOperations || i + 1 == found->keys.size();
      if (!full || remove.then.empty()) continue;
      deadline = executor().Now().PlusUs(CellLimits::kCallUs);
      const auto removed = co_await etcd_.Commit(std::exchange(remove, {}), deadline);
      if (!removed) co_return removed.error();
      *revision = std::max(*revision, removed->header.revision);
    }
    if (!found->more || found->keys.empty()) co_return Status();
    rest.key = found->keys.back().key + '\0';
  }
}

}  // namespace cistern::mesh
