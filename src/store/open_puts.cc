// SPDX-License-Identifier: Apache-2.0
#include "store/open_puts.h"

#include <algorithm>

#include "arena/protocol.h"
#include "base/format.h"

namespace cistern::store {

Status OpenPuts::CheckHash(catalog::TreeId tree, const BlockKey& key) const {
  const catalog::KeyHash hash = catalog::KeyHashOf(tree, key);
  const std::uint32_t blocks = context_.catalog.CountKeyHash(hash, kMostOfOneHash);
  // Those of the key itself are as many as there are who write it: a look at the first of all is enough.
  std::uint32_t others = 0, looks = 0;
  for (catalog::PutIndex put = context_.pending.NextOf(tree, hash, catalog::kNoId);
       put != catalog::kNoId && looks < 2 * kMostOfOneHash; put = context_.pending.NextOf(tree, hash, put)) {
    ++looks;
    others += context_.pending[put].name.key != key;
  }
  context_.steps.Count(looks / 4);
  if (std::max(blocks, others) < kMostOfOneHash) return Status();
  return Status(Code::kBusy, Text("block ", key.ToHex(), ": ", kMostOfOneHash,
                                  " other blocks have the hash of its key, which chance never does"));
}

void OpenPuts::GiveSlot(catalog::PutIndex put, arena::Place place) {
  catalog::Put& p = context_.pending[put];
  if (p.state != catalog::Put::State::kOpen || p.has_slot) {
    context_.slots.Free(place);
    return;
  }
  context_.slots.Pin(place);
  p.place = place;
  p.generation = arena::BeginFill(context_.words, context_.slots.arena(), place);
  p.has_slot = true;
  context_.steps.Count(2);
}

void OpenPuts::FreeSlot(catalog::PutIndex put) {
  catalog::Put& p = context_.pending[put];
  if (!p.has_slot || p.writing != 0) return;
  p.has_slot = false;
  context_.slots.Unpin(p.place);
  context_.slots.Free(p.place);
}

void OpenPuts::End(catalog::PutIndex put, Code why) {
  catalog::Put& p = context_.pending[put];
  context_.steps.Count(2);
  p.state = catalog::Put::State::kEnded;
  p.end = why;
  if (why == Code::kOk) context_.counters.present.Add();
  if (why == Code::kBusy) context_.counters.busy.Add();
  context_.pending.Close(put);
  FreeSlot(put);
  // The put kept its parent, which may be evicted again.
  if (const catalog::BlockId parent = context_.forest.Find(p.name.tree, p.parent); parent != catalog::kNoId)
    removal_.Unpark(parent);
  if (p.users == 0) context_.pending.Free(put);
}

void OpenPuts::Leave(catalog::PutIndex put) {
  catalog::Put& p = context_.pending[put];
  if (--p.users == 0 && p.state != catalog::Put::State::kOpen) context_.pending.Free(put);
}

}  // namespace cistern::store
