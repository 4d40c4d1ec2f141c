// SPDX-License-Identifier: Apache-2.0
#include "residency/quota_sweep.h"

namespace cistern::residency {
namespace {

constexpr std::uint32_t kLooks = 16'384;  // then others have the core for so long
// In one step, so that a table of few blocks is gone round while nothing comes or goes.
constexpr std::uint32_t kRoundTouches = 300;
constexpr std::int64_t kRoundUs = 40'000;
// After two rounds in vain: all of it is in memory, used, or has descendants.
constexpr std::int64_t kVainUs = 1'000'000;

}  // namespace

bool QuotaSweep::AnyFull() const {
  for (std::size_t i = 1; i <= context_.options.quotas.quotas().size(); ++i) {
    if (context_.options.quotas.FullBelow(static_cast<policy::QuotaGroup>(i),
                                          context_.catalog.counted().below()))
      return true;
  }
  return false;
}

bool QuotaSweep::Sweep() {
  // A block's standing cannot be told while much is being collected.
  if (!lower_.present() || !AnyFull() || context_.clock.Now() < rests_until_ || context_.forest.collecting())
    return false;
  for (; !context_.steps.Spent(kRoundTouches); ++hand_) {
    if (hand_ >= context_.forest.block_end()) hand_ = 0;
    context_.steps.Count();
    in_vain_ = GiveUp(hand_) ? 0 : in_vain_ + 1;
    const bool vain = in_vain_ >= 2 * std::uint64_t{context_.forest.block_end()};
    if (++looks_ < kLooks && !vain) continue;
    rests_until_ = context_.clock.Now().PlusUs(vain ? kVainUs : kRoundUs);
    looks_ = 0;
    if (vain) in_vain_ = 0;
    return false;
  }
  return true;
}

bool QuotaSweep::GiveUp(catalog::BlockId block) {
  catalog::Block& b = context_.forest.block(block);
  if (!b.has_key() || b.is(catalog::Block::kCut) || b.placeholder() || b.first_child != catalog::kNoId)
    return false;
  const policy::QuotaGroup group = context_.catalog.GroupOf(b.tree);
  if (!context_.options.quotas.FullBelow(group, context_.catalog.counted().below())) return false;
  if (context_.pending.NextChildOf(b.tree, b.key_hash(), catalog::kNoId) != catalog::kNoId) return false;
  if (WasUsed(b) || !LetGo(b)) return false;
  context_.steps.Count(4);
  ++context_.catalog.counted().At(b.tree).evicted;
  context_.catalog.gone().Note(b.key_hash(), catalog::WentBy::kEvicted);
  context_.counters.evicted_below_over_quota.Add();
  removal_.RemoveRecordsOf(block);
  removal_.Settle(block);
  return true;
}

bool QuotaSweep::WasUsed(catalog::Block& block) {
  if (block.folded()) {
    const bool used = block.is(catalog::Block::kTouched);
    block.flags &= static_cast<std::uint16_t>(~catalog::Block::kTouched);
    return used;
  }
  bool used = false;
  for (catalog::RecordId id = block.first_record; id != catalog::kNoId;
       id = context_.forest.record(id).next) {
    context_.steps.Count();
    catalog::Record& r = context_.forest.record(id);
    if (r.in_memory()) return true;
    used = used || r.is(catalog::Record::kTouched);
    r.flags &= static_cast<std::uint8_t>(~catalog::Record::kTouched);
  }
  return used;
}

bool QuotaSweep::LetGo(const catalog::Block& block) {
  if (block.folded()) return true;
  for (catalog::RecordId id = block.first_record; id != catalog::kNoId;
       id = context_.forest.record(id).next) {
    context_.steps.Count();
    partial_copies_.EndIfIdle(id);
    if (context_.forest.record(id).references > 0) return false;
  }
  return true;
}

}  // namespace cistern::residency
