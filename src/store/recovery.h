// SPDX-License-Identifier: Apache-2.0
// Recovery of blocks after a start. A block stays if the chunk headers or the lower tier name it, its
// incarnation is current, it has not expired, its parent stays and was born before it, and no tombstone of
// an ancestor is younger (R10, R11). All others are retired here, before the first call. Each pass goes over
// all blocks in order and fetches ahead, because a million blocks are a million cache misses a pass
// otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/task.h"
#include "memory/recovery.h"
#include "residency/context.h"
#include "residency/journal_marks.h"
#include "residency/lower_records.h"
#include "residency/lower_tier.h"
#include "residency/residents.h"
#include "residency/tombstones.h"
#include "residency/write_back.h"
#include "store/deletions.h"
#include "store/recovered_notes.h"
#include "store/recovery_state.h"
#include "tier/tier.h"

namespace cistern::store {

class StoreRecovery final {
 public:
  StoreRecovery(const residency::StoreContext& context, residency::LowerTier& lower,
                residency::Residents& residents, residency::WriteBack& write_back,
                residency::Tombstones& tombstones, residency::JournalMarks& journal_marks,
                residency::LowerRecords& lower_records, Deletions& deletions,
                residency::OpenTierCall open_tier)
      : context_(context),
        lower_(lower),
        residents_(residents),
        write_back_(write_back),
        tombstones_(tombstones),
        journal_marks_(journal_marks),
        lower_records_(lower_records),
        deletions_(deletions),
        open_tier_(std::move(open_tier)) {}
  StoreRecovery(const StoreRecovery&) = delete;
  StoreRecovery& operator=(const StoreRecovery&) = delete;

  Executor& executor() { return context_.executor; }

  // Awaited once, before any other call to the store.
  Task<Status> Recover();

 private:
  // Dropped blocks, and homes of orphans: these may descend from any dropped block.
  Task<void> FindDropped(RecoveryState& state);
  Task<void> WriteAllBack(const RecoveryState& state);
  Task<void> ClearIndex();
  Task<void> Scan(RecoveryState& state);
  // The block of a record that was found; kNoId where there is no room for it, or its parent is another.
  catalog::BlockId BlockFor(RecoveryState& state, catalog::TreeId tree, const BlockKey& key,
                            const BlockKey& parent);
  void Admit(RecoveryState& state, const memory::RecoveredBlock& found);
  Task<void> LinkParents(RecoveryState& state);
  Task<void> KeepReachable(RecoveryState& state);
  void Judge(RecoveryState& state, catalog::BlockId block);
  void RefuseFolded(catalog::BlockId block);
  void RefuseRecord(catalog::RecordId record);
  Task<void> Refuse(RecoveryState& state);
  Task<void> FillIndex(RecoveryState& state);
  Task<Status> SettleNamespaces(RecoveryState& state, RecoveredNotes& notes);
  // ---- the lower tier ----
  // What in memory, on the media and in the journal is an older copy than the others know.
  void NoteOlderMemory(RecoveryState& state);
  void NoteOlderJournal(RecoveryState& state, const tier::JournalMark& seen, std::string_view where);
  void NoteOlderMedia(const RecoveryState& state);
  void NoteDamagedMemory(const RecoveryState& state);
  Task<Status> OpenTier(RecoveryState& state);
  Task<void> TickTier();
  Task<void> AdmitAll(RecoveryState& state, std::span<const tier::TierEntry> found);
  Task<Status> ScanLowerTier(RecoveryState& state);
  void AdmitLower(RecoveryState& state, const tier::TierEntry& found);
  void Adopt(catalog::TreeId tree, const catalog::Forest::Copy& copy);

  const residency::StoreContext context_;
  residency::LowerTier& lower_;
  residency::Residents& residents_;
  residency::WriteBack& write_back_;
  residency::Tombstones& tombstones_;
  residency::JournalMarks& journal_marks_;
  residency::LowerRecords& lower_records_;
  Deletions& deletions_;
  const residency::OpenTierCall open_tier_;
  bool recovering_ = true;
};

}  // namespace cistern::store
