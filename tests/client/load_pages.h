// SPDX-License-Identifier: Apache-2.0
// A load into an engine's pages, for tests that know a node (whose headers have another Pages).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cistern/store.h"

namespace cistern {

struct PagesLoaded {
  std::vector<Code> outcomes;
  std::string message;
  std::uint64_t moved_bytes = 0;
};

// Loads a block a page into `memory`, the first block into its last page. `before_cancel`, where there is
// one, is called when the load was submitted, and the load cancelled after it. Ends when the load was
// reported.
PagesLoaded LoadPages(std::shared_ptr<Store> store, const Namespace& ns, const std::vector<BlockKey>& keys,
                      std::span<std::byte> memory, const std::function<void()>& before_cancel = nullptr);

}  // namespace cistern
