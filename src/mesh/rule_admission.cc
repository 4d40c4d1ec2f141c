// SPDX-License-Identifier: Apache-2.0
#include "mesh/rule_admission.h"

#include <algorithm>
#include <utility>

#include "mesh/peer_message.h"

namespace cistern::mesh {

RuleAdmission::RuleAdmission(const CellRule& rule, const SharedNamespace& name, ChainCheck& check,
                             Record record, Reader reader)
    : rule_(rule), name_(name), check_(check), record_(std::move(record)), reader_(reader) {}

store::Admission::Answer RuleAdmission::Look(std::uint32_t* touches) {
  if (!rule_.Same(record_.answered)) {
    verdict_ = Verdict::kBehind;
    return Answer::kRefuse;
  }
  const std::size_t before = check_.looked();
  if (!check_.Step(*touches)) {
    *touches = 0;
    return Answer::kMore;
  }
  // The namespace and the notes beside what the check has looked at.
  *touches -= static_cast<std::uint32_t>(std::min<std::size_t>(*touches, check_.looked() - before + 2));
  verdict_ = check_.verdict();
  if (verdict_ != Verdict::kTake) return Answer::kRefuse;
  notes_ = record_.notes;
  verdict_ = rule_.drops().CheckNotes(name_, &notes_, record_.answered.a);
  if (verdict_ != Verdict::kTake) return Answer::kRefuse;
  AddReader();
  return Answer::kTake;
}

// What is shared stays so. Past their bound of notes it is shared from now on.
void RuleAdmission::AddReader() {
  const std::uint64_t conversation = reader_.conversation;
  if (conversation == 0 || notes_.empty() || std::ranges::find(notes_, conversation) != notes_.end()) return;
  std::vector<std::uint64_t> own = {conversation};
  if (rule_.drops().CheckNotes(name_, &own, reader_.began) != Verdict::kTake) return;
  notes_.push_back(conversation);
  if (notes_.size() > PeerMessageLimits::kNotes) notes_.clear();
}

}  // namespace cistern::mesh
