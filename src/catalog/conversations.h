// SPDX-License-Identifier: Apache-2.0
// Conversations: which ones wrote a block or have used it since (docs/decisions/0006-conversations.md). One
// note for each block that a conversation wrote, by the block's full name, so that notes need no knowledge of
// where blocks are or whether they still exist; it names up to kMostUsers conversations, and a block that
// more have used is shared, which no end takes. Who uses a block uses its ancestors: their notes name it too.
// Bounded: past the bound the oldest notes of the conversation that has been quiet for longest are forgotten,
// whose blocks then leave as any others do.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/event.h"
#include "catalog/forest.h"
#include "catalog/slab.h"
#include "cistern/key.h"

namespace cistern::catalog {

using NoteId = std::uint32_t;

class Conversations final {
 public:
  static constexpr std::size_t kMostUsers = 8;  // of a block that is not shared
  static constexpr std::size_t kUsesANote = 2;  // of all notes, on average

  explicit Conversations(std::uint32_t max_notes);

  // The block is new, though one of its name may have been noted: it is `conversation`'s, or no
  // conversation's where that is 0. Whether it is noted now, and LookBelow asked where it has children.
  bool Began(TreeId tree, const BlockKey& key, const BlockKey& parent, std::uint64_t conversation);
  // `conversation` (not 0) has written to a block that may be noted already, which is a use of it. Whether it
  // was not, and LookBelow is asked as well.
  bool Wrote(TreeId tree, const BlockKey& key, const BlockKey& parent, std::uint64_t conversation);
  // Notes for a block that was noted after its children who has used something below it; shares it where the
  // looks do not suffice to tell. How many it took.
  std::uint32_t LookBelow(Forest& forest, BlockId block, const BlockKey& key);
  // `conversation` uses a present block: from now on it is one of those of it and of its ancestors; ShareSome
  // notes it for the ancestors. `beside`: it has used the block's parent or a child as well just now.
  void Uses(TreeId tree, const BlockKey& key, std::uint64_t conversation, bool beside = false);
  // Goes on with that: up the blocks, of which some have no note. Looks at `*budget` at most, which it counts
  // off; true: there are more.
  bool ShareSome(Forest& forest, std::uint32_t* budget);
  bool sharing() const { return !ancestors_.empty(); }
  // Too many conversations have used a noted block, or something below it.
  void Share(TreeId tree, const BlockKey& key);
  // The conversation in a block's stamp: the first of those that are noted of it; 0: none is, or it is
  // shared.
  std::uint64_t Of(TreeId tree, const BlockKey& key) const;
  // All of them; empty: it is shared. None: nothing is noted of the block.
  std::optional<std::vector<std::uint64_t>> UsersOf(TreeId tree, const BlockKey& key) const;

  struct Named {
    BlockKey key;
    BlockKey parent;
    bool stays = false;    // it is shared, or others are noted of it
    bool stamped = false;  // its stamp may name the conversation
  };
  // Takes the conversation out of the note that it has had for the shortest time, and returns that; none: it
  // has no more. A note without a conversation is forgotten.
  std::optional<Named> TakeLast(TreeId tree, std::uint64_t conversation);

  struct Talking {
    TreeId tree = kNoId;
    std::uint64_t conversation = 0;
    bool operator==(const Talking&) const = default;
  };
  // A conversation of the tree ends while this stands: its notes are taken before what they are of goes.
  class Ending final {
   public:
    Ending(Conversations& conversations, TreeId tree, std::uint64_t conversation)
        : conversations_(conversations), number_(++conversations.endings_begun_) {
      conversations_.endings_[number_] = {tree, conversation};
    }
    ~Ending() {
      conversations_.endings_.erase(number_);
      conversations_.ended_.Pulse();
    }
    Ending(const Ending&) = delete;
    Ending& operator=(const Ending&) = delete;

   private:
    Conversations& conversations_;
    const std::uint64_t number_;
  };
  std::uint64_t endings_begun() const { return endings_begun_; }
  // Whether one of the first `begun` that were begun is one of the tree's, and under way.
  bool IsEnding(TreeId tree, std::uint64_t begun) const;
  // Whether an end of this conversation is under way, which has taken notes of what is still there.
  bool IsEnding(const Talking& talking) const;
  // Pulsed when one has ended.
  Event& ended() { return ended_; }

  // After all notes were written anew in any order: who is noted of a block is noted of its parent.
  // `*from` is where the last call ended; 0 at first. True: there are more.
  bool RelateSome(NoteId* from, std::uint32_t* budget);

  // For going over all conversations: number `at` of them, below talk_end(), which it has as long as it has a
  // note; none: nobody has that number.
  std::optional<Talking> TalkAt(std::uint32_t at) const;
  std::uint32_t talk_end() const { return talks_.end(); }

  std::uint32_t notes() const { return notes_.size(); }
  std::uint32_t talks() const { return talks_.size(); }
  std::uint64_t forgotten() const { return forgotten_; }

 private:
  static constexpr std::uint32_t kLooksBelow = 48;
  using TalkId = std::uint32_t;
  using UseId = std::uint32_t;
  struct Note {
    BlockKey key;
    BlockKey parent;
    bool shared = false;  // then it has one use, which it is forgotten with
    TreeId tree = kNoId;
    UseId first = kNoId;     // use of it
    NoteId chained = kNoId;  // next in its bucket
    std::uint32_t next_free = kNoId;
  };
  // A conversation is noted of a block.
  struct Use {
    NoteId note = kNoId;
    TalkId talk = kNoId;
    UseId also = kNoId;  // the note's next
    UseId next = kNoId;  // of the same conversation
    UseId prev = kNoId;
    std::uint32_t next_free = kNoId;
  };
  struct Talk {
    TreeId tree = kNoId;
    std::uint64_t id = 0;
    UseId first = kNoId;
    UseId last = kNoId;
    TalkId newer = kNoId;  // in the order of their last write
    TalkId older = kNoId;
    TalkId chained = kNoId;
    std::uint32_t next_free = kNoId;
  };

  // The ancestors of a block that was used, one after the other from the nearest on.
  struct Ancestors {
    TreeId tree;
    KeyHash from;                // the block
    KeyHash next;                // the ancestor to be looked at, or the block itself
    std::uint64_t conversation;  // that used it; 0: they are to be shared
    bool open = false;           // one of them may be used by further ones
  };

  std::uint64_t BucketOf(TreeId tree, const BlockKey& key) const { return KeyHashOf(tree, key) & mask_; }
  std::uint64_t BucketOf(TreeId tree, std::uint64_t id) const {
    return ((id ^ tree) * 0x9e3779b97f4a7c15u >> 32) & mask_;
  }
  NoteId Find(TreeId tree, const BlockKey& key) const;
  NoteId FindKeyHash(TreeId tree, KeyHash key_hash) const;
  TalkId FindTalk(TreeId tree, std::uint64_t id) const;
  TalkId TalkFor(TreeId tree, std::uint64_t id);
  void MakeNewest(TalkId talk);
  void UnlinkAge(TalkId talk);
  bool HasUse(NoteId note, std::uint64_t conversation) const;
  // Whether the note did not have it, and is not shared. Past kMostUsers the note is shared.
  bool AddUse(NoteId note, std::uint64_t conversation);
  // Past the bound of all uses the oldest one is forgotten. False: that is the note's.
  bool MakeRoomForUse(NoteId note);
  void LinkUse(NoteId note, TalkId talk);
  // The note is not forgotten with its last use.
  void UnlinkUse(UseId use);
  void MakeShared(NoteId note);
  void ForgetUse(UseId use);
  void Forget(NoteId note);
  void ForgetTalk(TalkId talk);
  bool ShareNext(Forest& forest, Ancestors* ancestors);

  const std::uint32_t max_notes_;
  const std::uint64_t mask_;
  Slab<Note> notes_;
  Slab<Use> uses_;
  Slab<Talk> talks_;
  LazyArray<std::uint32_t> note_buckets_;  // plus one
  LazyArray<std::uint32_t> talk_buckets_;
  TalkId newest_ = kNoId;
  TalkId oldest_ = kNoId;
  std::vector<Ancestors> ancestors_;  // that may have to be shared
  std::uint64_t forgotten_ = 0;
  std::map<std::uint64_t, Talking> endings_;  // under way, by the number that each has
  std::uint64_t endings_begun_ = 0;
  Event ended_;
};

}  // namespace cistern::catalog
