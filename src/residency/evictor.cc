// SPDX-License-Identifier: Apache-2.0
#include "residency/evictor.h"

namespace cistern::residency {

namespace {
constexpr int kChildLooks = 8;
}  // namespace

bool Evictor::MayGo(catalog::RecordId record) const {
  const catalog::Record& r = context_.forest.record(record);
  if (r.references > 0) return false;
  // A record in the lower tier too: memory's is not the last copy, unless its device left service and what it
  // had is yet to be given up.
  if (r.in_lower_tier() && !lower_.Gone(r.location)) return true;
  if (r.is(catalog::Record::kBehind)) return true;
  const catalog::Block& b = context_.forest.block(r.block);
  if (b.first_child != catalog::kNoId && !AllGoneBelow(b)) return false;
  // A put that waits for this block as its parent keeps the block, and with it its ancestors.
  return context_.pending.size() == 0 ||
         context_.pending.NextChildOf(b.tree, b.key_hash(), catalog::kNoId) == catalog::kNoId;
}

// A block that its device took along is read by nobody, and keeps nothing above it. Past kChildLooks children
// it keeps it until it is lost itself.
bool Evictor::AllGoneBelow(const catalog::Block& block) const {
  if (lower_.outs() == 0) return false;
  int looks = 0;
  for (catalog::BlockId id = block.first_child; id != catalog::kNoId;
       id = context_.forest.block(id).next_sibling) {
    context_.steps.Count();
    const catalog::Block& child = context_.forest.block(id);
    if (++looks > kChildLooks || child.placeholder()) return false;
    if (child.folded()) {
      if (!removal_.Gone(catalog::Forest::CopyOf(child))) return false;
      continue;
    }
    for (catalog::RecordId r = child.first_record; r != catalog::kNoId; r = context_.forest.record(r).next) {
      if (!removal_.Gone(catalog::Forest::CopyOf(r, context_.forest.record(r)))) return false;
    }
  }
  return true;
}

Step Evictor::EvictOne(const Newcomer& newcomer, bool* stays_out) {
  policy::Order& order = residents_.order();
  const auto stay_out = [&] {
    if (stays_out != nullptr) *stays_out = true;
    return Step::kWaits;
  };
  for (;;) {
    if (context_.steps.Spent()) return Step::kSpent;
    // Records of ended leases return to the order before its coldest is chosen.
    if (residents_.DropOneEnded()) continue;
    const auto coldest = ColdestFor(newcomer);
    if (!coldest && newcomer.age) return stay_out();
    if (!coldest) return EvictUnwritten(newcomer);
    context_.steps.Count();
    if (!MayGoNow(*coldest)) {
      NoteHeldUp(*coldest);
      order.Park(*coldest);
      continue;
    }
    // A lower tier has room for all, and memory is the way there.
    if (stays_out != nullptr && !keeps_all() && order.StaysOut(newcomer.standing, *coldest))
      return stay_out();
    if (newcomer.age && order.Age(*coldest) <= *newcomer.age) return stay_out();
    residents_.cooling().NoteLeaves(order, *coldest);
    Evict(*coldest);
    return Step::kDone;
  }
}

std::optional<catalog::RecordId> Evictor::ColdestFor(const Newcomer& newcomer) const {
  const policy::Order& order = residents_.order();
  if (newcomer.size_class) return order.Coldest(*newcomer.size_class, newcomer.groups);
  if (newcomer.side) return order.ColdestOf(*newcomer.side, newcomer.groups);
  return order.ColdestIn(newcomer.groups);
}

bool Evictor::Passes(catalog::RecordId record, const policy::Standing& standing) {
  if (context_.options.lower.promote != Promotion::kWorth || !lower_.present()) return false;
  policy::Order& order = residents_.order();
  const catalog::Record& r = context_.forest.record(record);
  const catalog::TreeId tree = context_.forest.block(r.block).tree;
  const std::uint64_t with_it = residents_.count() + (order.Contains(record) ? 0 : 1);
  const bool counted = context_.options.max_blocks > 0 && with_it >= context_.options.max_blocks;
  if (!counted && context_.slots.HasRoom(context_.catalog.RecordBytesOf(tree, r.group, r.body_bytes)))
    return false;
  return order.Passes(standing, MayLeaveFor(context_.catalog.GroupOf(tree), 0), [this](catalog::RecordId id) {
    context_.steps.Count();
    return MayGoNow(id);
  });
}

Step Evictor::TrimOne() {
  for (std::size_t i = 1; i <= context_.options.quotas.quotas().size(); ++i) {
    const auto group = static_cast<policy::QuotaGroup>(i);
    if (!context_.options.quotas.Over(group, residents_.used())) continue;
    const Step step = EvictOne({.groups = static_cast<policy::QuotaGroups>(1u << i)});
    if (step == Step::kDone) context_.counters.evicted_over_quota.Add();
    if (step != Step::kWaits) return step;
  }
  return Step::kWaits;
}

// An evicted record makes room for a new one at once only if its slot has the same size. So a record of the
// wanted size class is evicted, unless another class keeps one untouched for twice as long: then that class
// gives up a chunk. A class's only chunk also holds its warm records, so it is given up only if all of them
// are that old, or if no other record may leave.
std::optional<policy::SizeClass> Evictor::SizeClassToGo(policy::SizeClass wanted,
                                                        policy::QuotaGroups groups) const {
  const policy::Order& order = residents_.order();
  const auto own = order.Oldest(wanted, groups);
  const std::uint64_t old = own ? 2 * order.Age(*own) : 0;
  const policy::FarMemory::Side side = far_memory_.SideOf(wanted);
  const auto gives = [&](policy::SizeClass size_class) {
    return size_class != wanted && side(size_class) &&
           (context_.slots.chunks(size_class) > 1 || (own && order.LeastAge(size_class) > old));
  };
  auto other = order.OldestOf(gives, groups);
  if (own && (!other || order.Age(*other) <= old)) return wanted;
  if (!other) other = order.OldestOf(side, groups);
  return other ? std::optional(order.size_class(*other)) : std::nullopt;
}

void Evictor::Evict(catalog::RecordId record) {
  const catalog::Record& r = context_.forest.record(record);
  if (r.in_lower_tier()) {
    Demote(record);
    return;
  }
  context_.counters.evicted.Add();
  const catalog::Block& block = context_.forest.block(r.block);
  ++context_.catalog.counted().At(block.tree).evicted;
  context_.catalog.gone().Note(block.key_hash(), catalog::WentBy::kEvicted);
  if (lower_.present() && worth_.Wanted(record)) context_.counters.evicted_unwritten.Add();
  removal_.Remove(record);
}

std::optional<std::uint32_t> Evictor::AddEntry(const arena::Fingerprint& fingerprint,
                                               const arena::Found& found, catalog::BlockId block) {
  const auto entry = residents_.AddEntry(fingerprint, found);
  context_.steps.Count(2);
  if (entry) return entry;
  // R3: an insert into two full buckets evicts an occupant.
  std::array<arena::Place, 2 * arena::kEntriesPerBucket> places;
  const std::size_t count = residents_.index().OccupantsOf(fingerprint, places);
  context_.steps.Count(static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) {
    const catalog::RecordId record = context_.forest.At(places[i]);
    if (record == catalog::kNoId || context_.forest.record(record).block == block || !MayGo(record)) continue;
    // The block may have no record yet: it is not freed with the last of what is below it.
    catalog::Block& b = context_.forest.block(block);
    const bool reaping = b.is(catalog::Block::kReaping);
    b.flags |= catalog::Block::kReaping;
    Evict(record);
    if (!reaping) b.flags &= static_cast<std::uint16_t>(~catalog::Block::kReaping);
    return residents_.AddEntry(fingerprint, found);
  }
  return std::nullopt;
}

void Evictor::LoseBad(catalog::RecordId record) {
  const catalog::Record& r = context_.forest.record(record);
  context_.counters.cut_bad.Add();
  if (r.in_lower_tier()) {
    residents_.Leave(record);
    context_.forest.Fold(record);
  } else {
    owner_.Lose(r.block, LossReason::kBad);
  }
}

// Nothing but a copy below lets it go where what extends it stays there.
void Evictor::NoteHeldUp(catalog::RecordId record) {
  const catalog::Record& r = context_.forest.record(record);
  if (lower_.present() && r.references == 0 && !r.in_lower_tier() && !r.is(catalog::Record::kQueued))
    queue_.NoteHeldUp(context_.catalog.HandleOf(record));
}

// The record leaves memory and stays in the lower tier.
void Evictor::Demote(catalog::RecordId record) {
  context_.counters.demoted.Add();
  residents_.Leave(record);
  context_.forest.Fold(record);
}

// Any record that waits to be written may be lost instead: a put does not wait for a device.
Step Evictor::EvictUnwritten(const Newcomer& newcomer) {
  const auto fits = [&newcomer](policy::SizeClass its) {
    return newcomer.size_class ? its == *newcomer.size_class : !newcomer.side || (*newcomer.side)(its);
  };
  const policy::Order& order = residents_.order();
  while (queue_.refused() < queue_.size()) {
    if (context_.steps.Spent()) return Step::kSpent;
    const WriteQueue::Entry entry = queue_.front();
    const catalog::RecordHandle& handle = entry.record;
    queue_.Pop();
    context_.steps.Count();
    if (!context_.catalog.Lives(handle)) {
      queue_.Skip();
      continue;
    }
    const catalog::Record& r = context_.forest.record(handle.record);
    const bool right = r.in_memory() && fits(context_.slots.KindAt(r.place)) &&
                       order.Contains(handle.record) &&
                       (newcomer.groups >> order.group(handle.record) & 1) != 0;
    if (!right || !MayGo(handle.record)) {
      queue_.Refuse(entry);
      continue;
    }
    queue_.EndLook();
    Evict(handle.record);
    return Step::kDone;
  }
  queue_.EndLook();
  return Step::kWaits;
}

}  // namespace cistern::residency
