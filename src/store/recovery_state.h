// SPDX-License-Identifier: Apache-2.0
// Facts that a recovery needs besides the forest that it makes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/journal.h"
#include "catalog/slab.h"
#include "memory/recovery.h"
#include "residency/context.h"
#include "store/written_records.h"

namespace cistern::store {

struct RecoveryState {
  RecoveryState(const residency::StoreContext& context, catalog::Journal::Contents contents)
      : recovery(context.words, context.slots),
        journal(std::move(contents)),
        parents(context.forest.max_blocks() + 2 * arena::kMaxNamespaces),
        sequences(context.catalog.max_records()),
        born(context.options.max_lower_blocks > 0 ? parents.size() : 0),
        placed(born.size()),
        placed_records(born.size() > 0 ? context.catalog.max_records() : 0),
        written(context.options.max_noted_blocks) {}

  static catalog::KeyHash ParentKeyHash(catalog::TreeId tree, const BlockKey& parent) {
    return parent.none() ? 0 : catalog::KeyHashOf(tree, parent);
  }
  std::uint64_t BornOf(const catalog::Forest& forest, catalog::BlockId block,
                       const catalog::Forest::Copy& copy) const {
    return copy.record == catalog::kNoId ? born[block] : forest.record(copy.record).born;
  }

  // Notes which conversation wrote a found record (memory::RecoveredBlock, tier::TierEntry), if one did.
  template <class Found>
  void NoteWritten(catalog::TreeId tree, const Found& found) {
    if (found.conversation != 0)
      written.Note(
          {tree, found.group, found.key, found.parent, found.born, found.conversation, found.sequence});
  }

  memory::Recovery recovery;
  catalog::Journal::Contents journal;
  // Nothing that memory holds is believed.
  bool memory_refused = false;
  // Memory was used with another journal: a namespace that this one does not know was not dropped by it.
  bool memory_is_anothers = false;
  bool journal_is_older = false;
  std::map<std::string, std::uint64_t> older_records;        // on media, by their names
  std::unordered_map<std::uint64_t, catalog::TreeId> trees;  // by incarnation
  catalog::LazyArray<catalog::KeyHash> parents;              // by block; 0: none
  catalog::LazyArray<std::uint64_t> sequences;               // by record, of its stamp in memory
  catalog::LazyArray<std::uint64_t> born, placed;    // by folded block: born, and the sequence of its stamp
  catalog::LazyArray<std::uint64_t> placed_records;  // by record, of its stamp in the lower tier
  std::uint64_t last_lower = 0;                      // the highest sequence or born in the lower tier
  std::vector<std::uint64_t> floors;                 // by block; empty without tombstones
  std::vector<std::uint64_t> memory_floors;          // the same for records in memory, which drops reached
  std::unordered_map<catalog::BlockId, std::uint64_t> dropped;
  std::unordered_map<catalog::BlockId, std::uint64_t>
      orphaned;                         // homes of orphans: by any drop of their namespace
  std::vector<catalog::BlockId> order;  // parents before children
  WrittenRecords written;               // whether the record stays or not
};

}  // namespace cistern::store
