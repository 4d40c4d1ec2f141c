// SPDX-License-Identifier: Apache-2.0
// Prompts of requests, for the order of eviction: a match names one, and what follows shows that it is a
// request's. The read of its first block that lies below memory takes it in, or its first write, or the touch
// of its whole chain where nothing of it is new; then each block of it is used as `reuse` says
// (policy/reuse.h). A match alone changes no order. Where its caller tells of the next turn, that is awaited
// from then on (residency/awaited_turns.h).
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/task.h"
#include "residency/awaited_turns.h"
#include "residency/context.h"
#include "residency/residents.h"
#include "store/requests.h"

namespace cistern::store {

class Prompts final {
 public:
  Prompts(const residency::StoreContext& context, residency::Residents& residents,
          residency::AwaitedTurns& turns)
      : context_(context), residents_(residents), turns_(turns) {}
  Prompts(const Prompts&) = delete;
  Prompts& operator=(const Prompts&) = delete;

  Executor& executor() { return context_.executor; }

  // A later match of the same new blocks takes the place of this one. Past the bounds the oldest is
  // forgotten.
  void Note(std::uint32_t slot, MatchedPrompt prompt);

  // A prompt waits for the read of this block, its first below memory.
  bool AwaitsRead(catalog::TreeId tree, const BlockKey& key) const {
    return !by_read_.empty() && by_read_.contains(catalog::KeyHashOf(tree, key));
  }
  // A prompt waits for the first write of this block; for the touch of exactly this chain, from leaf to root.
  bool AwaitsWrite(catalog::TreeId tree, const BlockKey& key) const {
    return !noted_.empty() && FindNote(tree, key, 0) != by_key_.end();
  }
  bool AwaitsTouch(catalog::TreeId tree, std::span<const BlockKey> leaf_to_root) const {
    return !noted_.empty() && !leaf_to_root.empty() &&
           FindNote(tree, leaf_to_root.front(), leaf_to_root.size()) != by_key_.end();
  }
  // The prompt that waits for this block's write or touch; for its read.
  Task<void> TakeIn(catalog::TreeId tree, BlockKey key) {
    return TakeIn(tree, Take(by_key_.at(catalog::KeyHashOf(tree, key))));
  }
  Task<void> TakeInAtRead(catalog::TreeId tree, BlockKey key) {
    return TakeIn(tree, Take(by_read_.at(catalog::KeyHashOf(tree, key))));
  }

 private:
  static constexpr std::size_t kMostNotes = 256;
  static constexpr std::size_t kMostKeys = 262'144;

  struct Noted {
    catalog::KeyHash waits_for = 0;
    std::optional<catalog::KeyHash> read;  // of its first block below memory
    MatchedPrompt prompt;
  };
  using ByKey = std::unordered_map<catalog::KeyHash, std::list<Noted>::iterator>;

  // `touched`: how many blocks are touched, 0: one is written.
  ByKey::const_iterator FindNote(catalog::TreeId tree, const BlockKey& key, std::size_t touched) const;
  // It is no longer noted.
  MatchedPrompt Take(std::list<Noted>::iterator noted);
  Task<void> TakeIn(catalog::TreeId tree, MatchedPrompt matched);
  Task<void> UseResident(catalog::TreeId tree, catalog::BlockId deepest, std::uint64_t blocks,
                         policy::Reuse::Prompt& prompt);
  void UseBlock(catalog::BlockId block, std::uint64_t position, policy::Reuse::Prompt& prompt);

  const residency::StoreContext context_;
  residency::Residents& residents_;
  residency::AwaitedTurns& turns_;
  std::list<Noted> noted_;  // the oldest first
  ByKey by_key_;            // by waits_for
  ByKey by_read_;           // of several prompts that go on below memory with the same block, the last
  std::size_t keys_ = 0;
};

}  // namespace cistern::store
