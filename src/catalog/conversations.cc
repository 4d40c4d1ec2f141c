// SPDX-License-Identifier: Apache-2.0
#include "catalog/conversations.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace cistern::catalog {
namespace {

// Takes an item out of its bucket's chain.
void Unchain(std::uint32_t& bucket, auto& items, std::uint32_t item) {
  const std::uint32_t next = items[item].chained;
  if (bucket == item + 1) {
    bucket = next + 1;
    return;
  }
  std::uint32_t at = bucket - 1;
  while (items[at].chained != item) at = items[at].chained;
  items[at].chained = next;
}

}  // namespace

Conversations::Conversations(std::uint32_t max_notes)
    : max_notes_(max_notes),
      mask_(std::bit_ceil(std::uint64_t{max_notes} + 1) - 1),
      note_buckets_(mask_ + 1),
      talk_buckets_(mask_ + 1) {}

NoteId Conversations::Find(TreeId tree, const BlockKey& key) const {
  NoteId note = note_buckets_[BucketOf(tree, key)] - 1;
  while (note != kNoId && (notes_[note].tree != tree || notes_[note].key != key)) note = notes_[note].chained;
  return note;
}

NoteId Conversations::FindKeyHash(TreeId tree, KeyHash key_hash) const {
  NoteId note = note_buckets_[key_hash & mask_] - 1;
  while (note != kNoId && (notes_[note].tree != tree || KeyHashOf(tree, notes_[note].key) != key_hash))
    note = notes_[note].chained;
  return note;
}

Conversations::TalkId Conversations::FindTalk(TreeId tree, std::uint64_t id) const {
  TalkId talk = talk_buckets_[BucketOf(tree, id)] - 1;
  while (talk != kNoId && (talks_[talk].tree != tree || talks_[talk].id != id)) talk = talks_[talk].chained;
  return talk;
}

Conversations::TalkId Conversations::TalkFor(TreeId tree, std::uint64_t id) {
  TalkId talk = FindTalk(tree, id);
  if (talk != kNoId) {
    UnlinkAge(talk);
  } else {
    talk = talks_.Add();
    Talk& t = talks_[talk];
    std::uint32_t& bucket = talk_buckets_[BucketOf(tree, id)];
    t.tree = tree;
    t.id = id;
    t.chained = bucket - 1;
    bucket = talk + 1;
  }
  MakeNewest(talk);
  return talk;
}

void Conversations::MakeNewest(TalkId talk) {
  talks_[talk].older = newest_;
  talks_[talk].newer = kNoId;
  if (newest_ != kNoId) talks_[newest_].newer = talk;
  newest_ = talk;
  if (oldest_ == kNoId) oldest_ = talk;
}

void Conversations::UnlinkAge(TalkId talk) {
  const Talk& t = talks_[talk];
  (t.newer == kNoId ? newest_ : talks_[t.newer].older) = t.older;
  (t.older == kNoId ? oldest_ : talks_[t.older].newer) = t.newer;
}

bool Conversations::Began(TreeId tree, const BlockKey& key, const BlockKey& parent,
                          std::uint64_t conversation) {
  if (const NoteId known = notes_.size() > 0 ? Find(tree, key) : kNoId; known != kNoId) Forget(known);
  return conversation != 0 && Wrote(tree, key, parent, conversation);
}

std::uint32_t Conversations::LookBelow(Forest& forest, BlockId block, const BlockKey& key) {
  const TreeId tree = forest.block(block).tree;
  std::array<BlockId, kLooksBelow> below;  // where children are to be looked at
  std::size_t depth = 0;
  std::uint32_t looks = 0;
  below[depth++] = forest.block(block).first_child;
  while (depth > 0) {
    const BlockId at = below[--depth];
    if (at == kNoId) continue;
    Block& b = forest.block(at);
    const NoteId note = FindKeyHash(tree, b.key_hash());
    // Who has used something below a note is named in it.
    for (UseId use = note == kNoId ? kNoId : notes_[note].first; use != kNoId && !notes_[note].shared;
         use = uses_[use].also)
      Uses(tree, key, talks_[uses_[use].talk].id);
    if ((note != kNoId && notes_[note].shared) || ++looks == kLooksBelow || depth + 2 > below.size()) {
      Share(tree, key);
      break;
    }
    below[depth++] = b.next_sibling;
    if (note == kNoId) below[depth++] = b.first_child;
    b.flags &= static_cast<std::uint16_t>(~Block::kNobodysAbove);
  }
  return looks;
}

bool Conversations::Wrote(TreeId tree, const BlockKey& key, const BlockKey& parent,
                          std::uint64_t conversation) {
  if (const NoteId known = Find(tree, key); known != kNoId) {
    Uses(tree, key, conversation);
    return false;
  }
  // A write to a child uses its parent.
  if (!parent.none()) Uses(tree, parent, conversation);
  if (notes_.size() == max_notes_) {
    ++forgotten_;
    Forget(uses_[talks_[oldest_].first].note);
  }
  (void)MakeRoomForUse(kNoId);
  const NoteId note = notes_.Add();
  Note& n = notes_[note];
  n.tree = tree;
  n.key = key;
  n.parent = parent;
  std::uint32_t& bucket = note_buckets_[BucketOf(tree, key)];
  n.chained = bucket - 1;
  bucket = note + 1;
  LinkUse(note, TalkFor(tree, conversation));
  return true;
}

void Conversations::LinkUse(NoteId note, TalkId talk) {
  const UseId use = uses_.Add();
  Use& u = uses_[use];
  Talk& t = talks_[talk];
  u.note = note;
  u.talk = talk;
  u.prev = t.last;
  (t.last == kNoId ? t.first : uses_[t.last].next) = use;
  t.last = use;
  UseId* link = &notes_[note].first;
  while (*link != kNoId) link = &uses_[*link].also;
  *link = use;
}

void Conversations::UnlinkUse(UseId use) {
  const Use u = uses_[use];
  UseId* link = &notes_[u.note].first;
  while (*link != use) link = &uses_[*link].also;
  *link = u.also;
  Talk& t = talks_[u.talk];
  (u.prev == kNoId ? t.first : uses_[u.prev].next) = u.next;
  (u.next == kNoId ? t.last : uses_[u.next].prev) = u.prev;
  uses_.Remove(use);
  if (t.first == kNoId) ForgetTalk(u.talk);
}

void Conversations::ForgetUse(UseId use) {
  const NoteId note = uses_[use].note;
  if (notes_[note].first == use && uses_[use].also == kNoId) {
    Forget(note);
  } else {
    UnlinkUse(use);
  }
}

bool Conversations::HasUse(NoteId note, std::uint64_t conversation) const {
  UseId use = notes_[note].first;
  while (use != kNoId && talks_[uses_[use].talk].id != conversation) use = uses_[use].also;
  return use != kNoId;
}

bool Conversations::AddUse(NoteId note, std::uint64_t conversation) {
  if (notes_[note].shared || HasUse(note, conversation)) return false;
  std::size_t users = 0;
  for (UseId use = notes_[note].first; use != kNoId; use = uses_[use].also) ++users;
  // Without room for this use it would be left without any.
  if (users == kMostUsers || !MakeRoomForUse(note)) {
    MakeShared(note);
    return true;
  }
  LinkUse(note, TalkFor(notes_[note].tree, conversation));
  return true;
}

bool Conversations::MakeRoomForUse(NoteId note) {
  if (uses_.size() < kUsesANote * std::size_t{max_notes_}) return true;
  ++forgotten_;
  const UseId oldest = talks_[oldest_].first;
  if (uses_[oldest].note == note) return false;
  ForgetUse(oldest);
  return true;
}

bool Conversations::IsEnding(TreeId tree, std::uint64_t begun) const {
  return std::any_of(endings_.begin(), endings_.upper_bound(begun),
                     [&](const auto& ending) { return ending.second.tree == tree; });
}

bool Conversations::IsEnding(const Talking& talking) const {
  return std::ranges::any_of(endings_, [&](const auto& ending) { return ending.second == talking; });
}

void Conversations::MakeShared(NoteId note) {
  notes_[note].shared = true;
  while (uses_[notes_[note].first].also != kNoId) UnlinkUse(uses_[notes_[note].first].also);
}

void Conversations::Uses(TreeId tree, const BlockKey& key, std::uint64_t conversation, bool beside) {
  if (notes_.size() == 0) return;
  const NoteId note = Find(tree, key);
  if (note == kNoId) {
    if (beside) return;
    const KeyHash key_hash = KeyHashOf(tree, key);
    ancestors_.push_back({tree, key_hash, key_hash, conversation});
    return;
  }
  if (!AddUse(note, conversation)) return;
  const Note& n = notes_[note];
  if (n.parent.none()) return;
  ancestors_.push_back({tree, KeyHashOf(tree, key), KeyHashOf(tree, n.parent), n.shared ? 0 : conversation});
}

void Conversations::Share(TreeId tree, const BlockKey& key) {
  const NoteId note = Find(tree, key);
  if (note == kNoId || notes_[note].shared) return;
  MakeShared(note);
  const Note& n = notes_[note];
  if (!n.parent.none()) ancestors_.push_back({tree, KeyHashOf(tree, key), KeyHashOf(tree, n.parent), 0});
}

bool Conversations::ShareSome(Forest& forest, std::uint32_t* budget) {
  for (; !ancestors_.empty() && *budget > 0; --*budget) {
    if (!ShareNext(forest, &ancestors_.back())) ancestors_.pop_back();
  }
  return !ancestors_.empty();
}

// False: there are no more, or those above have it noted already.
bool Conversations::ShareNext(Forest& forest, Ancestors* ancestors) {
  const TreeId tree = ancestors->tree;
  if (const NoteId note = FindKeyHash(tree, ancestors->next); note != kNoId) {
    Note& n = notes_[note];
    if (!n.shared) {
      if (ancestors->conversation == 0) {
        MakeShared(note);
      } else if (!AddUse(note, ancestors->conversation)) {
        return false;
      }
      if (n.shared) ancestors->conversation = 0;
      ancestors->open = ancestors->open || !n.shared;
      ancestors->next = n.parent.none() ? 0 : KeyHashOf(tree, n.parent);
      if (!n.parent.none()) return true;
    }
  } else {
    const BlockId block = forest.FindKeyHash(tree, ancestors->next);
    if (block == kNoId) return false;
    const BlockId parent = forest.block(block).parent;
    if (parent == kNoId) return false;
    if (forest.block(parent).is(Block::kHome)) return false;  // what is above is not known yet
    if (!forest.block(block).is(Block::kNobodysAbove) && forest.block(parent).has_key()) {
      ancestors->next = forest.block(parent).key_hash();
      return true;
    }
  }
  if (ancestors->open) return false;
  // All of them are shared or nobody's: whoever uses the block again need not look at them.
  const BlockId from = forest.FindKeyHash(tree, ancestors->from);
  if (from != kNoId) forest.block(from).flags |= Block::kNobodysAbove;
  return false;
}

std::uint64_t Conversations::Of(TreeId tree, const BlockKey& key) const {
  const NoteId note = Find(tree, key);
  return note == kNoId || notes_[note].shared ? 0 : talks_[uses_[notes_[note].first].talk].id;
}

std::optional<std::vector<std::uint64_t>> Conversations::UsersOf(TreeId tree, const BlockKey& key) const {
  const NoteId note = Find(tree, key);
  if (note == kNoId) return std::nullopt;
  std::vector<std::uint64_t> users;
  for (UseId use = notes_[note].first; use != kNoId && !notes_[note].shared; use = uses_[use].also)
    users.push_back(talks_[uses_[use].talk].id);
  return users;
}

std::optional<Conversations::Named> Conversations::TakeLast(TreeId tree, std::uint64_t conversation) {
  const TalkId talk = FindTalk(tree, conversation);
  if (talk == kNoId) return std::nullopt;
  const UseId use = talks_[talk].last;
  const Note& n = notes_[uses_[use].note];
  // Stamps name who is noted first, which each is until it is noted no more.
  const Named named{.key = n.key,
                    .parent = n.parent,
                    .stays = n.shared || uses_[n.first].also != kNoId,
                    .stamped = use == n.first};
  ForgetUse(use);
  return named;
}

std::optional<Conversations::Talking> Conversations::TalkAt(std::uint32_t at) const {
  const Talk& talk = talks_[at];
  if (talk.tree == kNoId) return std::nullopt;
  return Talking{talk.tree, talk.id};
}

void Conversations::Forget(NoteId note) {
  const Note& n = notes_[note];
  Unchain(note_buckets_[BucketOf(n.tree, n.key)], notes_, note);
  while (notes_[note].first != kNoId) UnlinkUse(notes_[note].first);
  notes_.Remove(note);
}

void Conversations::ForgetTalk(TalkId talk) {
  const Talk& t = talks_[talk];
  UnlinkAge(talk);
  Unchain(talk_buckets_[BucketOf(t.tree, t.id)], talks_, talk);
  talks_.Remove(talk);
}

bool Conversations::RelateSome(NoteId* from, std::uint32_t* budget) {
  for (; *from < notes_.end() && *budget > 0; ++*from, --*budget) {
    const Note& n = notes_[*from];
    if (n.first == kNoId || n.parent.none()) continue;
    if (n.shared) Share(n.tree, n.parent);
    for (UseId use = n.first; use != kNoId && !n.shared; use = uses_[use].also)
      Uses(n.tree, n.parent, talks_[uses_[use].talk].id);
  }
  return *from < notes_.end();
}

}  // namespace cistern::catalog
