// SPDX-License-Identifier: Apache-2.0
// Blocks that were read from other members and did not become visible here, and why: of the last ones, for
// people who ask.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "cistern/key.h"
#include "cistern/status.h"

namespace cistern::mesh {

struct Refusal {
  std::uint64_t peer = 0;
  Status why;
};

class Refusals final {
 public:
  static constexpr std::size_t kMost = 1'024;

  void Note(std::uint64_t incarnation, const BlockKey& key, Refusal refusal) {
    const Block block{incarnation, key};
    if (!why_.insert_or_assign(block, std::move(refusal)).second) return;
    oldest_.push_back(block);
    if (oldest_.size() <= kMost) return;
    why_.erase(oldest_.front());
    oldest_.pop_front();
  }
  void Forget(std::uint64_t incarnation, const BlockKey& key) {
    if (!why_.empty()) why_.erase({incarnation, key});
  }
  const Refusal* Find(std::uint64_t incarnation, const BlockKey& key) const {
    const auto at = why_.find({incarnation, key});
    return at == why_.end() ? nullptr : &at->second;
  }

 private:
  using Block = std::pair<std::uint64_t, BlockKey>;
  std::map<Block, Refusal> why_;
  std::deque<Block> oldest_;  // first; of those that were forgotten too
};

}  // namespace cistern::mesh
