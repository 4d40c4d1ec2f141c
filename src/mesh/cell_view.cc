// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_view.h"

#include <algorithm>

#include "base/assert.h"
#include "base/random.h"

namespace cistern::mesh {

std::uint64_t BatchHash(std::string_view key) { return HashOfText(key.size(), key); }

Acknowledgement AcknowledgedBy(const CellView& view, const std::map<std::uint64_t, Answered>& heard,
                               const KnownBatches& known, std::uint64_t history, const BatchMark& batch) {
  CISTERN_ASSERT(view.revision >= batch.revision);
  Acknowledgement made{.members = view.members.size()};
  for (const auto& [id, member] : view.members) {
    const auto said = heard.find(member.process_number);
    if (known.Has(batch) && said != heard.end() && said->second.history == history &&
        said->second.a >= batch.revision && said->second.last.revision >= batch.revision &&
        known.Has(said->second.last)) {
      ++made.applied;
    } else {
      made.missing = id;
    }
  }
  return made;
}

Footing FootingOf(const KnownBatches& known, const CellFloor& floor, std::int64_t a, const BatchMark& last) {
  const std::int64_t trimmed = std::max(floor.drops, floor.ends);
  if (last.revision > a || a < trimmed) return Footing::kOther;
  if (!known.Has(last) && last.revision > std::max(trimmed, known.forgotten()))
    return last.revision > known.newest().revision ? Footing::kAhead : Footing::kOther;
  // Behind it every batch that is kept is known. Ends are trimmed long before drops are.
  const std::int64_t from = std::max(last.revision, known.forgotten());
  const bool missed =
      known.AnyIn(false, std::max(floor.drops, from), a) || known.AnyIn(true, std::max(floor.ends, from), a);
  return missed ? Footing::kOther : Footing::kCommon;
}

HistoryStep JudgeHistory(std::uint64_t own, const EtcdPast& past, const FoundHistory& found,
                         std::span<const net::CellKey> keys) {
  if (!found.exists) return HistoryStep::kMake;
  if (!found.value) return HistoryStep::kRefuse;
  std::size_t fit = 0;
  const std::vector<HistoryValue::Check> checks = HistoryValue::ChecksOf(found.value->number, keys);
  for (const HistoryValue::Check& check : checks) fit += std::ranges::count(found.value->checks, check);
  if (fit == 0) return HistoryStep::kRefuse;
  if (found.value->number != own) return HistoryStep::kDiscard;
  if (found.cluster_id != past.cluster_id || found.revision < past.highest_revision || past.contradicted)
    return HistoryStep::kReplace;
  return found.value->ChecksWith(keys) == found.value->checks ? HistoryStep::kSame : HistoryStep::kChecks;
}

}  // namespace cistern::mesh
