// SPDX-License-Identifier: Apache-2.0
// Which records are written to the lower tier, and when, by their namespace's policy; and by the price of a
// write there, of which this is the node's.
#pragma once

#include <cstdint>

#include "policy/write_price.h"
#include "residency/context.h"
#include "residency/lower_tier.h"
#include "residency/residents.h"

namespace cistern::residency {

class WriteWorth final {
 public:
  WriteWorth(const StoreContext& context, LowerTier& lower, Residents& residents)
      : context_(context), lower_(lower), residents_(residents) {}
  WriteWorth(const WriteWorth&) = delete;
  WriteWorth& operator=(const WriteWorth&) = delete;

  // The lower tier takes records of its size.
  bool Fits(const catalog::Record& record) const {
    return lower_.present() && record.body_bytes <= lower_->max_append_bytes();
  }
  // The record was put, into memory, and there is a lower tier. False: its namespace asks for what is worth
  // its write, and it is not.
  bool NotePut(catalog::RecordId record);
  // The price is worked out anew where it is old; puts do so too. So what was not worth its write at the last
  // put may be later, without another one.
  void Refresh();
  // Of records in memory. The record is to have a copy in the lower tier before it leaves memory.
  bool Wanted(catalog::RecordId record) const;
  // It is written now: at its put, where `uses` is 0, or at that use.
  bool WrittenAtUse(catalog::RecordId record, std::uint32_t uses) const;
  // It is written now that the tier gave up its copy.
  bool WrittenAnew(catalog::RecordId record) const;

 private:
  bool Pays(const policy::LowerPolicy& policy, catalog::RecordId record) const {
    return policy.admit != Admission::kWorth ||
           price_.Pays(residents_.order(), residents_.order().ClassOf(record));
  }

  const StoreContext context_;
  LowerTier& lower_;
  Residents& residents_;
  policy::WritePrice price_;
};

}  // namespace cistern::residency
