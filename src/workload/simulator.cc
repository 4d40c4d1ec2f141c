// SPDX-License-Identifier: Apache-2.0
#include "workload/simulator.h"

#include <algorithm>

#include "base/assert.h"

namespace cistern::workload {

Simulator::Simulator(EvictionPolicy policy, std::uint64_t blocks) {
  CISTERN_ASSERT(blocks > 0);
  result_.policy = policy;
  result_.blocks = blocks;
}

policy::EntryId Simulator::Dense(std::uint64_t hash_id) {
  return dense_.try_emplace(hash_id, static_cast<policy::EntryId>(dense_.size())).first->second;
}

void Simulator::Submit(const Request& request) {
  chain_.clear();
  for (const std::uint64_t hash_id : request.hash_ids) chain_.push_back(Dense(hash_id));
  const auto miss = std::ranges::find_if(chain_, [&](policy::EntryId id) { return !order_.Contains(id); });
  ++result_.requests;
  result_.accesses += chain_.size();
  result_.hits += static_cast<std::uint64_t>(miss - chain_.begin());
  for (auto id = chain_.rbegin(); id != chain_.rend(); ++id) {
    if (order_.Contains(*id)) {
      order_.Touch(*id);
      continue;
    }
    if (order_.size() == result_.blocks) order_.Remove(*order_.Coldest());
    order_.Insert(*id);
  }
}

Result<SimResult> Simulate(RequestSource& requests, EvictionPolicy policy, std::uint64_t blocks) {
  Simulator simulator(policy, blocks);
  Request request;
  while (true) {
    const Result<bool> more = requests.Next(request);
    if (!more) return Error(more.error());
    if (!*more) return simulator.result();
    simulator.Submit(request);
  }
}

}  // namespace cistern::workload
