// SPDX-License-Identifier: Apache-2.0
#include "store/cell_drops.h"

#include <algorithm>
#include <deque>
#include <vector>

namespace cistern::store {

Task<std::uint64_t> CellDrops::BeginKeys(std::uint32_t slot, std::span<const BlockKey> keys) {
  if (drops_.HasRoom(keys.size())) co_return co_await drops_.Begin(slot, keys);
  context_.counters.widened_drops.Add();
  co_return co_await namespaces_.Renew(slot);
}

Task<std::uint64_t> CellDrops::BeginNamespace(std::uint32_t slot) { return namespaces_.Renew(slot); }

Task<std::uint64_t> CellDrops::BeginEnd(std::uint32_t slot, std::uint64_t conversation) {
  const catalog::NamespaceEntry* before = context_.namespaces.at(slot);
  if (before == nullptr) co_return 0;
  const std::uint64_t incarnation = before->incarnation;
  const catalog::Conversations::Ending ending(context_.conversations, context_.catalog.TreeOf(slot),
                                              conversation);
  auto [tops, ended] = co_await drops_.TakeConversation(slot, conversation);
  std::uint64_t blocks = 0;
  while (!tops.empty()) {
    // What was there under another incarnation is gone.
    const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
    if (entry == nullptr || entry->incarnation != incarnation) break;
    const auto end = tops.begin() + static_cast<std::ptrdiff_t>(std::min(tops.size(), kTopsAtOnce));
    const std::vector<BlockKey> keys(tops.begin(), end);
    tops.erase(tops.begin(), end);
    blocks += co_await BeginKeys(slot, keys);
  }
  if (ended) context_.journal.NoteConversationEnd(*ended);
  co_return blocks;
}

Task<std::uint64_t> CellDrops::BeginAll() {
  std::uint64_t blocks = 0;
  for (std::uint32_t slot = 0; slot < context_.namespaces.end(); ++slot) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    blocks += co_await namespaces_.Renew(slot);
  }
  co_return blocks;
}

Task<std::uint64_t> CellDrops::BeginAllEnds() {
  std::uint64_t blocks = 0;
  const catalog::Conversations& conversations = context_.conversations;
  const std::uint32_t end = conversations.talk_end();
  for (std::uint32_t at = 0; at < end; ++at) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    const auto talk = conversations.TalkAt(at);
    const catalog::NamespaceEntry* entry = talk ? context_.catalog.EntryOf(talk->tree) : nullptr;
    if (entry != nullptr) blocks += co_await BeginEnd(entry->slot, talk->conversation);
  }
  co_return blocks;
}

}  // namespace cistern::store
