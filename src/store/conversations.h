// SPDX-License-Identifier: Apache-2.0
// Which conversation wrote a block, and whether another one has used it since (docs/decisions/
// 0006-conversations.md). A note a block that a conversation wrote, by the block's full name, so that it
// knows nothing of where blocks are or whether they still are. Bounded: past it the oldest notes of the
// conversation that has been quiet for longest are forgotten, whose blocks then go as any others do.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cistern/key.h"
#include "store/slab.h"
#include "store/tree.h"

namespace cistern {

using NoteId = std::uint32_t;

class Conversations final {
 public:
  explicit Conversations(std::uint32_t max_notes);

  // The block is new and nothing is below it, though one of its name may have been noted: it is
  // `conversation`'s, or nobody's where that is 0.
  void Began(RealmId realm, const BlockKey& key, const BlockKey& parent, std::uint64_t conversation);
  // `conversation` (not 0) has written of a block that may be noted already: what another one is noted for
  // stays its, and counts as used.
  void Wrote(RealmId realm, const BlockKey& key, const BlockKey& parent, std::uint64_t conversation);
  // It uses a block that is here. One that another conversation wrote is shared from now on, and so are its
  // ancestors: ShareSome tells them.
  void Uses(RealmId realm, const BlockKey& key, std::uint64_t conversation);
  // Goes on with what Uses and Wrote began, `*budget` looks at most, which it counts off; whether there is
  // more.
  bool ShareSome(std::uint32_t* budget);
  // Of a block's stamp: the conversation that it is of alone, or 0.
  std::uint64_t Of(RealmId realm, const BlockKey& key) const;

  struct Named {
    BlockKey key;
    BlockKey parent;
    bool shared = false;
    // Its parent is noted, not shared, and of the same conversation: what ends that ends this with it.
    bool below_own = false;
  };
  // Forgets the conversation's last note, which is below those before it unless a restart came between; none:
  // it has no more.
  std::optional<Named> TakeLast(RealmId realm, std::uint64_t conversation);

  // After all was written anew in any order: whether a note's parent is another conversation's, which is
  // shared then. `*from` is where the last call ended; 0 at first. Whether there is more.
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
    RealmId realm = kNoId;
    TalkId talk = kNoId;
    NoteId next = kNoId;  // of its talk
    NoteId prev = kNoId;
    NoteId chained = kNoId;  // of its bucket
    std::uint32_t next_free = kNoId;
  };
  struct Talk {
    RealmId realm = kNoId;
    std::uint64_t id = 0;
    NoteId first = kNoId;
    NoteId last = kNoId;
    TalkId newer = kNoId;  // in the order in which they last wrote
    TalkId older = kNoId;
    TalkId chained = kNoId;
    std::uint32_t next_free = kNoId;
  };

  std::uint64_t BucketOf(RealmId realm, const BlockKey& key) const { return key.Hash(realm) & mask_; }
  std::uint64_t BucketOf(RealmId realm, std::uint64_t id) const {
    return ((id ^ realm) * 0x9e3779b97f4a7c15u >> 32) & mask_;
  }
  NoteId Find(RealmId realm, const BlockKey& key) const;
  TalkId FindTalk(RealmId realm, std::uint64_t id) const;
  TalkId TalkFor(RealmId realm, std::uint64_t id);
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
  std::vector<NoteId> sharing_;  // shared, and their parents not looked at yet
  std::uint64_t forgotten_ = 0;
};

}  // namespace cistern
