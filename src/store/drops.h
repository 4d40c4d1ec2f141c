// SPDX-License-Identifier: Apache-2.0
// Drops of blocks and ends of conversations. A drop is acknowledged when it is in the journal and every
// descendant's generation has changed (R10).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/task.h"
#include "residency/context.h"
#include "residency/lower_tier.h"
#include "residency/tombstones.h"
#include "store/deletions.h"

namespace cistern::store {

// Of the blocks that an end takes with it, dropped together.
inline constexpr std::size_t kTopsAtOnce = 256;

class Drops final {
 public:
  Drops(const residency::StoreContext& context, residency::LowerTier& lower,
        residency::Tombstones& tombstones, Deletions& deletions)
      : context_(context), lower_(lower), tombstones_(tombstones), deletions_(deletions) {}
  Drops(const Drops&) = delete;
  Drops& operator=(const Drops&) = delete;

  Executor& executor() { return context_.executor; }

  // Whether drops of so many keys keep to the bound of tombstones, with those of drops under way.
  bool HasRoom(std::size_t keys) const {
    return context_.journal.tombstones() + coming_ + keys <= context_.options.max_tombstones;
  }
  // Blocks removed, of the keys and of their descendants. `stations` may be null.
  Task<Result<std::uint64_t>> Drop(std::uint32_t slot, std::span<const BlockKey> keys,
                                   CallStations* stations);
  // Drops the blocks that the conversation wrote or used and no other does that has not ended; their number.
  Task<Result<std::uint64_t>> EndConversation(std::uint32_t slot, std::uint64_t conversation,
                                              CallStations* stations);

  // The same where the journal is not waited for (Journal::Settle) and no bound refuses it: once it has
  // ended nothing of them is read any more. Blocks removed; 0 in a slot without a namespace.
  Task<std::uint64_t> Begin(std::uint32_t slot, std::span<const BlockKey> keys);
  // What is left of an end: to be dropped, and behind that in the journal, lest a restart between the two
  // finds nothing of the conversation.
  struct Taken {
    std::deque<BlockKey> tops;                    // the topmost blocks that EndConversation drops
    std::optional<catalog::ConversationEnd> end;  // where a stamp of what stays may name the conversation
  };
  // All of it is the conversation's no more.
  Task<Taken> TakeConversation(std::uint32_t slot, std::uint64_t conversation);

 private:
  using DeletionList = std::vector<std::shared_ptr<Deletion>>;
  struct Ended : Taken {
    std::deque<catalog::Conversations::Named> own;   // as they are noted, the last ones first
    std::deque<catalog::Conversations::Named> kept;  // that others use
  };

  // Cuts the key's block, or ends its puts where the forest has none. The tombstone that the journal is to
  // have of it; none where nothing older can be left, or the namespace is gone.
  Task<std::optional<catalog::Tombstone>> Cut(catalog::TreeId tree, BlockKey key, DeletionList* deletions);
  // Waits for them; the blocks of all.
  Task<std::uint64_t> Collect(const DeletionList& deletions);
  Task<Ended> TakeNotes(catalog::TreeId tree, std::uint64_t conversation);
  // `ended.tops`: those that were dropped.
  Task<void> NoteAgain(catalog::TreeId tree, std::uint64_t conversation, const Ended& ended);

  const residency::StoreContext context_;
  residency::LowerTier& lower_;
  residency::Tombstones& tombstones_;
  Deletions& deletions_;
  std::size_t coming_ = 0;  // keys of drops under way that were not cut yet
};

}  // namespace cistern::store
