// SPDX-License-Identifier: Apache-2.0
// The history of a cell where it lies, in etcd: how it is read, and how another one is written over it. A
// member does so when it joins (mesh/drop_follower.h), a person after a restore that no member could notice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/task.h"
#include "etcd/etcd.h"
#include "mesh/cell_keys.h"
#include "mesh/cell_view.h"

namespace cistern::mesh {

// What a range of the history's key found.
FoundHistory HistoryIn(const etcd::RangeAnswer& range);

// Another one than any before, with the checks of these keys.
HistoryValue NewHistory(std::uint64_t random, std::span<const net::CellKey> cell_keys);

// Writes it, unless the key has changed since what was found.
etcd::Transaction HistoryWrite(const CellKeys& keys, const FoundHistory& found, const HistoryValue& value);

// kMismatch, of a history which JudgeHistory refuses for so many keys.
Status NoKeyFits(const CellKeys& keys, const FoundHistory& found, std::size_t given);

// The numbers of two histories, of which the second is in the place of the first.
struct ReplacedHistory {
  std::uint64_t before = 0, now = 0;
};

// Replaces the cell's history as a member does that finds its own in another etcd than the one it has seen;
// every member, when it joins or at once where it runs, gives up what it shares. kMiss: there is none, and
// the first member makes one; kMismatch: no key fits it; etcd's errors. After kTooLate it may have happened:
// once more does no harm. `keys` and `cell_keys` are borrowed until it has ended.
Task<Result<ReplacedHistory>> ReplaceHistory(etcd::Etcd& etcd, const CellKeys& keys,
                                             std::span<const net::CellKey> cell_keys, std::uint64_t random,
                                             Instant deadline);

}  // namespace cistern::mesh
