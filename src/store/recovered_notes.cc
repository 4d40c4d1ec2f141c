// SPDX-License-Identifier: Apache-2.0
#include "store/recovered_notes.h"

#include <optional>

#include "base/random.h"

namespace cistern::store {

// What a conversation wrote before its end is noted as that of nobody's number, so that who builds on it is
// noted of it too; then nobody's notes are taken. What it wrote afterwards is its own.
Task<void> RecoveredNotes::Make() {
  co_await FindEnds();
  const std::uint64_t nobody = co_await UnusedNumber();
  // By their stamps, so that of the conversations the one that wrote last is the last to be forgotten.
  while (!state_.written.empty()) {
    context_.steps.Count(4);
    if (context_.steps.Spent()) co_await Yield();
    const WrittenRecord& one = state_.written.TakeEarliest();
    const auto end = ends_.find({one.tree, one.conversation});
    const bool ended = end != ends_.end() && one.sequence < end->second.end.sequence;
    if (ended) end->second.needed = true;
    // A record that was dropped, or that another put replaced, is nothing to the block that has its name now.
    const catalog::BlockId block = context_.forest.Find(one.tree, one.key);
    const auto copy = block == catalog::kNoId ? std::nullopt : context_.forest.See(block, one.group);
    if (copy && state_.BornOf(context_.forest, block, *copy) == one.born)
      context_.conversations.Wrote(one.tree, one.key, one.parent, ended ? nobody : one.conversation);
  }
  state_.written.Clear();
  for (catalog::NoteId from = 0;;) {
    std::uint32_t budget = kSpentTouches / 2;
    const bool more = context_.conversations.RelateSome(&from, &budget);
    context_.steps.Count(kSpentTouches / 2 - budget);
    if (!more) break;
    co_await Yield();
  }
  co_await context_.catalog.ShareUses();
  for (const auto& [of, end] : ends_) {
    do {
      context_.steps.Count(4);
      if (context_.steps.Spent()) co_await Yield();
    } while (context_.conversations.TakeLast(of.first, nobody));
  }
}

Task<std::vector<catalog::ConversationEnd>> RecoveredNotes::NeededEnds() {
  std::vector<catalog::ConversationEnd> needed;
  for (const auto& [of, end] : ends_) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    if (end.needed || state_.written.left_out()) needed.push_back(end.end);
  }
  co_return needed;
}

Task<void> RecoveredNotes::FindEnds() {
  for (const catalog::ConversationEnd& end : state_.journal.conversation_ends) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    // Rising, so the last one stays.
    if (const auto tree = state_.trees.find(end.incarnation); tree != state_.trees.end())
      ends_[{tree->second, end.conversation}] = {end};
  }
}

// That no conversation has which wrote anything here.
Task<std::uint64_t> RecoveredNotes::UnusedNumber() {
  std::uint64_t number = ~std::uint64_t{0};
  const std::vector<WrittenRecord>& written = state_.written.records();
  for (std::size_t i = 0; !ends_.empty() && i < written.size(); ++i) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    if (written[i].conversation != number) continue;
    // Another one, and all are looked at anew.
    number = SplitMix(number) | 1;
    i = std::size_t{0} - 1;
  }
  co_return number;
}

}  // namespace cistern::store
