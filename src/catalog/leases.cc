// SPDX-License-Identifier: Apache-2.0
#include "catalog/leases.h"

#include "base/assert.h"
#include "base/format.h"

namespace cistern::catalog {
namespace {

constexpr std::uint32_t kIndexBits = 24;

}  // namespace

Leases::Leases(std::uint32_t max_leases, std::uint32_t max_leased_blocks)
    : max_leases_(max_leases), max_leased_blocks_(max_leased_blocks), deadlines_(max_leases) {
  CISTERN_ASSERT(max_leases < 1u << kIndexBits);
}

Status Leases::CheckRoom(std::size_t blocks) const {
  if (leases_.size() >= max_leases_) {
    return Status(Code::kBusy, Text("leases: ", leases_.size(), " are open and the limit is ", max_leases_));
  }
  if (leased_blocks_ + blocks > max_leased_blocks_) {
    return Status(Code::kBusy, Text("leases: ", leased_blocks_, " blocks are leased, ", blocks,
                                    " more are asked for and the limit is ", max_leased_blocks_));
  }
  return Status();
}

LeaseId Leases::Add(const Caller& caller, std::vector<RecordHandle> records, Instant deadline) {
  const std::uint32_t at = leases_.Add();
  Lease& lease = leases_[at];
  lease.serial = ++serial_;
  lease.caller = caller;
  leased_blocks_ += records.size();
  lease.records = std::move(records);
  const auto [first, added] = first_of_.try_emplace(caller.session, at);
  if (!added) {
    lease.next = first->second;
    leases_[first->second].prev = at;
    first->second = at;
  }
  deadlines_.Set(at, deadline.ns);
  return lease.serial << kIndexBits | at;
}

Status Leases::End(const Caller& caller, LeaseId lease) {
  const auto at = static_cast<std::uint32_t>(lease & ((1u << kIndexBits) - 1));
  if (at >= leases_.end() || leases_[at].serial == 0 || leases_[at].serial != lease >> kIndexBits) {
    return Status(Code::kLapsed, Text("lease ", Hex(lease), ": has ended"));
  }
  const Caller& taker = leases_[at].caller;
  if (taker.session != caller.session && taker.owner != caller.owner) {
    return Status(Code::kDenied, Text("lease ", Hex(lease), ": is another owner's"));
  }
  EndAt(at);
  return Status();
}

bool Leases::EndOneOf(SessionId session) {
  const auto first = first_of_.find(session);
  if (first == first_of_.end()) return false;
  EndAt(first->second);
  return true;
}

bool Leases::EndOneDue(Instant now) {
  if (deadlines_.empty() || deadlines_.first_when() > now.ns) return false;
  EndAt(deadlines_.first());
  return true;
}

void Leases::EndAt(std::uint32_t at) {
  Lease& lease = leases_[at];
  deadlines_.Remove(at);
  if (lease.next != kNoId) leases_[lease.next].prev = lease.prev;
  if (lease.prev != kNoId) {
    leases_[lease.prev].next = lease.next;
  } else if (lease.next != kNoId) {
    first_of_[lease.caller.session] = lease.next;
  } else {
    first_of_.erase(lease.caller.session);
  }
  if (!lease.records.empty()) ended_.push_back(std::move(lease.records));
  leases_.Remove(at);
}

std::optional<RecordHandle> Leases::NextEnded() {
  if (ended_.empty()) return std::nullopt;
  const RecordHandle held = ended_.back().back();
  ended_.back().pop_back();
  if (ended_.back().empty()) ended_.pop_back();
  --leased_blocks_;
  return held;
}

}  // namespace cistern::catalog
