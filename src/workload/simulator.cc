// SPDX-License-Identifier: Apache-2.0
#include "workload/simulator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "base/named_values.h"
#include "base/random.h"

namespace cistern::workload {
namespace {

using policy::EntryId;

constexpr std::array<std::pair<SimPolicy, std::string_view>, 7> kPolicies = {{{SimPolicy::kLru, "lru"},
                                                                              {SimPolicy::kReuse, "reuse"},
                                                                              {SimPolicy::kFifo, "fifo"},
                                                                              {SimPolicy::kSlru, "slru"},
                                                                              {SimPolicy::kLfu, "lfu"},
                                                                              {SimPolicy::kLru2, "lru2"},
                                                                              {SimPolicy::kArc, "arc"}}};

std::unique_ptr<Contender> MakeContender(SimPolicy policy, std::uint64_t blocks, const Extended& extended) {
  switch (policy) {
    case SimPolicy::kReuse: return nullptr;
    case SimPolicy::kLru: return MakeLru(extended);
    case SimPolicy::kFifo: return MakeFifo(extended);
    case SimPolicy::kSlru: return MakeSlru(extended, blocks);
    case SimPolicy::kLfu: return MakeLfu(extended);
    case SimPolicy::kLru2: return MakeLru2(extended, blocks);
    case SimPolicy::kArc: return MakeArc(extended, blocks);
  }
  __builtin_unreachable();
}

}  // namespace

std::string_view ToString(SimPolicy policy) { return NameIn(kPolicies, policy); }
std::string SimPolicies() { return NamesIn(kPolicies); }
Result<SimPolicy> ParseSimPolicy(std::string_view text) {
  return FindNamed(kPolicies, "eviction policy", text);
}

Simulator::Simulator(SimPolicy policy, std::uint64_t blocks, const SimFar& far)
    : far_(far), far_memory_(kFar), contender_(MakeContender(policy, blocks, extended_)) {
  CISTERN_ASSERT(blocks > 0 && far.blocks < blocks && (far.blocks == 0 || policy == SimPolicy::kReuse));
  if (policy == SimPolicy::kReuse) reuse_ = std::make_unique<policy::Order>(EvictionPolicy::kReuse, blocks);
  result_.policy = policy;
  result_.blocks = blocks;
}

// A block's parent is the block before it where it appears first. So parents have smaller numbers, and some
// resident is extended by none, whatever a trace says later.
EntryId Simulator::Dense(std::uint64_t hash_id, EntryId parent) {
  const auto [at, is_new] = dense_.try_emplace(hash_id, static_cast<EntryId>(dense_.size()));
  if (is_new) {
    resident_.push_back(false);
    held_.push_back(false);
    parents_.push_back(parent);
  }
  return at->second;
}

void Simulator::Submit(const Request& request, const PromptHints& hints) {
  chain_.clear();
  for (const std::uint64_t hash_id : request.hash_ids) {
    chain_.push_back(Dense(hash_id, chain_.empty() ? kRoot : chain_.back()));
  }
  const auto miss = std::ranges::find_if(chain_, [&](EntryId id) { return !resident_[id]; });
  const auto hits = static_cast<std::size_t>(miss - chain_.begin());
  ++result_.requests;
  result_.accesses += chain_.size();
  result_.hits += hits;
  for (std::size_t i = 0; far_.blocks > 0 && i < hits; ++i) result_.far_hits += IsFar(chain_[i]);
  reuse_ ? SubmitToReuse(request, hits, hints) : SubmitToContender();
}

void Simulator::SubmitToReuse(const Request& request, std::size_t hits, const PromptHints& hints) {
  keys_.clear();
  for (const std::uint64_t hash_id : request.hash_ids) keys_.push_back(SplitMix(hash_id));
  const std::size_t size = keys_.size();
  reuse_->SetNow(time_.Of(request));
  reuse_->TakeIn({.partial = LastIsPartial(request), .hints = hints}, keys_, std::span(chain_).first(hits));
  for (const EntryId id : chain_) held_[id] = true;
  std::size_t end = hits;
  policy::Standing standing = hits == 0 ? policy::Standing() : reuse_->StandingOf(chain_[hits - 1]);
  for (; end < size && !resident_[chain_[end]]; ++end) {
    standing = reuse_->StandingOf(keys_[end], standing);
    if (!MakeRoom(standing)) break;
    reuse_->Insert(chain_[end], freed_, standing);
    Enter(chain_[end]);
  }
  for (std::size_t i = end; i-- > 0;) reuse_->Touch(chain_[i], keys_[i]);
  for (const EntryId id : chain_) held_[id] = false;
  for (std::size_t i = end; far_.placed && i-- > 0;) {
    if (IsFar(chain_[i])) MoveNear(chain_[i]);
  }
}

bool Simulator::MakeRoom(const policy::Standing& newcomer) {
  if (far_.blocks > 0 && far_.placed) return MakeRoomNear(newcomer);
  if (used_ < result_.blocks) {
    // The system's way: either in turn.
    freed_ = far_used_ * result_.blocks < far_.blocks * used_ ? kFar : kNear;
    far_used_ += freed_;
    return true;
  }
  const std::optional<EntryId> leaves =
      reuse_->LeavesFor(newcomer, [this](EntryId id) { return !extended_(id) && !held_[id]; });
  if (!leaves) return false;
  Evict(*leaves);
  return true;
}

void Simulator::Evict(EntryId id) {
  freed_ = reuse_->size_class(id);
  reuse_->Remove(id);
  if (Leave(id)) reuse_->Unpark(parents_[id]);
}

bool Simulator::MakeRoomNear(const policy::Standing& newcomer) {
  freed_ = kNear;
  if (used_ - far_used_ < result_.blocks - far_.blocks) return true;
  const std::optional<EntryId> near =
      ColdestOf(far_memory_.near(), [this](EntryId id) { return !held_[id]; });
  if (!near) return false;
  if (far_used_ == far_.blocks) {
    const auto may = [this](EntryId id) { return !extended_(id) && !held_[id]; };
    const std::optional<EntryId> far = ColdestOf(far_memory_.far(), may);
    const policy::NearWay way = policy::WayOf(*reuse_, newcomer, *near, far);
    if (way == policy::NearWay::kNewStaysOut) return false;
    const bool leaves = way == policy::NearWay::kLeaves && may(*near);
    if (!leaves && !far) return false;
    Evict(leaves ? *near : *far);
    freed_ = kNear;
    if (leaves) return true;
    --far_used_;
  }
  MoveFar(*near);
  return true;
}

void Simulator::MoveFar(EntryId id) {
  reuse_->Reclass(id, kFar);
  ++far_used_;
  ++result_.moved_far;
}

// What moves far for it takes its place there.
void Simulator::MoveNear(EntryId id) {
  const auto may = [this](EntryId other) { return !held_[other]; };
  if (used_ - far_used_ >= result_.blocks - far_.blocks) {
    if (!policy::MovesNear(*reuse_, far_memory_, id, may)) return;
    const std::optional<EntryId> near = ColdestOf(far_memory_.near(), may);
    if (!near) return;
    MoveFar(*near);
  }
  reuse_->Reclass(id, kNear);
  --far_used_;
  ++result_.moved_near;
}

void Simulator::SubmitToContender() {
  for (std::size_t i = chain_.size(); i-- > 0;) {
    const EntryId id = chain_[i];
    if (resident_[id]) {
      contender_->Touch(id);
      continue;
    }
    if (used_ == result_.blocks) {
      const EntryId evicted = contender_->Evict();
      if (Leave(evicted)) contender_->Unpark(parents_[evicted]);
    }
    contender_->Insert(id);
    Enter(id);
  }
}

void Simulator::Enter(EntryId id) {
  resident_[id] = true;
  ++used_;
  if (parents_[id] != kRoot) extended_.Add(parents_[id]);
}

bool Simulator::Leave(EntryId id) {
  resident_[id] = false;
  --used_;
  const EntryId parent = parents_[id];
  return parent != kRoot && extended_.Drop(parent) && resident_[parent];
}

Result<SimResult> Simulate(RequestSource& requests, SimPolicy policy, std::uint64_t blocks,
                           const std::vector<PromptHints>& told, const SimFar& far) {
  Simulator simulator(policy, blocks, far);
  return SubmitAll(requests, told, simulator);
}

Result<std::vector<PromptHints>> Foretell(RequestSource& requests, bool when) {
  std::vector<PromptHints> told;
  std::vector<std::uint64_t> asked_ms;
  boost::unordered_flat_map<std::uint64_t, std::size_t> ends;  // a prompt's last whole block: the request
  Request request;
  TraceTime time;
  while (true) {
    const Result<bool> more = requests.Next(request);
    if (!more) return Error(more.error());
    if (!*more) return told;
    asked_ms.push_back(time.Of(request));
    for (const std::uint64_t id : request.hash_ids) {
      const auto end = ends.find(id);
      if (end == ends.end()) continue;
      PromptHints& hints = told[end->second];
      hints.outlook = Outlook::kExtended;
      const std::uint64_t after_ms = asked_ms.back() - asked_ms[end->second];
      if (when)
        hints.next_turn_ms =
            static_cast<std::uint32_t>(std::clamp<std::uint64_t>(after_ms, 1, kMaxNextTurnMs));
      ends.erase(end);
    }
    const std::size_t whole = request.hash_ids.size() - LastIsPartial(request);
    if (whole > 0) ends[request.hash_ids[whole - 1]] = told.size();
    told.push_back({.outlook = Outlook::kEnded});
  }
}

}  // namespace cistern::workload
