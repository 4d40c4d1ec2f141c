// SPDX-License-Identifier: Apache-2.0
#include "residency/verifier.h"

#include "memory/movers.h"

namespace cistern::residency {

Task<bool> Verifier::Verify(catalog::RecordHandle handle) {
  const catalog::Record r = context_.forest.record(handle.record);
  SlotUse use(residents_, r.place);
  memory::VerifyTask check(context_.movers, context_.slots.arena(), r.place, r.body_bytes, r.part_count());
  co_await check;
  use.End();
  catalog::Record& now = context_.forest.record(handle.record);
  if (!context_.catalog.Lives(handle)) co_return false;
  if (check.sound()) {
    now.flags |= catalog::Record::kVerified;
    co_return true;
  }
  context_.log.Log(
      LogLevel::kWarning, "block ", now.key.ToHex(), ": its record at place ", r.place, " fails its seal; ",
      now.in_lower_tier() ? "the one in the lower tier is left" : "it goes with what descends from it");
  evictor_.LoseBad(handle.record);
  co_return false;
}

}  // namespace cistern::residency
