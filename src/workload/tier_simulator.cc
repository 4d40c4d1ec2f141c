// SPDX-License-Identifier: Apache-2.0
#include "workload/tier_simulator.h"

#include "base/assert.h"
#include "base/random.h"
#include "policy/placement.h"

namespace cistern::workload {
namespace {
using policy::EntryId;

constexpr auto kAny = [](EntryId) { return true; };  // what is in the lower tier too may always leave
}  // namespace

TierSimulator::TierSimulator(const TierSimOptions& options)
    : options_(options), order_(options.policy, options.blocks) {
  CISTERN_ASSERT(options.blocks > 0 && options.promote != Promotion::kSecondHit);
}

EntryId TierSimulator::Dense(std::uint64_t hash_id) {
  const auto [at, is_new] = dense_.try_emplace(hash_id, static_cast<EntryId>(dense_.size()));
  if (is_new) blocks_.emplace_back();
  return at->second;
}

void TierSimulator::Submit(const Request& request) {
  chain_.clear();
  keys_.clear();
  there_.clear();
  for (const std::uint64_t hash_id : request.hash_ids) {
    chain_.push_back(Dense(hash_id));
    keys_.push_back(SplitMix(hash_id));
  }
  for (const EntryId id : chain_) {
    if (!blocks_[id].stored) break;
    there_.push_back(blocks_[id].resident ? id : policy::kBelow);
    ++(blocks_[id].resident ? result_.memory_hits : result_.lower_hits);
  }
  ++result_.requests;
  result_.accesses += chain_.size();
  order_.SetNow(time_.Of(request));
  order_.TakeIn({.partial = LastIsPartial(request)}, keys_, there_);
  for (std::size_t i = 0; i < there_.size(); ++i) {
    if (!blocks_[chain_[i]].resident) Fetch(i);
  }
  for (std::size_t i = there_.size(); i < chain_.size() && !blocks_[chain_[i]].stored; ++i) {
    Put(i);
  }
  for (std::size_t i = chain_.size(); i-- > 0;) Touch(i);
}

policy::Standing TierSimulator::ParentOf(std::size_t at) const {
  const bool there = at > 0 && blocks_[chain_[at - 1]].resident;
  return there ? order_.StandingOf(chain_[at - 1]) : policy::Standing();
}

bool TierSimulator::Passes(EntryId id, const policy::Standing& standing) {
  const std::uint64_t with_it = used_ + (blocks_[id].resident ? 0 : 1);
  return options_.promote == Promotion::kWorth && with_it >= options_.blocks &&
         order_.Passes(standing, policy::kAllGroups, kAny);
}

void TierSimulator::MakeRoom() {
  if (used_ < options_.blocks) return;
  const EntryId leaves = *order_.LeavesFor({}, kAny);
  order_.Remove(leaves);
  blocks_[leaves].resident = blocks_[leaves].transient = false;
  --used_;
}

void TierSimulator::Enter(EntryId id, const policy::Standing& standing, bool passes) {
  blocks_[id].transient = passes;
  order_.Insert(id, 0, standing);
  blocks_[id].resident = true;
  ++used_;
  if (blocks_[id].transient) order_.MakeColdest(id, 0);
}

void TierSimulator::Put(std::size_t at) {
  const EntryId id = chain_[at];
  const policy::Standing standing = order_.StandingOf(keys_[at], ParentOf(at));
  blocks_[id].stored = true;
  MakeRoom();
  Enter(id, standing, false);
}

// As residency::Fetcher: decided on when it is asked for, and when it takes its place.
void TierSimulator::Fetch(std::size_t at) {
  const EntryId id = chain_[at];
  const bool passed = Passes(id, order_.StandingBelow(keys_[at], ParentOf(at)));
  MakeRoom();
  const policy::Standing standing = order_.StandingBelow(keys_[at], ParentOf(at));
  Enter(id, standing, passed || Passes(id, standing));
  result_.passing += blocks_[id].transient;
}

// As residency::Uses.
void TierSimulator::Touch(std::size_t at) {
  Block& block = blocks_[chain_[at]];
  if (!block.resident) return;
  block.transient = block.transient && Passes(chain_[at], order_.StandingOf(chain_[at]));
  if (block.transient) {
    order_.MakeColdest(chain_[at], 0);
  } else {
    order_.Touch(chain_[at], keys_[at]);
  }
}

Result<TierSimResult> SimulateTiers(RequestSource& requests, const TierSimOptions& options) {
  TierSimulator simulator(options);
  Request request;
  while (true) {
    const Result<bool> more = requests.Next(request);
    if (!more) return Error(more.error());
    if (!*more) return simulator.result();
    simulator.Submit(request);
  }
}

}  // namespace cistern::workload
