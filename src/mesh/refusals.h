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
  bool own = false;  // this node's, before it asked or of what came; not the peer's, nor the way's
};

class Refusals final {
 public:
  static constexpr std::size_t kMost = 1'024;

  void Note(std::uint64_t incarnation, const BlockKey& key, Refusal refusal) {
    const Block block{incarnation, key};
    const auto [at, is_new] = why_.try_emplace(block);
    at->second.refusal = std::move(refusal);
    if (!is_new) return;
    at->second.number = ++noted_;
    oldest_.emplace_back(block, noted_);
    if (oldest_.size() <= kMost) return;
    // It may have been forgotten, and noted anew.
    const auto oldest = why_.find(oldest_.front().first);
    if (oldest != why_.end() && oldest->second.number == oldest_.front().second) why_.erase(oldest);
    oldest_.pop_front();
  }
  void Forget(std::uint64_t incarnation, const BlockKey& key) {
    if (!why_.empty()) why_.erase({incarnation, key});
  }
  const Refusal* Find(std::uint64_t incarnation, const BlockKey& key) const {
    const auto at = why_.find({incarnation, key});
    return at == why_.end() ? nullptr : &at->second.refusal;
  }

 private:
  using Block = std::pair<std::uint64_t, BlockKey>;
  struct Noted {
    Refusal refusal;
    std::uint64_t number = 0;
  };
  std::map<Block, Noted> why_;
  std::deque<std::pair<Block, std::uint64_t>> oldest_;  // first; of those that were forgotten too
  std::uint64_t noted_ = 0;
};

}  // namespace cistern::mesh
