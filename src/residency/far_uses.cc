// SPDX-License-Identifier: Apache-2.0
#include "residency/far_uses.h"

namespace cistern::residency {

void FarUses::Note(catalog::RecordId record) {
  catalog::Record& r = context_.forest.record(record);
  if (!context_.slots.IsFar(r.place) || r.is(catalog::Record::kUsedFar) || waiting_.size() >= kMost) return;
  r.flags |= catalog::Record::kUsedFar;
  waiting_.push_back(context_.catalog.HandleOf(record));
}

void FarUses::Start() {
  if (waiting_.empty() || running_ || lower_.closed()) return;
  running_ = true;
  lower_.Spawn(MoveNear());
}

// One round: what is held has its turn again in the next.
Task<void> FarUses::MoveNear() {
  co_await Yield();
  for (std::size_t left = waiting_.size(); left > 0 && !lower_.closed(); --left) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    const catalog::RecordHandle handle = waiting_.front();
    waiting_.pop_front();
    if (!context_.catalog.Lives(handle)) continue;
    catalog::Record& r = context_.forest.record(handle.record);
    const bool far = r.in_memory() && context_.slots.IsFar(r.place);
    if (far && r.references > 0) {
      waiting_.push_back(handle);
      continue;
    }
    r.flags &= static_cast<std::uint8_t>(~catalog::Record::kUsedFar);
    const auto may = [this](catalog::RecordId id) {
      context_.steps.Count();
      return context_.forest.record(id).references == 0;
    };
    if (far && policy::MovesNear(residents_.order(), far_memory_, handle.record, may))
      co_await room_.MoveNear(handle.record);
  }
  running_ = false;
}

}  // namespace cistern::residency
