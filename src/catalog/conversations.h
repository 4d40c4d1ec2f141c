// SPDX-License-Identifier: Apache-2.0
// Conversations: which one wrote a block, and whether another has used the block since
// (docs/decisions/0006-conversations.md). One note for each block that a conversation wrote, by the block's
// full name, so that notes need no knowledge of where blocks are or whether they still exist. Bounded: past
// the bound the oldest notes of the conversation that has been quiet for longest are forgotten, whose blocks
// then leave as any others do.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "catalog/forest.h"
#include "catalog/slab.h"
#include "cistern/key.h"

namespace cistern::catalog {

using NoteId = std::uint32_t;

class Conversations final {
 public:
  explicit Conversations(std::uint32_t max_notes);

  // The block is new and has no children, though one of its name may have been noted: it is
  // `conversation`'s, or no conversation's where that is 0.
  void Began(TreeId tree, const BlockKey& key, const BlockKey& parent, std::uint64_t conversation);
  // `conversation` (not 0) has written to a block that may be noted already: a block noted for another
  // conversation stays that one's, and counts as used.
  void Wrote(TreeId tree, const BlockKey& key, const BlockKey& parent, std::uint64_t conversation);
  // `conversation` uses a present block. A block that another conversation wrote is shared from now on, and
  // so are its ancestors, which ShareSome marks.
  void Uses(TreeId tree, const BlockKey& key, std::uint64_t conversation);
  // Marks further ancestors of blocks that Uses and Wrote shared. Looks at `*budget` at most, which it
  // counts off; true: there are more.
  bool ShareSome(std::uint32_t* budget);
  // The conversation in a block's stamp: the only one that uses the block, or 0.
  std::uint64_t Of(TreeId tree, const BlockKey& key) const;

  struct Named {
    BlockKey key;
    BlockKey parent;
    bool shared = false;
    // The parent is noted, not shared, and of the same conversation: a drop of the parent takes this block
    // along.
    bool under_own = false;
  };
  // Forgets and returns the conversation's last note, whose block descends from those before it unless a
  // restart came between; none: it has no more.
  std::optional<Named> TakeLast(TreeId tree, std::uint64_t conversation);

  // After all notes were written anew in any order: shares each parent that is another conversation's.
  // `*from` is where the last call ended; 0 at first. True: there are more.
  bool RelateSome(NoteId* from, std::uint32_t* budget);

  std::uint32_t notes() const { return notes_.size(); }
  std::uint32_t talks() const { return talks_.size(); }
  std::uint64_t forgotten() const { return forgotten_; }

 private:
  using TalkId = std::uint32_t;
  struct Note {
    BlockKey key;
    BlockKey parent;
    bool shared = false;
    TreeId tree = kNoId;
    TalkId talk = kNoId;
    NoteId next = kNoId;  // of the same conversation
    NoteId prev = kNoId;
    NoteId chained = kNoId;  // next in its bucket
    std::uint32_t next_free = kNoId;
  };
  struct Talk {
    TreeId tree = kNoId;
    std::uint64_t id = 0;
    NoteId first = kNoId;
    NoteId last = kNoId;
    TalkId newer = kNoId;  // in the order of their last write
    TalkId older = kNoId;
    TalkId chained = kNoId;
    std::uint32_t next_free = kNoId;
  };

  std::uint64_t BucketOf(TreeId tree, const BlockKey& key) const { return key.Hash(tree) & mask_; }
  std::uint64_t BucketOf(TreeId tree, std::uint64_t id) const {
    return ((id ^ tree) * 0x9e3779b97f4a7c15u >> 32) & mask_;
  }
  NoteId Find(TreeId tree, const BlockKey& key) const;
  TalkId FindTalk(TreeId tree, std::uint64_t id) const;
  TalkId TalkFor(TreeId tree, std::uint64_t id);
  void MakeNewest(TalkId talk);
  void UnlinkAge(TalkId talk);
  void Forget(NoteId note);
  void ForgetTalk(TalkId talk);
  void Share(NoteId note);

  const std::uint32_t max_notes_;
  const std::uint64_t mask_;
  Slab<Note> notes_;
  Slab<Talk> talks_;
  LazyArray<std::uint32_t> note_buckets_;  // plus one
  LazyArray<std::uint32_t> talk_buckets_;
  TalkId newest_ = kNoId;
  TalkId oldest_ = kNoId;
  std::vector<NoteId> sharing_;  // shared, parents not looked at yet
  std::uint64_t forgotten_ = 0;
};

}  // namespace cistern::catalog
