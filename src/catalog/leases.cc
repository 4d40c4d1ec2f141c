// SPDX-License-Identifier: Apache-2.0
#include "catalog/leases.h"

#include <algorithm>

#include "base/assert.h"
#include "base/format.h"
#include "policy/share.h"

namespace cistern::catalog {
namespace {

constexpr std::uint32_t kIndexBits = 24;

}  // namespace

Leases::Leases(std::uint32_t max_leases, std::uint32_t max_leased_blocks)
    : max_leases_(max_leases), max_leased_blocks_(max_leased_blocks), deadlines_(max_leases) {
  CISTERN_ASSERT(max_leases < 1u << kIndexBits);
}

Status Leases::CheckRoom(const OwnerToken& owner, std::size_t blocks) const {
  const Share mine = Of(owner);
  if (!policy::MayTakeOne(max_leases_, leases_.size(), mine.leases)) {
    return Status(Code::kBusy, Text("leases: ", leases_.size(), " are open, ", mine.leases,
                                    " of this owner's; ", max_leases_, " may be, and of an owner ",
                                    policy::kShare, " times what is left: release some"));
  }
  if (!policy::MayTake(max_leased_blocks_, leased_blocks_, mine.blocks, blocks)) {
    return Status(Code::kBusy, Text("leases: ", leased_blocks_, " blocks are leased, ", mine.blocks,
                                    " of them by this owner, and ", blocks, " more are asked for; ",
                                    max_leased_blocks_, " may be, and of an owner ", policy::kShare,
                                    " times what is left: lease fewer at once, or release some"));
  }
  return Status();
}

Status Leases::CheckBytes(const OwnerToken& owner, std::uint64_t bytes, std::uint64_t kept,
                          std::uint64_t memory) const {
  const Share share = Of(owner);
  const std::uint64_t mine = std::min(share.bytes + bytes, kept);
  if (share.leases == 0 || policy::MayKeep(memory, kept, mine)) return Status();
  return Status(Code::kBusy,
                Text("leases: ", bytes, " bytes of memory are asked for, ", kept, " of ", memory,
                     " could not go then, ", mine, " of them for this owner, which may have ", policy::kShare,
                     " times what is left: lease fewer blocks at once, release some, or give the node more "
                     "memory"));
}

LeaseId Leases::Add(const Caller& caller, std::vector<RecordHandle> records, std::uint64_t bytes,
                    Instant deadline) {
  const std::uint32_t at = leases_.Add();
  Lease& lease = leases_[at];
  lease.serial = ++serial_;
  lease.bytes = bytes;
  lease.caller = caller;
  leased_blocks_ += records.size();
  Share& share = of_[caller.owner];
  ++share.leases;
  share.blocks += records.size();
  share.bytes += bytes;
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
  const auto of = of_.find(lease.caller.owner);
  of->second.blocks -= lease.records.size();
  of->second.bytes -= lease.bytes;
  if (--of->second.leases == 0) of_.erase(of);
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
