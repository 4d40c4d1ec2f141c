// SPDX-License-Identifier: Apache-2.0
#include "store/survey.h"

#include <unordered_map>
#include <utility>

namespace cistern::store {

using catalog::Block;
using catalog::BlockId;
using catalog::TreeId;

Task<Survey::Uses> Survey::Take() {
  if (walking_) {
    while (walking_) co_await walked_.Wait();
    co_return last_;
  }
  walking_ = true;
  auto uses = std::make_shared<std::vector<NamespaceUse>>();
  co_await Walk(*uses);
  last_ = std::move(uses);
  walking_ = false;
  walked_.Pulse();
  co_return last_;
}

Task<void> Survey::Walk(std::vector<NamespaceUse>& uses) {
  catalog::NamespaceTable& table = context_.namespaces;
  std::unordered_map<TreeId, std::size_t> number_of;
  for (std::uint32_t slot = 0; slot < table.end(); ++slot) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    const catalog::NamespaceEntry* entry = table.at(slot);
    if (entry == nullptr) continue;
    // It is copied whole, fields and all.
    std::size_t bytes = 0;
    for (const auto& [name, value] : entry->fields) bytes += name.size() + value.size();
    context_.steps.Count(static_cast<std::uint32_t>(8 + entry->fields.size() + bytes / 1024));
    const TreeId tree = context_.catalog.TreeOf(slot);
    NamespaceUse& use = uses.emplace_back();
    use.entry = *entry;
    use.fingerprint = catalog::NamespaceTable::Fingerprint(*entry);
    use.memory.resize(entry->groups.size());
    use.lower.resize(entry->groups.size());
    use.owners = namespaces_.OwnersOf(slot);
    const catalog::NamespaceCounters& counted = context_.catalog.counted().of(slot);
    use.uses = counted.uses;
    if (counted.uses > 0) use.unused_us = context_.clock.Now().UsSince(counted.last_use);
    if (const policy::Quota* quota = namespaces_.QuotaOf(slot)) use.quota = policy::ToString(*quota);
    number_of[tree] = uses.size() - 1;
  }
  const catalog::Forest& forest = context_.forest;
  // The end moves while blocks are added; a walk that followed it might not end.
  const BlockId end = forest.block_end();
  TreeId tree = catalog::kNoId;
  NamespaceUse* use = nullptr;
  for (BlockId id = 0; id < end && id < forest.block_end(); ++id) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    const Block& block = forest.block(id);
    if (!block.has_key() || block.is(Block::kCut) || block.placeholder()) continue;
    if (block.tree != tree) {
      tree = block.tree;
      const auto found = number_of.find(tree);
      use = found == number_of.end() ? nullptr : &uses[found->second];
    }
    if (use != nullptr) context_.steps.Count(CountBlock(block, *use));
  }
}

std::uint32_t Survey::CountBlock(const Block& block, NamespaceUse& use) const {
  const catalog::Forest& forest = context_.forest;
  const auto add = [&use](const catalog::Forest::Copy& copy) {
    if (copy.group >= use.memory.size()) return;
    for (auto [there, tier] :
         {std::pair(copy.in_memory, &use.memory), std::pair(!copy.location.none(), &use.lower)}) {
      if (!there) continue;
      ++(*tier)[copy.group].records;
      (*tier)[copy.group].bytes += copy.body_bytes;
    }
  };
  ++use.blocks;
  if (block.folded()) {
    add(catalog::Forest::CopyOf(block));
    return 0;
  }
  std::uint32_t records = 0;
  for (catalog::RecordId id = block.first_record; id != catalog::kNoId; id = forest.record(id).next) {
    add(catalog::Forest::CopyOf(id, forest.record(id)));
    ++records;
  }
  return records;
}

}  // namespace cistern::store
