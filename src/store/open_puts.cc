// SPDX-License-Identifier: Apache-2.0
#include "store/open_puts.h"

#include "arena/protocol.h"

namespace cistern {

void OpenPuts::GiveSlot(PutIndex put, Place place) {
  Put& p = pending_[put];
  if (p.state != Put::State::kOpen || p.has_slot) {
    slots_.Free(place);
    return;
  }
  slots_.Pin(place);
  p.place = place;
  p.generation = BeginFill(words_, slots_.arena(), place);
  p.has_slot = true;
  steps_.Count(2);
}

void OpenPuts::FreeSlot(PutIndex put) {
  Put& p = pending_[put];
  if (!p.has_slot || p.writing != 0) return;
  p.has_slot = false;
  slots_.Unpin(p.place);
  slots_.Free(p.place);
}

void OpenPuts::End(PutIndex put, Code why) {
  Put& p = pending_[put];
  steps_.Count(2);
  p.state = Put::State::kEnded;
  p.end = why;
  if (why == Code::kOk) counters_.present.Add();
  if (why == Code::kBusy) counters_.busy.Add();
  pending_.Close(put);
  FreeSlot(put);
  // The put kept its parent, which may be evicted again.
  if (const BlockId parent = forest_.Find(p.name.tree, p.parent); parent != kNoId) removal_.Unpark(parent);
  if (p.users == 0) pending_.Free(put);
}

void OpenPuts::Leave(PutIndex put) {
  Put& p = pending_[put];
  if (--p.users == 0 && p.state != Put::State::kOpen) pending_.Free(put);
}

}  // namespace cistern
