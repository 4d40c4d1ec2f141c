// SPDX-License-Identifier: Apache-2.0
// Conversations in a world: who wrote and who hit which block, what has to go with the end of one, and what
// has to stay (docs/decisions/0006-conversations.md). Where it cannot be told for certain, nothing is asked.
#include <algorithm>
#include <utility>

#include "base/format.h"
#include "client.h"
#include "world.h"

namespace cistern::storm {

std::uint64_t World::SomeConversation(std::uint32_t ns, BlockCode code) {
  const std::uint64_t draw = random().Below(100);
  if (draw < 10) return 0;
  if (draw < 95) return ConversationOf(ns, code);
  return talks_[ns][random().Below(kTrees)];
}

std::optional<World::Sighted> World::See(const BlockId& block) {
  if (model_.PutsOf(block).empty()) return std::nullopt;
  const Look look = LookAt(block, false);
  if (look.outcome != arena::ReadOutcome::kHit || look.seen.put == 0) return std::nullopt;
  return Sighted{block, static_cast<PutNo>(look.seen.put), look.born};
}

// A touch of blocks for call.number.
void World::Use(Call& call, const std::vector<BlockId>& blocks) {
  std::vector<Sighted> before;
  const std::uint64_t conversation = call.number;
  for (const BlockId& block : blocks) {
    NoteUseBesideEnds(block.ns, block.code, conversation);
    ++touches_[{block.ns, block.code, conversation}].open;
    if (const auto seen = See(block)) before.push_back(*seen);
  }
  call.answered = [this, conversation, blocks, before, boot = boots_](Call& answer) {
    for (const BlockId& block : blocks) {
      TouchTime& touch = touches_[{block.ns, block.code, conversation}];
      --touch.open;
      touch.last = model_.Now();
    }
    // Which of them were touched is not told where not all were.
    if (answer.lost || !answer.status.ok() || answer.value != blocks.size()) return;
    for (const Sighted& seen : before) {
      const auto now = See(seen.block);
      // One whose end was asked for meanwhile may have ended behind it.
      if (now && now->put == seen.put && !over_.contains({seen.block.ns, conversation}))
        uses_.push_back({seen, conversation, boot});
    }
  };
}

void World::NoteUseBesideEnds(std::uint32_t ns, BlockCode code, std::uint64_t conversation) {
  const auto ends = ends_.find({ns, conversation});
  if (ends == ends_.end()) return;
  for (const BlockCode above : ChainOf(code)) {
    Disturb(ns, above);
    dropping_.emplace_back(ns, above);
    ends->second.used.push_back(above);
  }
}

// Whether another conversation may have written the block or something below it since it was put, or hit it.
bool World::UsedByOthers(const Sighted& what, std::uint64_t conversation) {
  const std::uint32_t ns = what.block.ns;
  // Notes are by name and outlive their blocks: another group's record, or one that a start found in the
  // lower tier and then refused, may bring back that an earlier block of the key was used.
  const bool by_name = trees_[ns].groups() > 1 || has_lower_tier() || !trees_[ns].first_full;
  const Moment since = by_name ? 0 : model_.put(what.put).first_asked;
  const auto below = [&](BlockCode code) { return model_.Below(ns, code, what.block.code); };
  for (BlockCode code = 1; code < kCodes; ++code) {
    if (!below(code)) continue;
    for (std::uint16_t group = 0; group < trees_[ns].groups(); ++group) {
      for (const PutNo number : model_.PutsOf({ns, group, code})) {
        const std::uint64_t by = model_.put(number).conversation;
        if (by != 0 && by != conversation && !model_.OverBefore(number, since)) return true;
      }
    }
  }
  return std::ranges::any_of(touches_, [&](const auto& entry) {
    const auto& [touch, time] = entry;
    return touch.ns == ns && touch.conversation != conversation && (time.open > 0 || time.last >= since) &&
           below(touch.code);
  });
}

// Its end may take blocks of this name: it wrote one of them or something below it, or used it, and who did
// so besides may have ended.
bool World::MayTake(std::uint32_t ns, BlockCode code, std::uint64_t conversation) {
  for (BlockCode below = 1; below < kCodes; ++below) {
    if (!model_.Below(ns, below, code)) continue;
    for (std::uint16_t group = 0; group < trees_[ns].groups(); ++group) {
      for (const PutNo put : model_.PutsOf({ns, group, below}))
        if (model_.put(put).conversation == conversation) return true;
    }
    if (touches_.contains({ns, below, conversation})) return true;
  }
  return false;
}

// For certain, since the node's start.
bool World::HitByOthers(const Sighted& what, std::uint64_t conversation) const {
  return std::ranges::any_of(uses_, [&](const ConversationUse& use) {
    return use.boot == boots_ && use.conversation != conversation && use.what.block == what.block &&
           use.what.put == what.put;
  });
}

// Nothing but notes leads from a block that was hit up to what it hangs below.
bool World::UnderNoted(const BlockId& block) {
  const auto chain = ChainOf(block.code);
  return std::ranges::all_of(chain, [&](BlockCode code) {
    const auto seen = See({block.ns, block.group, code});
    return seen && model_.put(seen->put).conversation != 0;
  });
}

// How much has left memory but for drops.
std::uint64_t World::WhatLeft() {
  return node() == nullptr ? 0 : Cuts() + node()->store().counters().evicted.value();
}

World::Ending World::BeginEnding(std::uint32_t ns, std::uint64_t conversation) {
  Ending ending{ns, conversation, incarnations_[ns], model_.Now(),  {}, {},
                {}, boots_,       WhatLeft(),        ++drops_asked_};
  for (BlockCode code = 1; code < kCodes; ++code) {
    for (std::uint16_t group = 0; group < trees_[ns].groups(); ++group) {
      const BlockId block{ns, group, code};
      const auto seen = See(block);
      if (!seen || model_.put(seen->put).conversation != conversation) continue;
      // What notes were forgotten, and who descends from whom, is known only where neither is doubtful.
      if (options_.max_noted_blocks < kCodes || model_.odd_parents(ns)) continue;
      if (!UsedByOthers(*seen, conversation)) {
        ending.its_own.push_back(*seen);
      } else if (trees_[ns].groups() == 1 && HitByOthers(*seen, conversation) && UnderNoted(block)) {
        ending.shared.push_back(*seen);
      }
    }
    if (MayTake(ns, code, conversation)) ending.codes.push_back(code);
  }
  // What it has used is nobody's to keep for it any more.
  over_.insert({ns, conversation});
  std::erase_if(uses_, [&](const ConversationUse& use) {
    return use.what.block.ns == ns && use.conversation == conversation;
  });
  return ending;
}

void World::EndConversation(Call& call, std::uint32_t ns) {
  Ending ending = BeginEnding(ns, call.number);
  ++ends_[{ns, call.number}].under_way;
  for (const BlockCode code : ending.codes) {
    Disturb(ns, code);
    dropping_.emplace_back(ns, code);
  }
  model_.Trace("end of conversation ", ending.conversation, " of namespace ", ns,
               " asked: ", ending.its_own.size(), " blocks are its own, ", ending.shared.size(),
               " were hit by others");
  call.answered = [this, ending = std::move(ending)](Call& answer) {
    model_.Trace("end of conversation ", ending.conversation, " asked at ", ending.asked,
                 " answered: ", answer.status.ToString());
    if (answer.lost || !answer.status.ok()) return;  // some of it may have come to pass, or may yet
    EndEnding(ending, answer);
  };
}

void World::EndEnding(const Ending& ending, const Call& answer) {
  const std::uint32_t ns = ending.ns;
  std::vector<BlockCode> codes = ending.codes;
  if (const auto ends = ends_.find({ns, ending.conversation});
      ends != ends_.end() && --ends->second.under_way == 0) {
    codes.insert(codes.end(), ends->second.used.begin(), ends->second.used.end());
    ends_.erase(ends);
  }
  for (const BlockCode code : codes) {
    const auto at = std::ranges::find(dropping_, std::pair(ns, code));
    if (at != dropping_.end()) dropping_.erase(at);
    Disturb(ns, code);
  }
  for (const Sighted& own : ending.its_own) {
    if (incarnations_[ns] != ending.incarnation || UsedByOthers(own, ending.conversation)) continue;
    model_.Dropped(ns, own.block.code, ending.asked);
    const auto now = See(own.block);
    if (now && now->put == own.put && now->born == own.born) {
      Violation(Text(TextOf(own.block), " put ", own.put, " is there after the end of conversation ",
                     ending.conversation, ", which alone wrote and used it"));
    }
  }
  for (std::uint64_t& talk : talks_[ns]) {
    if (talk == ending.conversation) talk = ++conversations_;
  }
  // What another one has hit goes with nothing but what may take any block.
  const bool alone = ending.boot == boots_ && ending.changes == WhatLeft() && ending.drops == drops_asked_ &&
                     dropping_.empty() && incarnations_[ns] == ending.incarnation && !has_lower_tier();
  if (!alone || trees_[ns].drop_ends_orphans()) return;
  for (const Sighted& shared : ending.shared) {
    if (Harmed(shared.block) || model_.put(shared.put).ttl_s != 0) continue;
    const auto now = See(shared.block);
    if (now && now->put == shared.put) continue;
    Violation(Text(TextOf(shared.block), " put ", shared.put, " went with the end of conversation ",
                   ending.conversation, " and another one has hit it: ", answer.value,
                   " blocks were dropped"));
  }
}

}  // namespace cistern::storm
