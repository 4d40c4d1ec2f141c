// SPDX-License-Identifier: Apache-2.0
// The trimmer of a cell: of the members that share, the one with the first id raises the floor when drops
// have been kept for long enough, then deletes what lies below it, then compacts, if etcd is the cell's
// alone. In this order: who finds a drop missing finds the floor above it.
#pragma once

#include <cstdint>
#include <string>

#include "base/task.h"
#include "etcd/etcd.h"
#include "mesh/cell_keys.h"
#include "mesh/cell_state.h"

namespace cistern::mesh {

class Trimmer final {
 public:
  static constexpr std::int64_t kEveryUs = 60'000'000;

  // All is borrowed. `compacts`: etcd has no other user.
  Trimmer(etcd::Etcd& etcd, const CellKeys& keys, const std::string& id, bool compacts, CellState& state)
      : etcd_(etcd), keys_(keys), id_(id), compacts_(compacts), state_(state) {}
  Trimmer(const Trimmer&) = delete;
  Trimmer& operator=(const Trimmer&) = delete;

  Executor& executor() { return etcd_.executor(); }

  // Trims when it is time to, for ever.
  Task<void> Run();
  // No batch up to `floor` is kept that was seen here kTrimAgeUs ago; a floor that is already higher stays.
  // Members that have seen less than it discard what they have. kLapsed: another member trims, or etcd was
  // restored; etcd's errors. After either the floor may be raised, and the rest is done next time.
  Task<Status> Trim(CellFloor floor);

 private:
  Task<Status> DeleteUpTo(const std::string& prefix, std::int64_t floor, std::int64_t* revision);

  etcd::Etcd& etcd_;
  const CellKeys& keys_;
  const std::string& id_;
  const bool compacts_;
  CellState& state_;
  CellFloor done_;  // nothing up to it is left in etcd, as far as this start has seen to it
};

}  // namespace cistern::mesh
