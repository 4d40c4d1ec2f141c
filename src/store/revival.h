// SPDX-License-Identifier: Apache-2.0
// What a recovery knows besides the tree that it makes, for recover.cc and recover_flash.cc alone.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include "store/impl.h"

namespace cistern {

struct BlockStore::Impl::Revival {
  Revival(Impl& impl, Journal::Contents contents)
      : recovery(impl.words_, impl.slots_),
        journal(std::move(contents)),
        parents(impl.tree_.max_blocks() + 2 * kMaxNamespaces),
        sequences(impl.max_record_ids_),
        born(impl.options_.max_lower_blocks == 0 ? 0 : impl.tree_.max_blocks() + 2 * kMaxNamespaces),
        placed(born.size()),
        placed_records(impl.options_.max_lower_blocks == 0 ? 0 : impl.max_record_ids_) {}

  static Tag ParentTag(RealmId realm, const BlockKey& parent) {
    return parent.none() ? 0 : TagOf(realm, parent);
  }
  std::uint64_t BornOf(const Tree& tree, BlockId block, const Tree::Copy& copy) const {
    return copy.record == kNoId ? born[block] : tree.record(copy.record).born;
  }

  Recovery recovery;
  Journal::Contents journal;
  std::unordered_map<std::uint64_t, RealmId> realms;  // by incarnation
  LazyArray<Tag> parents;                             // by block; 0: none
  LazyArray<std::uint64_t> sequences;                 // by record, of its stamp in memory
  LazyArray<std::uint64_t> born, placed;              // by folded block: born, and the sequence of its stamp
  LazyArray<std::uint64_t> placed_records;            // by record, of its stamp on flash
  std::uint64_t last_below = 0;                       // the highest sequence or born on flash
  std::vector<std::uint64_t> floors;                  // by block; empty without tombstones
  std::vector<std::uint64_t> memory_floors;           // the same for what is in memory, which drops reached
  std::unordered_map<BlockId, std::uint64_t> dropped;
  std::unordered_map<BlockId, std::uint64_t> orphaned;  // homes of orphans: by any drop of their namespace
  std::vector<BlockId> order;                           // parents before children
};

}  // namespace cistern
