// SPDX-License-Identifier: Apache-2.0
#include "residency/write_worth.h"

#include "policy/placement.h"

namespace cistern::residency {

bool WriteWorth::NotePut(catalog::RecordId record) {
  const catalog::Record& r = context_.forest.record(record);
  const policy::LowerPolicy policy = context_.catalog.LowerPolicyOf(r);
  if (policy.admit != Admission::kWorth) return true;
  price_.Offer(residents_.order().ClassOf(record), r.body_bytes, residents_.NowMs());
  Refresh();
  return Pays(policy, record);
}

void WriteWorth::Refresh() {
  const std::uint64_t now_ms = residents_.NowMs();
  if (!lower_.present() || !price_.Due(now_ms)) return;
  const tier::Tier::WriteCosts costs = lower_->write_costs();
  price_.Set(residents_.order(),
             {.turn_ms = costs.turn_ms,
              .moved = costs.moved,
              .budget_bytes_a_ms = costs.budget_bytes_a_ms,
              .saved = costs.saved},
             now_ms);
}

bool WriteWorth::Wanted(catalog::RecordId record) const {
  const catalog::Record& r = context_.forest.record(record);
  const policy::LowerPolicy policy = context_.catalog.LowerPolicyOf(r);
  return Fits(r) && policy::Wanted(policy, r.uses, Pays(policy, record));
}

bool WriteWorth::WrittenAtUse(catalog::RecordId record, std::uint32_t uses) const {
  const catalog::Record& r = context_.forest.record(record);
  const policy::LowerPolicy policy = context_.catalog.LowerPolicyOf(r);
  return Fits(r) && policy::WrittenAtUse(policy, uses, Pays(policy, record));
}

bool WriteWorth::WrittenAnew(catalog::RecordId record) const {
  const policy::LowerPolicy policy = context_.catalog.LowerPolicyOf(context_.forest.record(record));
  return policy.write.policy != WritePolicy::kBack && Wanted(record);
}

}  // namespace cistern::residency
