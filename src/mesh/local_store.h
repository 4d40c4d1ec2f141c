// SPDX-License-Identifier: Apache-2.0
// What a cell asks of the store of a member: that what is dropped in the cell ends here, and stays so. The
// node's store stands behind it, and in tests a model.
#pragma once

#include <cstdint>
#include <vector>

#include "base/task.h"
#include "mesh/cell_drop.h"

namespace cistern::mesh {

// A batch of drops in etcd, as members tell each other of it and remember it.
struct BatchMark {
  std::int64_t revision = 0;
  std::uint64_t name_hash = 0;  // BatchHash of its key
  friend bool operator==(const BatchMark&, const BatchMark&) = default;
};

// How far a start of a member has come, as it says over its control connection, and as what it answers
// belongs to: then as it was before a record was looked up.
struct Answered {
  std::uint64_t history = 0;
  std::int64_t a = 0;  // its `applied`
  BatchMark last;      // the last batch up to there
};

// What a member remembers of its cell over a restart. Revisions are those of the history alone that stands
// beside them.
struct Standing {
  std::uint64_t history = 0;  // 0: never was in a cell
  std::uint64_t cluster_id = 0;
  std::int64_t highest_revision = 0;  // that etcd ever answered with, as of then
  std::int64_t applied = 0;           // every drop up to here is durable in the store
  BatchMark last;                     // the last batch up to there
  friend bool operator==(const Standing&, const Standing&) = default;
};

class LocalStore {
 public:
  // What the last Settle that counts said; after a kill, one that had not ended may count or not.
  virtual Standing remembered() const = 0;

  // Lets drops begin to take effect, in order: nothing that they cover and that was put before is read or
  // answered from here on, whatever becomes of it later, once the task has ended. Never refused: a key gets
  // its tombstone whether it is known here or not, and where there is no room for tombstones its namespace
  // gets a new incarnation. A namespace that is not known here has nothing to drop, and nothing to come back.
  // The drops are borrowed until the task ends.
  virtual Task<void> Begin(const std::vector<CellDrop>& drops) = 0;
  // Every shared namespace gets a new incarnation: all that it had is gone, durably once the task has ended
  // with ok. kIoError: it is not, and is asked for again.
  virtual Task<Status> Discard() = 0;
  // Blocks that still have notes of conversations go, as with Discard.
  virtual Task<Status> DiscardNoted() = 0;
  // Makes durable what has begun before the call, and then `standing`, in this order. One at a time.
  // kIoError: neither may be, and it is asked for again.
  virtual Task<Status> Settle(const Standing& standing) = 0;

 protected:
  ~LocalStore() = default;
};

}  // namespace cistern::mesh
