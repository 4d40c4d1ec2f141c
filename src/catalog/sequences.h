// SPDX-License-Identifier: Apache-2.0
// The store's sequence numbers: of placements, births, tombstones and incarnations. None is ever used twice,
// so the journal sets them aside in large steps before they are given out (docs/formats/journal.md).
#pragma once

#include <cstdint>

#include "base/task.h"
#include "catalog/journal.h"

namespace cistern::catalog {

class Sequences final {
 public:
  static constexpr std::uint64_t kReserved = 1ull << 32;  // at a time

  // The journal is borrowed.
  explicit Sequences(Journal& journal) : journal_(journal) {}
  Executor& executor() { return journal_.executor(); }

  // After a start: what was used before lies below `next`.
  void Start(std::uint64_t next) { next_ = next; }
  // Of the journal's start, which tells it end(): kReserved from here on are set aside.
  void SetAside() { end_ = next_ + kReserved; }
  std::uint64_t end() const { return end_; }

  std::uint64_t Next() { return next_++; }
  std::uint64_t next() const { return next_; }
  // Publishing stops a sixteenth before the end: moves, drops and namespaces take from the rest.
  bool exhausted() const { return next_ + (kReserved >> 4) >= end_; }
  bool low() const { return next_ + kReserved / 2 > end_; }
  bool reserving() const { return reserving_; }
  // Sets more aside, durably. A failure is tried again by the next caller; long before, nothing is published.
  Task<void> Reserve();

 private:
  Journal& journal_;
  std::uint64_t next_ = 1;
  std::uint64_t end_ = 0;
  bool reserving_ = false;
};

}  // namespace cistern::catalog
