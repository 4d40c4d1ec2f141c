// SPDX-License-Identifier: Apache-2.0
// A workload's hits by tier, by decisions alone: memory of so many blocks over a lower tier that has room for
// all. A node whose blocks are written as soon as they are put, and read one after the other, hits the same.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "cistern/policy.h"
#include "cistern/status.h"
#include "policy/fetch_ahead.h"
#include "policy/order.h"
#include "workload/request.h"

namespace cistern::workload {

struct TierSimOptions {
  EvictionPolicy policy = EvictionPolicy::kReuse;
  // kSecondHit is not simulated: it asks what was used since it was written, and when that was depends on the
  // device.
  Promotion promote = Promotion::kWorth;
  std::uint64_t blocks = 1;  // of memory, at least 1
  bool ahead = false;        // of turns that hints tell of
};

struct TierSimResult {
  std::uint64_t requests = 0;
  std::uint64_t accesses = 0;  // blocks of all requests
  std::uint64_t memory_hits = 0;
  std::uint64_t lower_hits = 0;
  std::uint64_t passing = 0;     // of these, those that did not stay in memory
  std::uint64_t ahead = 0;       // fetched before they were asked for
  std::uint64_t ahead_used = 0;  // of these, those that were then hit in memory
  friend bool operator==(const TierSimResult&, const TierSimResult&) = default;
};

// A request reads its blocks that lie below one after the other, from the root on, and puts the missing ones.
// Each takes the place of what is coldest in memory, to stay, or to be the next to leave where it is worth
// less than what would be that. Then all are touched leaf to root.
//
// Where a request tells when the next turn comes, its blocks that lie below then are fetched shortly before,
// and are held in memory until it has come or is late (policy::FetchAhead).
class TierSimulator final {
 public:
  explicit TierSimulator(const TierSimOptions& options);
  TierSimulator(const TierSimulator&) = delete;
  TierSimulator& operator=(const TierSimulator&) = delete;

  void Submit(const Request& request, const PromptHints& hints = {});
  const TierSimResult& result() const { return result_; }

 private:
  struct Block {
    bool stored = false;  // in the lower tier, whether in memory or not
    bool resident = false;
    bool transient = false;  // resident, and the next to leave
    bool ahead = false;      // resident, fetched for a turn to come and not hit yet
  };
  // A prompt whose next turn was told of.
  struct Awaited {
    std::uint64_t asked_ms = 0;
    std::uint32_t told_ms = 0;
    bool over = false;  // it came, or is late
    std::vector<policy::EntryId> chain;
    std::vector<std::uint64_t> keys;
    std::vector<policy::EntryId> held;
  };
  using Due = std::tuple<std::uint64_t, std::uint64_t, bool>;  // when, which, whether it is late then

  policy::EntryId Dense(std::uint64_t hash_id);
  // Of the block before in the chain.
  policy::Standing ParentOf(std::size_t at) const;
  bool Passes(policy::EntryId id, const policy::Standing& standing);
  void MakeRoom();
  void Await(const Request& request, const PromptHints& hints, std::uint64_t now_ms);
  void Came(std::uint64_t now_ms);
  void RunDue(std::uint64_t now_ms);
  void FetchAhead(Awaited& awaited);
  void LetGo(Awaited& awaited, bool late);
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

  policy::FetchAhead ahead_;
  std::vector<Awaited> awaited_;
  boost::unordered_flat_map<policy::EntryId, std::uint64_t> awaited_by_;  // a prompt's last whole block
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
};

// All of `requests`. Fails as the source fails. `told`: hints for each request, in order; the rest have none.
Result<TierSimResult> SimulateTiers(RequestSource& requests, const TierSimOptions& options,
                                    const std::vector<PromptHints>& told = {});

}  // namespace cistern::workload
