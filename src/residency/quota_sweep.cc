// SPDX-License-Identifier: Apache-2.0
#include "residency/quota_sweep.h"

namespace cistern::residency {
namespace {

constexpr std::uint32_t kLooks = 16'384;  // then others have the core for so long
constexpr std::int64_t kRoundUs = 40'000;
// After two rounds in vain: all of it is in memory, used, or has descendants.
constexpr std::int64_t kVainUs = 1'000'000;

}  // namespace

bool QuotaSweep::AnyFull() const {
  for (std::size_t i = 1; i <= options_.quotas.quotas().size(); ++i) {
    if (options_.quotas.FullBelow(static_cast<policy::QuotaGroup>(i), catalog_.counted().below()))
      return true;
  }
  return false;
}

bool QuotaSweep::Sweep() {
  // A block's standing cannot be told while much is being collected.
  if (!lower_.present() || !AnyFull() || clock_.Now() < rests_until_ || forest_.collecting()) return false;
  for (; !steps_.Spent(); ++hand_) {
    if (hand_ >= forest_.block_end()) hand_ = 0;
    steps_.Count();
    in_vain_ = GiveUp(hand_) ? 0 : in_vain_ + 1;
    const bool vain = in_vain_ >= 2 * std::uint64_t{forest_.block_end()};
    if (++looks_ < kLooks && !vain) continue;
    rests_until_ = clock_.Now().PlusUs(vain ? kVainUs : kRoundUs);
    looks_ = 0;
    if (vain) in_vain_ = 0;
    return false;
  }
  return true;
}

bool QuotaSweep::GiveUp(catalog::BlockId block) {
  catalog::Block& b = forest_.block(block);
  if (!b.has_key() || b.is(catalog::Block::kCut) || b.placeholder() || b.first_child != catalog::kNoId)
    return false;
  const policy::QuotaGroup group = catalog_.GroupOf(b.tree);
  if (!options_.quotas.FullBelow(group, catalog_.counted().below())) return false;
  if (pending_.NextChildOf(b.tree, b.key_hash(), catalog::kNoId) != catalog::kNoId) return false;
  if (WasUsed(b) || !LetGo(b)) return false;
  steps_.Count(4);
  ++catalog_.counted().At(b.tree).evicted;
  catalog_.gone().Note(b.key_hash(), catalog::WentBy::kEvicted);
  counters_.evicted_below_over_quota.Add();
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
  for (catalog::RecordId id = block.first_record; id != catalog::kNoId; id = forest_.record(id).next) {
    steps_.Count();
    catalog::Record& r = forest_.record(id);
    if (r.in_memory()) return true;
    used = used || r.is(catalog::Record::kTouched);
    r.flags &= static_cast<std::uint8_t>(~catalog::Record::kTouched);
  }
  return used;
}

bool QuotaSweep::LetGo(const catalog::Block& block) {
  if (block.folded()) return true;
  for (catalog::RecordId id = block.first_record; id != catalog::kNoId; id = forest_.record(id).next) {
    steps_.Count();
    partial_copies_.EndIfIdle(id);
    if (forest_.record(id).references > 0) return false;
  }
  return true;
}

}  // namespace cistern::residency
