// SPDX-License-Identifier: Apache-2.0
#include "workload/tier_simulator.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "base/named_values.h"
#include "base/random.h"
#include "policy/placement.h"

namespace cistern::workload {
using policy::EntryId;

namespace {
constexpr std::size_t kMostRejected = 1u << 20;  // where the log is without end

constexpr std::array<std::pair<SimAdmission, std::string_view>, 4> kAdmissions{{
    {SimAdmission::kWorth, "worth"},
    {SimAdmission::kAll, "all"},
    {SimAdmission::kSecondHit, "second-hit"},
    {SimAdmission::kRejectFirst, "reject-first"},
}};
}  // namespace

std::string_view ToString(SimAdmission admission) { return NameIn(kAdmissions, admission); }
std::string SimAdmissions() { return NamesIn(kAdmissions); }
Result<SimAdmission> ParseSimAdmission(std::string_view text) {
  return FindNamed(kAdmissions, "admission", text);
}

TierSimulator::TierSimulator(const TierSimOptions& options)
    : options_(options),
      order_(options.policy, options.blocks),
      log_(options.lower_blocks, options.lower_budget) {
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
  now_ms_ = now_ms;
  log_.SetNow(now_ms);
  chain_.clear();
  keys_.clear();
  there_.clear();
  for (const std::uint64_t hash_id : request.hash_ids) {
    chain_.push_back(Dense(hash_id));
    keys_.push_back(SplitMix(hash_id));
  }
  for (const EntryId id : chain_) {
    Block& block = blocks_[id];
    if (!block.there()) break;
    there_.push_back(block.resident ? id : policy::kBelow);
    ++(block.resident ? result_.memory_hits : result_.lower_hits);
    result_.ahead_used += std::exchange(block.ahead, false);
    block.used = true;
  }
  ++result_.requests;
  result_.accesses += chain_.size();
  order_.SetNow(now_ms);
  Came(now_ms);
  order_.TakeIn({.partial = LastIsPartial(request), .hints = hints}, keys_, there_);
  bool room = true;
  for (std::size_t i = 0; i < there_.size() && room; ++i) {
    if (!blocks_[chain_[i]].resident) room = Fetch(i);
  }
  for (std::size_t i = there_.size(); i < chain_.size() && room && !blocks_[chain_[i]].there(); ++i) {
    room = Put(i);
  }
  for (std::size_t i = chain_.size(); i-- > 0;) Touch(i);
  for (std::size_t i = 0; i < there_.size(); ++i) {
    if (blocks_[chain_[i]].resident && !blocks_[chain_[i]].below && Wanted(chain_[i], false))
      Write(chain_[i]);
  }
  result_.written = log_.written();
  result_.moved = log_.moved();
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
    if (!blocks_[id].below || !policy::FetchAhead::MayHold(order_.held() + 1, options_.blocks)) return;
    if (!MakeRoom() || !blocks_[id].below) return;
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
    if (!blocks_[id].resident) continue;
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
         order_.Passes(standing, policy::kAllGroups, [this](EntryId other) { return MayLeave(other); });
}

// False: nothing may leave. What is in the lower tier too always may.
bool TierSimulator::MakeRoom() {
  if (used_ < options_.blocks) return true;
  // No newcomer of which nothing is told stays out.
  const auto leaves = order_.LeavesFor(policy::Standing(), [this](EntryId id) { return MayLeave(id); });
  if (!leaves) return false;
  if (blocks_[*leaves].below) {
    LeaveMemory(*leaves);
  } else {
    Lose(*leaves);
  }
  return true;
}

void TierSimulator::LeaveMemory(EntryId id) {
  order_.Remove(id);
  blocks_[id].resident = blocks_[id].transient = blocks_[id].ahead = false;
  --used_;
}

void TierSimulator::Link(EntryId id, EntryId parent) {
  Block& block = blocks_[id];
  block.parent = parent;
  block.before = policy::kBelow;
  block.next = blocks_[parent].first_child;
  if (block.next != policy::kBelow) blocks_[block.next].before = id;
  blocks_[parent].first_child = id;
}

void TierSimulator::Unlink(EntryId id) {
  Block& block = blocks_[id];
  if (block.parent == policy::kBelow) return;
  Block& parent = blocks_[block.parent];
  (block.before == policy::kBelow ? parent.first_child : blocks_[block.before].next) = block.next;
  if (block.next != policy::kBelow) blocks_[block.next].before = block.before;
  if (!parent.extended() && parent.resident) order_.Unpark(block.parent);
  block.parent = block.next = block.before = policy::kBelow;
}

void TierSimulator::Lose(EntryId id) {
  std::vector<EntryId> lost{id};
  for (std::size_t i = 0; i < lost.size(); ++i) {
    for (EntryId child = blocks_[lost[i]].first_child; child != policy::kBelow; child = blocks_[child].next)
      lost.push_back(child);
  }
  for (std::size_t i = lost.size(); i-- > 0;) {
    Unlink(lost[i]);
    if (blocks_[lost[i]].resident) LeaveMemory(lost[i]);
    blocks_[lost[i]].below = false;
  }
}

bool TierSimulator::Wanted(EntryId id, bool at_put) {
  switch (options_.admit) {
    case SimAdmission::kAll: return true;
    case SimAdmission::kSecondHit: return !at_put;
    case SimAdmission::kWorth:
      if (price_.Due(now_ms_)) price_.Set(order_, log_.terms(), now_ms_);
      return price_.Pays(order_, order_.ClassOf(id));
    case SimAdmission::kRejectFirst: break;
  }
  if (!at_put) return true;
  if (rejected_.erase(id) > 0) return true;
  rejected_.insert(id);
  rejections_.push_back(id);
  if (rejections_.size() > (options_.lower_blocks > 0 ? options_.lower_blocks : kMostRejected)) {
    rejected_.erase(rejections_.front());
    rejections_.pop_front();
  }
  return false;
}

void TierSimulator::Write(EntryId id) {
  std::vector<EntryId> above{id};
  for (EntryId at = blocks_[id].parent; at != policy::kBelow && !blocks_[at].below; at = blocks_[at].parent)
    above.push_back(at);
  for (; !above.empty() && log_.Pays(); above.pop_back()) {
    Block& block = blocks_[above.back()];
    block.region = log_.Append(above.back(), false);
    block.below = true;
    block.used = false;
    order_.Unpark(above.back());
  }
  while (const auto given = log_.GiveUp()) GiveUp(*given);
}

// As residency::LowerRecords, from the last block on.
void TierSimulator::GiveUp(const LowerLog::Given& given) {
  std::uint64_t kept = 0;
  for (std::size_t i = given.ids.size(); i-- > 0;) {
    const EntryId id = given.ids[i];
    Block& block = blocks_[id];
    if (!block.below || block.region != given.region) continue;
    const policy::LastCopy last{.used = block.used, .has_descendants = block.extended(), .bytes = 1};
    const bool stays = block.resident ? kept * 8 < log_.region_blocks() * 7 && Wanted(id, false)
                                      : policy::KeptAtReclaim(last, kept, log_.region_blocks());
    if (stays) {
      block.region = log_.Append(id, true);
      block.used = false;
      ++kept;
    } else if (block.resident) {
      block.below = false;
    } else {
      Lose(id);
    }
  }
}

void TierSimulator::Enter(EntryId id, const policy::Standing& standing, bool passes) {
  blocks_[id].transient = passes;
  order_.Insert(id, 0, standing);
  blocks_[id].resident = true;
  ++used_;
  if (blocks_[id].transient) order_.MakeColdest(id, 0);
}

// False: there was no room, or the block before it was lost to make some.
bool TierSimulator::Put(std::size_t at) {
  const EntryId id = chain_[at];
  const policy::Standing standing = order_.StandingOf(keys_[at], ParentOf(at));
  if (!MakeRoom() || (at > 0 && !blocks_[chain_[at - 1]].there())) return false;
  Enter(id, standing, false);
  if (at > 0) Link(id, chain_[at - 1]);
  price_.Offer(order_.ClassOf(id), 1, now_ms_);
  if (Wanted(id, true)) Write(id);
  return true;
}

// As residency::Fetcher: decided on when it is asked for, and when it takes its place. What it is held to be
// is asked for each time: the block that leaves for it may be its parent, and without one it is nobody's
// child.
bool TierSimulator::Fetch(std::size_t at) {
  const EntryId id = chain_[at];
  const bool passed = Passes(id, order_.StandingBelow(keys_[at], ParentOf(at)));
  if (!MakeRoom() || !blocks_[id].below) return false;
  const policy::Standing standing = order_.StandingBelow(keys_[at], ParentOf(at));
  Enter(id, standing, passed || Passes(id, standing));
  result_.passing += blocks_[id].transient;
  return true;
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
