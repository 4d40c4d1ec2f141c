// SPDX-License-Identifier: Apache-2.0
// Notes of which conversation uses which block, made anew at a start: from the stamps of the records that
// were found, which name who wrote them, and from the journal's ends of conversations.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/task.h"
#include "residency/context.h"
#include "store/recovery_state.h"

namespace cistern::store {

class RecoveredNotes final {
 public:
  RecoveredNotes(const residency::StoreContext& context, RecoveryState& state)
      : context_(context), state_(state) {}
  RecoveredNotes(const RecoveredNotes&) = delete;
  RecoveredNotes& operator=(const RecoveredNotes&) = delete;

  Executor& executor() { return context_.executor; }

  // Awaited once, when the records that do not stay are gone; state.written is empty then.
  Task<void> Make();
  // Ends of which a record from before them was found, or may have been: the others have nothing left to end.
  Task<std::vector<catalog::ConversationEnd>> NeededEnds();

 private:
  struct End {
    catalog::ConversationEnd end;
    bool needed = false;
  };

  Task<void> FindEnds();
  Task<std::uint64_t> UnusedNumber();

  const residency::StoreContext context_;
  RecoveryState& state_;
  std::map<std::pair<catalog::TreeId, std::uint64_t>, End> ends_;  // the last of each conversation
};

}  // namespace cistern::store
