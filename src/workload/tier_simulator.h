// SPDX-License-Identifier: Apache-2.0
// A workload's hits by tier, by decisions alone: memory of so many blocks over a lower tier that has room for
// all. A node whose blocks are written as soon as they are put, and read one after the other, hits the same.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <vector>

#include "cistern/policy.h"
#include "cistern/status.h"
#include "policy/order.h"
#include "workload/request.h"

namespace cistern::workload {

struct TierSimOptions {
  EvictionPolicy policy = EvictionPolicy::kReuse;
  // kSecondHit is not simulated: it asks what was used since it was written, and when that was depends on the
  // device.
  Promotion promote = Promotion::kWorth;
  std::uint64_t blocks = 1;  // of memory, at least 1
};

struct TierSimResult {
  std::uint64_t requests = 0;
  std::uint64_t accesses = 0;  // blocks of all requests
  std::uint64_t memory_hits = 0;
  std::uint64_t lower_hits = 0;
  std::uint64_t passing = 0;  // of these, those that did not stay in memory
  friend bool operator==(const TierSimResult&, const TierSimResult&) = default;
};

// A request reads its blocks that lie below one after the other, from the root on, and puts the missing ones.
// Each takes the place of what is coldest in memory, to stay, or to be the next to leave where it is worth
// less than what would be that. Then all are touched leaf to root.
class TierSimulator final {
 public:
  explicit TierSimulator(const TierSimOptions& options);
  TierSimulator(const TierSimulator&) = delete;
  TierSimulator& operator=(const TierSimulator&) = delete;

  void Submit(const Request& request);
  const TierSimResult& result() const { return result_; }

 private:
  struct Block {
    bool stored = false;  // in the lower tier, whether in memory or not
    bool resident = false;
    bool transient = false;  // resident, and the next to leave
  };

  policy::EntryId Dense(std::uint64_t hash_id);
  // Of the block before in the chain.
  policy::Standing ParentOf(std::size_t at) const;
  bool Passes(policy::EntryId id, const policy::Standing& standing);
  void MakeRoom();
  void Enter(policy::EntryId id, const policy::Standing& standing, bool passes);
  void Put(std::size_t at);
  void Fetch(std::size_t at);
  void Touch(std::size_t at);

  const TierSimOptions options_;
  policy::Order order_;
  TierSimResult result_;
  std::vector<Block> blocks_;
  std::uint64_t used_ = 0;

  boost::unordered_flat_map<std::uint64_t, policy::EntryId> dense_;
  std::vector<policy::EntryId> chain_;
  std::vector<std::uint64_t> keys_;
  std::vector<policy::EntryId> there_;  // of the first blocks, kBelow for those that are in memory no more
  TraceTime time_;
};

// All of `requests`. Fails as the source fails.
Result<TierSimResult> SimulateTiers(RequestSource& requests, const TierSimOptions& options);

}  // namespace cistern::workload
