// SPDX-License-Identifier: Apache-2.0
#include "workload/tier_simulator.h"

#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/random.h"
#include "policy/placement.h"

namespace cistern::workload {
using policy::EntryId;

TierSimulator::TierSimulator(const TierSimOptions& options)
    : options_(options), order_(options.policy, options.blocks) {
  CISTERN_ASSERT(options.blocks > 0 && options.promote != Promotion::kSecondHit);
}

EntryId TierSimulator::Dense(std::uint64_t hash_id) {
  const auto [at, is_new] = dense_.try_emplace(hash_id, static_cast<EntryId>(dense_.size()));
  if (is_new) blocks_.emplace_back();
  return at->second;
}

void TierSimulator::Submit(const Request& request, const PromptHints& hints) {
  const std::uint64_t now_ms = time_.Of(request);
  RunDue(now_ms);
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
    result_.ahead_used += std::exchange(blocks_[id].ahead, false);
  }
  ++result_.requests;
  result_.accesses += chain_.size();
  order_.SetNow(now_ms);
  Came(now_ms);
  order_.TakeIn({.partial = LastIsPartial(request), .hints = hints}, keys_, there_);
  for (std::size_t i = 0; i < there_.size(); ++i) {
    if (!blocks_[chain_[i]].resident) Fetch(i);
  }
  for (std::size_t i = there_.size(); i < chain_.size() && !blocks_[chain_[i]].stored; ++i) {
    Put(i);
  }
  for (std::size_t i = chain_.size(); i-- > 0;) Touch(i);
  if (options_.ahead && order_.learns() && hints.next_turn_ms > 0) Await(request, hints, now_ms);
}

void TierSimulator::Await(const Request& request, const PromptHints& hints, std::uint64_t now_ms) {
  const std::size_t whole = chain_.size() - LastIsPartial(request);
  if (whole == 0) return;
  const std::uint64_t which = awaited_.size();
  awaited_.push_back({.asked_ms = now_ms, .told_ms = hints.next_turn_ms});
  awaited_.back().chain.assign(chain_.begin(), chain_.begin() + static_cast<std::ptrdiff_t>(whole));
  awaited_.back().keys.assign(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(whole));
  const auto [by, is_new] = awaited_by_.try_emplace(chain_[whole - 1], which);
  if (!is_new) LetGo(awaited_[std::exchange(by->second, which)], false);
  const auto window = ahead_.WindowOf(hints.next_turn_ms);
  if (window) due_.emplace(now_ms + window->from_ms, which, false);
  due_.emplace(now_ms + (window ? window->until_ms : 2 * std::uint64_t{hints.next_turn_ms}), which, true);
}

// The request is the turn that was awaited, if it goes on from there.
void TierSimulator::Came(std::uint64_t now_ms) {
  for (const EntryId id : chain_) {
    const auto found = awaited_by_.find(id);
    if (found == awaited_by_.end()) continue;
    Awaited& awaited = awaited_[found->second];
    if (!policy::FetchAhead::IsTurn(awaited.told_ms, now_ms - awaited.asked_ms)) continue;
    awaited_by_.erase(found);
    if (!awaited.over) ahead_.Note(awaited.told_ms, now_ms - awaited.asked_ms);
    LetGo(awaited, false);
  }
}

void TierSimulator::RunDue(std::uint64_t now_ms) {
  for (; !due_.empty() && std::get<0>(due_.top()) <= now_ms; due_.pop()) {
    const auto [at_ms, which, late] = due_.top();
    Awaited& awaited = awaited_[which];
    if (awaited.over) continue;
    order_.SetNow(at_ms);
    if (!late) {
      FetchAhead(awaited);
    } else {
      ahead_.Note(awaited.told_ms, std::nullopt);
      LetGo(awaited, true);
    }
  }
}

void TierSimulator::FetchAhead(Awaited& awaited) {
  for (std::size_t i = 0; i < awaited.chain.size(); ++i) {
    const EntryId id = awaited.chain[i];
    if (blocks_[id].resident) continue;
    if (!policy::FetchAhead::MayHold(order_.held() + 1, options_.blocks)) return;
    MakeRoom();
    const EntryId parent = i == 0 ? id : awaited.chain[i - 1];
    const bool under = blocks_[parent].resident;
    Enter(id, order_.StandingBelow(awaited.keys[i], under ? order_.StandingOf(parent) : policy::Standing()),
          false);
    order_.Hold(id);
    blocks_[id].ahead = true;
    awaited.held.push_back(id);
    ++result_.ahead;
  }
}

// What was held for a turn that did not come is the next to leave.
void TierSimulator::LetGo(Awaited& awaited, bool late) {
  for (const EntryId id : awaited.held) {
    blocks_[id].transient = late;
    late ? order_.MakeColdest(id, 0) : order_.LetGo(id);
  }
  awaited.over = true;
  awaited.chain = awaited.held = {};
  awaited.keys = {};
}

policy::Standing TierSimulator::ParentOf(std::size_t at) const {
  const bool there = at > 0 && blocks_[chain_[at - 1]].resident;
  return there ? order_.StandingOf(chain_[at - 1]) : policy::Standing();
}

bool TierSimulator::Passes(EntryId id, const policy::Standing& standing) {
  const std::uint64_t with_it = used_ + (blocks_[id].resident ? 0 : 1);
  return options_.promote == Promotion::kWorth && with_it >= options_.blocks &&
         order_.Passes(standing, policy::kAllGroups, [](EntryId) { return true; });
}

void TierSimulator::MakeRoom() {
  if (used_ < options_.blocks) return;
  // What is in the lower tier too may always leave.
  const EntryId leaves = *order_.Coldest();
  order_.Remove(leaves);
  blocks_[leaves].resident = blocks_[leaves].transient = blocks_[leaves].ahead = false;
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

// As residency::Fetcher: decided on when it is asked for, and when it takes its place. What it is held to be
// is asked for each time: the block that leaves for it may be its parent, and without one it is nobody's
// child.
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

Result<TierSimResult> SimulateTiers(RequestSource& requests, const TierSimOptions& options,
                                    const std::vector<PromptHints>& told) {
  TierSimulator simulator(options);
  return SubmitAll(requests, told, simulator);
}

}  // namespace cistern::workload
