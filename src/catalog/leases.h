// SPDX-License-Identifier: Apache-2.0
// Leases: sessions, the records that they may read, and deadlines. A lease ends by release, deadline, or the
// end of its session. Ending one is O(1) here; the caller drops its references in slices, through NextEnded.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "catalog/deadline_heap.h"
#include "catalog/forest.h"
#include "cistern/options.h"
#include "cistern/status.h"

namespace cistern::catalog {

using SessionId = std::uint64_t;
using LeaseId = std::uint64_t;

// A session as the store knows it: the process at the server, and the owner it belongs to.
struct Caller {
  SessionId session = 0;
  OwnerToken owner{};
  std::uint8_t memory_node = 0xff;  // of the arena's, that its process runs on; 0xff: not known
};

class Leases final {
 public:
  Leases(std::uint32_t max_leases, std::uint32_t max_leased_blocks);

  // kBusy when `blocks` more would pass a bound, or the owner's share of one, which the message names.
  Status CheckRoom(const OwnerToken& owner, std::size_t blocks) const;
  // kBusy when `bytes` more of memory would pass the owner's share of the memory that leases may keep. Of
  // `memory`, `kept` are under a lease of anybody or about to be, these included. Blocks that several leases
  // of one owner keep count as often, but never as more than is kept at all; its first lease is always ok.
  Status CheckBytes(const OwnerToken& owner, std::uint64_t bytes, std::uint64_t kept,
                    std::uint64_t memory) const;
  // CheckRoom and CheckBytes were ok. Every record has the lease's reference already.
  LeaseId Add(const Caller& caller, std::vector<RecordHandle> records, std::uint64_t bytes, Instant deadline);
  // kDenied for another owner's lease, kLapsed for one that has ended or never was.
  Status End(const Caller& caller, LeaseId lease);
  // Ends one lease of the session; true: there was one.
  bool EndOneOf(SessionId session);
  // Ends the first lease past its deadline; true: there was one.
  bool EndOneDue(Instant now);

  // A record of an ended lease whose reference is to be dropped; none when there are no more.
  std::optional<RecordHandle> NextEnded();

  std::uint32_t size() const { return static_cast<std::uint32_t>(deadlines_.size()); }
  std::uint64_t leased_blocks() const { return leased_blocks_; }

 private:
  struct Share {  // of an owner's open leases
    std::uint32_t leases = 0;
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
  };
  Share Of(const OwnerToken& owner) const {
    const auto of = of_.find(owner);
    return of == of_.end() ? Share() : of->second;
  }

  struct Lease {
    std::uint64_t serial = 0;
    std::uint64_t bytes = 0;
    Caller caller;
    std::vector<RecordHandle> records;
    std::uint32_t next = kNoId;  // next lease of the session
    std::uint32_t prev = kNoId;
    std::uint32_t next_free = kNoId;
  };

  void EndAt(std::uint32_t at);

  const std::uint32_t max_leases_;
  const std::uint32_t max_leased_blocks_;
  Slab<Lease> leases_;
  DeadlineHeap deadlines_;
  std::unordered_map<SessionId, std::uint32_t> first_of_;
  std::map<OwnerToken, Share> of_;  // of each owner that has any
  std::vector<std::vector<RecordHandle>> ended_;
  std::uint64_t leased_blocks_ = 0;  // with those of ended leases, until NextEnded gives them out
  std::uint64_t serial_ = 0;
};

}  // namespace cistern::catalog
