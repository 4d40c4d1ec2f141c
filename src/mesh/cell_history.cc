// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_history.h"

#include <algorithm>
#include <utility>

#include "base/event.h"
#include "base/format.h"
#include "mesh/cell_state.h"

namespace cistern::mesh {

FoundHistory HistoryIn(const etcd::RangeAnswer& range) {
  FoundHistory found{.cluster_id = range.header.cluster_id, .revision = range.header.revision};
  if (range.keys.empty()) return found;
  found.exists = true;
  found.key_revision = range.keys.front().mod_revision;
  found.value = HistoryValue::Decode(range.keys.front().value);
  return found;
}

HistoryValue NewHistory(std::uint64_t random, std::span<const net::CellKey> cell_keys) {
  HistoryValue made{.number = std::max<std::uint64_t>(1, random), .checks = {}};
  made.checks = made.ChecksWith(cell_keys);
  return made;
}

etcd::Transaction HistoryWrite(const CellKeys& keys, const FoundHistory& found, const HistoryValue& value) {
  etcd::Transaction write;
  write.conditions.push_back({.key = keys.History(), .number = found.key_revision});
  write.then.push_back({.keys = {keys.History(), ""}, .value = value.Encode()});
  return write;
}

Status NoKeyFits(const CellKeys& keys, const FoundHistory& found, std::size_t given) {
  if (!found.value)
    return Status(Code::kMismatch,
                  Text("the cell at ", keys.prefix(), ": the key ", keys.History(),
                       " in etcd is damaged; delete it, and the first member makes another"));
  if (given == 0)
    return Status(Code::kMismatch,
                  Text("cell key: none is given, and the members of the cell at ", keys.prefix(),
                       " prove themselves by one: give this member the key that they have, in place of a "
                       "certificate"));
  const HistoryValue& history = *found.value;
  if (history.checks == HistoryValue::ChecksOf(history.number, {})) {
    return Status(Code::kMismatch,
                  Text("cell key: the members of the cell at ", keys.prefix(),
                       " have none, they prove themselves by certificates (cell_certificate) or not at all: "
                       "configure this one as they are, or give it the prefix of another cell"));
  }
  return Status(
      Code::kMismatch,
      Text("cell key: none of the ", given, " given fits the cell at ", keys.prefix(),
           ": give this member the key that the others have, or the cell another prefix; where its key is "
           "being changed, the former one too"));
}

Task<Result<ReplacedHistory>> ReplaceHistory(etcd::Etcd& etcd, const CellKeys& keys,
                                             std::span<const net::CellKey> cell_keys, std::uint64_t random,
                                             Instant deadline) {
  constexpr std::int64_t kPauseUs = 200'000;  // of an etcd that has no leader yet
  const HistoryValue made = NewHistory(random, cell_keys);
  ReplacedHistory replaced{.now = made.number};
  const auto within = [&] { return std::min(deadline, etcd.executor().Now().PlusUs(CellLimits::kCallUs)); };
  for (;;) {
    etcd::RangeRequest own{.keys = {keys.History(), ""}};
    const auto there = co_await etcd.Range(std::move(own), within());
    Status why = there ? Status() : there.error();
    if (there) {
      const FoundHistory found = HistoryIn(*there);
      const std::uint64_t number = found.value ? found.value->number : 0;
      if (number == made.number) co_return replaced;  // an answer was lost
      // Whoever asks for this says that etcd is not the one that its number is of.
      const EtcdPast past{found.cluster_id, found.revision, true};
      const HistoryStep step = JudgeHistory(number, past, found, cell_keys);
      if (step == HistoryStep::kMake)
        co_return Error(Code::kMiss, Text("there is no cell at ", keys.prefix(),
                                          " in this etcd; look whether its name is another. Where there is "
                                          "none, the first member makes a history"));
      if (step != HistoryStep::kReplace) co_return Error(NoKeyFits(keys, found, cell_keys.size()));
      replaced.before = number;
      const auto written = co_await etcd.Commit(HistoryWrite(keys, found, made), within());
      if (written && written->succeeded) co_return replaced;
      if (written) continue;  // a member was faster
      why = written.error();
    }
    if (why.code() != Code::kTooLate || etcd.executor().Now() >= deadline) co_return Error(std::move(why));
    (void)co_await SleepUntil(std::min(deadline, etcd.executor().Now().PlusUs(kPauseUs)));
  }
}

}  // namespace cistern::mesh
