// SPDX-License-Identifier: Apache-2.0
// What each namespace has: a walk over all blocks, in steps with other work between them. Nothing is counted
// while blocks come and go, so the survey costs when it is asked for and nothing otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "catalog/catalog.h"
#include "residency/context.h"
#include "store/namespaces.h"

namespace cistern::store {

struct TierUse {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;  // of bodies
};

struct NamespaceUse {
  catalog::NamespaceEntry entry;
  std::uint64_t fingerprint = 0;
  std::uint64_t blocks = 0;     // that have a record in any tier
  std::vector<TierUse> memory;  // by group
  std::vector<TierUse> lower;   // by group; a record in both tiers counts in both
  std::uint64_t uses = 0;       // of records, as clients told them since the node's start
  std::int64_t unused_us = -1;  // since the last of them, to 50 ms; -1: there was none
  std::string quota;            // that it counts for; empty: none
  std::uint32_t owners = 0;     // engines that are connected and use it
};

class Survey final {
 public:
  using Uses = std::shared_ptr<const std::vector<NamespaceUse>>;  // by slot number

  Survey(const residency::StoreContext& context, const Namespaces& namespaces)
      : context_(context), namespaces_(namespaces) {}
  Survey(const Survey&) = delete;
  Survey& operator=(const Survey&) = delete;

  Executor& executor() { return context_.executor; }

  // All namespaces. Who asks while a walk is under way gets that one's result. Blocks that come, move or go
  // meanwhile count as the walk meets them.
  Task<Uses> Take();
  // The result of the last walk; null before the first.
  Uses last() const { return last_; }

 private:
  Task<void> Walk(std::vector<NamespaceUse>& uses);
  // Touches that it cost.
  std::uint32_t CountBlock(const catalog::Block& block, NamespaceUse& use) const;

  const residency::StoreContext context_;
  const Namespaces& namespaces_;
  Uses last_;
  bool walking_ = false;
  Event walked_;
};

}  // namespace cistern::store
