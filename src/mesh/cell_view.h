// SPDX-License-Identifier: Apache-2.0
// Decisions of a member on what etcd and the others said, as plain values: who has acknowledged a drop, and
// what a history that was found means for one's own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/cell_keys.h"
#include "mesh/local_store.h"

namespace cistern::mesh {

// The members as of one revision, by id.
struct CellView {
  std::int64_t revision = 0;
  std::map<std::string, MemberValue, std::less<>> members;
};

// Of the key of a batch, for BatchMark.
std::uint64_t BatchHash(std::string_view key);

// The last batches that were seen here, by revision.
class KnownBatches final {
 public:
  static constexpr std::size_t kMost = 1u << 16;
  void Add(const BatchMark& batch, bool ends) {
    (ends ? ends_ : drops_)[batch.revision] = batch.name_hash;
    if (drops_.size() + ends_.size() <= kMost) return;
    const bool drop_first =
        ends_.empty() || (!drops_.empty() && drops_.begin()->first < ends_.begin()->first);
    Marks& oldest = drop_first ? drops_ : ends_;
    forgotten_ = std::max(forgotten_, oldest.begin()->first);
    oldest.erase(oldest.begin());
  }
  bool Has(const BatchMark& batch) const { return HasIn(drops_, batch) || HasIn(ends_, batch); }
  // One of that kind in (after, to].
  bool AnyIn(bool ends, std::int64_t after, std::int64_t to) const {
    const Marks& marks = ends ? ends_ : drops_;
    const auto mark = marks.upper_bound(after);
    return mark != marks.end() && mark->first <= to;
  }
  // The last one; of revision 0: there is none.
  BatchMark newest() const {
    const BatchMark drop = NewestOf(drops_), end = NewestOf(ends_);
    return drop.revision > end.revision ? drop : end;
  }
  // Up to here, some that were seen are no longer known.
  std::int64_t forgotten() const { return forgotten_; }

 private:
  using Marks = std::map<std::int64_t, std::uint64_t>;
  static bool HasIn(const Marks& marks, const BatchMark& batch) {
    const auto mark = marks.find(batch.revision);
    return mark != marks.end() && mark->second == batch.name_hash;
  }
  static BatchMark NewestOf(const Marks& marks) {
    return marks.empty() ? BatchMark() : BatchMark{marks.rbegin()->first, marks.rbegin()->second};
  }

  Marks drops_, ends_;
  std::int64_t forgotten_ = 0;
};

// How what another member has applied stands to what was seen here.
enum class Footing : std::uint8_t {
  kCommon,  // of what was seen here it has applied everything up to its `a`, and nothing else
  kAhead,   // it has applied a batch that has not been seen here yet, or never will be
  kOther,   // it has not applied what was seen here, or has applied what was not
};

// Of a member that has applied everything up to `a`, `last` being the last batch. `floor`: up to here batches
// are no longer kept in etcd, of each kind; it was raised behind both, so whoever has not come as far does
// not follow this etcd, or has not for long. Without this a number would vouch for what it does not mean:
// after a restore of etcd, until somebody notices, two members can count the same revisions of different
// changes.
Footing FootingOf(const KnownBatches& known, const CellFloor& floor, std::int64_t a, const BatchMark& last);

struct Acknowledgement {
  std::size_t applied = 0, members = 0;  // so many of so many
  std::string missing;                   // the id of one that has not
  bool complete() const { return applied == members; }
};

// Of a drop whose batch is `batch`, of the history: every member of the view has to have applied it, the
// newest of them too, which may have read no further. `heard` is by process number. The view is of that
// revision or later: who was a member then and is not in it has lapsed.
//
// A number alone acknowledges nothing: in an etcd that was restored it may stand for another drop. So the
// batch has been seen here, and so has the last one that each member has applied, which is no earlier.
Acknowledgement AcknowledgedBy(const CellView& view, const std::map<std::uint64_t, Answered>& heard,
                               const KnownBatches& known, std::uint64_t history, const BatchMark& batch);

// What etcd has been seen to be, by this start of a member and before it.
struct EtcdPast {
  std::uint64_t cluster_id = 0;
  std::int64_t highest_revision = 0;  // when what was found was asked for
  bool contradicted = false;          // something that was there is not, and nobody deleted it
};

struct FoundHistory {
  std::uint64_t cluster_id = 0;
  std::int64_t revision = 0;
  bool exists = false;
  std::int64_t key_revision = 0;      // of its key; 0: there is none
  std::optional<HistoryValue> value;  // none of one that exists: it cannot be read
};

enum class HistoryStep : std::uint8_t {
  kSame,     // as before: what is here counts
  kMake,     // there is none
  kReplace,  // another etcd, or an earlier one, under a number that no longer means what it did
  kDiscard,  // another one: what is here is of nobody's history any more
  kChecks,   // the same, and its checks are not those that my keys make of them
  kRefuse,   // no key of mine fits
};

// `own` is the history's number here, 0 for none.
HistoryStep JudgeHistory(std::uint64_t own, const EtcdPast& past, const FoundHistory& found,
                         std::span<const net::CellKey> keys);

}  // namespace cistern::mesh
