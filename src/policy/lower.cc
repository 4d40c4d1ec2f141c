// SPDX-License-Identifier: Apache-2.0
#include "policy/lower.h"

#include "base/format.h"

namespace cistern {

std::string_view WritePolicyName(WritePolicy policy) {
  switch (policy) {
    case WritePolicy::kThrough: return "through";
    case WritePolicy::kBack: return "back";
    case WritePolicy::kSelective: return "selective";
  }
  return "";
}

std::string_view AdmissionName(Admission admission) {
  return admission == Admission::kAll ? "all" : "second-hit";
}

Result<WritePolicy> ParseWritePolicy(std::string_view name) {
  for (const WritePolicy policy : {WritePolicy::kThrough, WritePolicy::kBack, WritePolicy::kSelective}) {
    if (name == WritePolicyName(policy)) return policy;
  }
  return Error(Code::kInvalid,
               Text("there is no write policy '", name, "'; known: through, back, selective"));
}

Result<Admission> ParseAdmission(std::string_view name) {
  for (const Admission admission : {Admission::kAll, Admission::kSecondHit}) {
    if (name == AdmissionName(admission)) return admission;
  }
  return Error(Code::kInvalid, Text("there is no admission '", name, "'; known: all, second-hit"));
}

}  // namespace cistern
