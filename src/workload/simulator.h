// SPDX-License-Identifier: Apache-2.0
// A workload's hit rate by decisions alone: no bytes, no clock. The figure that a real store must reach.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>

#include "cistern/policy.h"
#include "cistern/status.h"
#include "policy/evict.h"
#include "workload/request.h"

namespace cistern::workload {

struct SimResult {
  EvictionPolicy policy = EvictionPolicy::kLru;
  std::uint64_t blocks = 0;  // the capacity
  std::uint64_t requests = 0;
  std::uint64_t accesses = 0;  // blocks of all requests
  std::uint64_t hits = 0;

  double hit_rate() const {
    return accesses ? static_cast<double>(hits) / static_cast<double>(accesses) : 0.0;
  }
  friend bool operator==(const SimResult&, const SimResult&) = default;
};

// A store of `blocks` distinct blocks. A request's hits are its longest resident run from block 0; after
// them its blocks are touched leaf to root, the missing ones inserted, the coldest of all leaving. So a chain
// longer than the store keeps its first blocks.
class Simulator final {
 public:
  Simulator(EvictionPolicy policy, std::uint64_t blocks);

  void Submit(const Request& request);
  const SimResult& result() const { return result_; }

 private:
  // Ids of a trace may be any numbers; the order wants dense ones. They are numbered as they appear.
  policy::EntryId Dense(std::uint64_t hash_id);

  SimResult result_;
  policy::Lru order_;
  boost::unordered_flat_map<std::uint64_t, policy::EntryId> dense_;
  std::vector<policy::EntryId> chain_;
};

// All of `requests` through a Simulator. `blocks` is at least 1. Fails as the source fails.
Result<SimResult> Simulate(RequestSource& requests, EvictionPolicy policy, std::uint64_t blocks);

}  // namespace cistern::workload
