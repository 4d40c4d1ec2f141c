// SPDX-License-Identifier: Apache-2.0
#include "memory/node_movers.h"

#include "base/assert.h"

namespace cistern::memory {

NodeMovers::NodeMovers(const Parts& parts, ThreadMoversOptions options,
                       const std::function<void(Work& job)>& done)
    : arena_(parts.arena), plan_(parts.plan) {
  CISTERN_ASSERT(parts.nodes.size() >= plan_.nodes());
  for (std::uint32_t i = 0; i < plan_.near(); ++i) {
    options.processors = parts.nodes[i].processors;
    movers_.push_back(std::make_unique<ThreadMovers>(parts.words, parts.clock, options, done));
  }
}

std::optional<NodeIndex> NodeMovers::NodeOf(const MoverJob& job) const {
  const std::byte* const at = job.WorksOn();
  const std::byte* const first = arena_.slot(0);
  if (at == nullptr || std::less<>()(at, first)) return std::nullopt;
  const auto offset = static_cast<std::uint64_t>(at - first);
  if (offset >= arena_.geometry().slots_bytes()) return std::nullopt;
  return plan_.Of(static_cast<std::uint32_t>(offset / arena::kHeaderSpanBytes));
}

void NodeMovers::Submit(MoverJob& job) {
  const std::optional<NodeIndex> node = NodeOf(job);
  movers_[node && !plan_.IsFar(*node) ? *node : next_++ % movers_.size()]->Submit(job);
}

}  // namespace cistern::memory
