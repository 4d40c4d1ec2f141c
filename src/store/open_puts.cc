// SPDX-License-Identifier: Apache-2.0
#include "store/open_puts.h"

#include "arena/protocol.h"

namespace cistern::store {

void OpenPuts::GiveSlot(catalog::PutIndex put, arena::Place place) {
  catalog::Put& p = pending_[put];
  if (p.state != catalog::Put::State::kOpen || p.has_slot) {
    slots_.Free(place);
    return;
  }
  slots_.Pin(place);
  p.place = place;
  p.generation = arena::BeginFill(words_, slots_.arena(), place);
  p.has_slot = true;
  steps_.Count(2);
}

void OpenPuts::FreeSlot(catalog::PutIndex put) {
  catalog::Put& p = pending_[put];
  if (!p.has_slot || p.writing != 0) return;
  p.has_slot = false;
  slots_.Unpin(p.place);
  slots_.Free(p.place);
}

void OpenPuts::End(catalog::PutIndex put, Code why) {
  catalog::Put& p = pending_[put];
  steps_.Count(2);
  p.state = catalog::Put::State::kEnded;
  p.end = why;
  if (why == Code::kOk) counters_.present.Add();
  if (why == Code::kBusy) counters_.busy.Add();
  pending_.Close(put);
  FreeSlot(put);
  // The put kept its parent, which may be evicted again.
  if (const catalog::BlockId parent = forest_.Find(p.name.tree, p.parent); parent != catalog::kNoId)
    removal_.Unpark(parent);
  if (p.users == 0) pending_.Free(put);
}

void OpenPuts::Leave(catalog::PutIndex put) {
  catalog::Put& p = pending_[put];
  if (--p.users == 0 && p.state != catalog::Put::State::kOpen) pending_.Free(put);
}

}  // namespace cistern::store
