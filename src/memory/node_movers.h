// SPDX-License-Identifier: Apache-2.0
// Movers of an arena that lies on several memory nodes: some for each, which run on its processors alone. A
// job is done by those of the node that the memory lies on which it works on, others, and those of far
// memory, by each in turn.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "arena/geometry.h"
#include "memory/memory_nodes.h"
#include "memory/movers.h"
#include "memory/node_plan.h"

namespace cistern::memory {

class NodeMovers final : public Movers {
 public:
  struct Parts {  // borrowed; outlive it
    arena::Words& words;
    const Clock& clock;
    arena::ArenaView arena;
    NodePlan plan;
    const std::vector<MemoryNode>& nodes;  // by index of the plan
  };
  // `options.threads` for each near node. `done`, and what is thrown, as for ThreadMovers.
  NodeMovers(const Parts& parts, ThreadMoversOptions options, const std::function<void(Work& job)>& done);

  void Submit(MoverJob& job) override;
  // Whose movers do the job: of the arena's memory that it works on; none: it works on none.
  std::optional<NodeIndex> NodeOf(const MoverJob& job) const;

 private:
  const arena::ArenaView arena_;
  const NodePlan plan_;
  std::vector<std::unique_ptr<ThreadMovers>> movers_;  // by near node
  std::size_t next_ = 0;
};

}  // namespace cistern::memory
