// SPDX-License-Identifier: Apache-2.0
#include "residency/verifier.h"

#include "memory/movers.h"

namespace cistern::residency {

Task<bool> Verifier::Verify(catalog::RecordHandle handle) {
  const catalog::Record r = forest_.record(handle.record);
  SlotUse use(residents_, r.place);
  memory::VerifyTask check(movers_, slots_.arena(), r.place, r.body_bytes, r.part_count());
  co_await check;
  use.End();
  catalog::Record& now = forest_.record(handle.record);
  if (!catalog_.Lives(handle)) co_return false;
  if (check.sound()) {
    now.flags |= catalog::Record::kVerified;
    co_return true;
  }
  counters_.cut_bad.Add();
  if (now.in_lower_tier()) {
    log_.Log(LogLevel::kWarning, "block ", now.key.ToHex(), ": its record at place ", r.place,
             " fails its seal; the one in the lower tier is left");
    residents_.Leave(handle.record);
    co_return false;
  }
  log_.Log(LogLevel::kWarning, "block ", now.key.ToHex(), ": its record at place ", r.place,
           " fails its seal; it goes with what descends from it");
  owner_.Lose(now.block, LossReason::kBad);
  co_return false;
}

}  // namespace cistern::residency
