// SPDX-License-Identifier: Apache-2.0
#include "store/prompts.h"

#include <optional>
#include <utility>

namespace cistern::store {

void Prompts::Note(std::uint32_t slot, MatchedPrompt prompt) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  if (!residents_.order().learns() || tree == catalog::kNoId || prompt.keys.empty() ||
      prompt.keys.size() > kMostKeys)
    return;
  const BlockKey& waits_for =
      prompt.first_new < prompt.keys.size() ? prompt.keys[prompt.first_new] : prompt.keys.back();
  const catalog::KeyHash hash = catalog::KeyHashOf(tree, waits_for);
  context_.steps.Count(2);
  if (const auto same = by_key_.find(hash); same != by_key_.end()) Take(same->second);
  std::optional<catalog::KeyHash> read;
  if (prompt.first_asked < prompt.first_new) read = catalog::KeyHashOf(tree, prompt.keys[prompt.first_asked]);
  keys_ += prompt.keys.size();
  noted_.push_back({hash, read, std::move(prompt)});
  by_key_[hash] = std::prev(noted_.end());
  if (read) by_read_[*read] = std::prev(noted_.end());
  while (noted_.size() > kMostNotes || keys_ > kMostKeys) Take(noted_.begin());
}

Prompts::ByKey::const_iterator Prompts::FindNote(catalog::TreeId tree, const BlockKey& key,
                                                 std::size_t touched) const {
  const auto found = by_key_.find(catalog::KeyHashOf(tree, key));
  if (found == by_key_.end()) return found;
  const MatchedPrompt& prompt = found->second->prompt;
  const bool has_new = prompt.first_new < prompt.keys.size();
  const bool it = touched == 0 ? has_new : !has_new && prompt.matched == touched;
  return it ? found : by_key_.end();
}

MatchedPrompt Prompts::Take(std::list<Noted>::iterator noted) {
  by_key_.erase(noted->waits_for);
  if (noted->read) {
    const auto read = by_read_.find(*noted->read);
    if (read != by_read_.end() && read->second == noted) by_read_.erase(read);
  }
  MatchedPrompt prompt = std::move(noted->prompt);
  keys_ -= prompt.keys.size();
  noted_.erase(noted);
  return prompt;
}

Task<void> Prompts::TakeIn(catalog::TreeId tree, MatchedPrompt matched) {
  policy::Order& order = residents_.order();
  policy::Reuse::Prompt prompt({.blocks = matched.matched + matched.keys.size() - matched.first_new,
                                .resident = matched.matched,
                                .partial = matched.partial,
                                .hints = matched.hints});
  residents_.NoteTime();
  order.Begin(prompt);
  context_.steps.Count(8);  // the runs that pass an age, in the cache
  const std::size_t known = matched.first_new > 0 ? matched.first_new - 1 : 0;
  for (std::size_t i = known; i < matched.keys.size(); ++i) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    const catalog::KeyHash key_hash = catalog::KeyHashOf(tree, matched.keys[i]);
    if (turns_.Awaits(key_hash)) co_await turns_.Came(key_hash);
    order.Look(prompt, matched.matched + i - matched.first_new, key_hash);
  }
  if (context_.steps.Spent()) co_await Yield();
  catalog::BlockId deepest = catalog::kNoId;
  std::optional<policy::EntryId> last;
  if (matched.first_new > 0) {
    deepest = context_.catalog.Find(tree, matched.keys[known]);
    const catalog::RecordId record = deepest == catalog::kNoId ? catalog::kNoId : residents_.FirstOf(deepest);
    if (record != catalog::kNoId) last = record;
  }
  order.Classify(prompt, last);
  context_.steps.Count(16);  // what is learned of its classes is worked out anew
  co_await UseResident(tree, deepest, matched.matched, prompt);
  order.End(prompt);
  context_.steps.Count(16);
  const std::size_t whole = matched.keys.size() - (matched.partial ? 1 : 0);
  if (matched.hints.next_turn_ms > 0 && whole > 0 && context_.catalog.EntryOf(tree) != nullptr)
    turns_.Tell(tree, catalog::KeyHashOf(tree, matched.keys[whole - 1]), matched.hints.next_turn_ms);
}

// From leaf to root, along the parents.
Task<void> Prompts::UseResident(catalog::TreeId tree, catalog::BlockId deepest, std::uint64_t blocks,
                                policy::Reuse::Prompt& prompt) {
  catalog::BlockId at = deepest;
  for (std::uint64_t position = blocks; position > 0 && at != catalog::kNoId;) {
    if (!context_.forest.block(at).has_key()) co_return;
    const catalog::KeyHash key_hash = context_.forest.block(at).key_hash();
    if (context_.steps.Spent() || turns_.Awaits(key_hash)) {
      co_await turns_.Came(key_hash);
      if (context_.steps.Spent()) co_await Yield();
      // The id may be another block's by then.
      if (context_.catalog.EntryOf(tree) == nullptr) co_return;
      at = context_.catalog.FindKeyHash(tree, key_hash);
      continue;
    }
    UseBlock(at, --position, prompt);
    at = context_.forest.block(at).parent;
  }
}

void Prompts::UseBlock(catalog::BlockId block, std::uint64_t position, policy::Reuse::Prompt& prompt) {
  policy::Order& order = residents_.order();
  const catalog::RecordId first = residents_.FirstOf(block);
  context_.steps.Count(2);
  if (first == catalog::kNoId) {
    order.Use(prompt, position, context_.forest.block(block).key_hash(), std::nullopt);
    return;
  }
  order.Use(prompt, position, context_.forest.block(block).key_hash(), first);
  for (catalog::RecordId r = context_.forest.record(first).next; r != catalog::kNoId;
       r = context_.forest.record(r).next) {
    context_.steps.Count();
    if (order.Contains(r)) order.Follow(r, first);
  }
}

}  // namespace cistern::store
