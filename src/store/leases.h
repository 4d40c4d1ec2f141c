// SPDX-License-Identifier: Apache-2.0
// Who holds which records until when. A lease ends by release, deadline, or the end of the session that took
// it. Ending one is O(1) here; letting go of its records is the caller's, in slices, through NextEnded.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "cistern/status.h"
#include "store/block_store.h"
#include "store/due.h"
#include "store/tree.h"

namespace cistern {

class Leases final {
 public:
  Leases(std::uint32_t max_leases, std::uint32_t max_leased_blocks);

  // kBusy when `blocks` more would pass a bound: says which.
  Status CheckRoom(std::size_t blocks) const;
  // There is room. Every held record counts one hold already.
  LeaseId Add(const Caller& caller, std::vector<Held> records, Instant deadline);
  // kDenied for another owner's, kLapsed for one that has ended or never was.
  Status End(const Caller& caller, LeaseId lease);
  // One of the session's leases; whether there was any.
  bool EndOneOf(SessionId session);
  // The first whose deadline has come; whether there was any.
  bool EndOneDue(Instant now);

  // A record of an ended lease that is still held for it; none when all were let go.
  std::optional<Held> NextEnded();

  std::uint32_t size() const { return static_cast<std::uint32_t>(due_.size()); }
  std::uint64_t leased_blocks() const { return leased_blocks_; }

 private:
  struct Lease {
    std::uint64_t serial = 0;
    Caller caller;
    std::vector<Held> records;
    std::uint32_t next = kNoId;  // of the session
    std::uint32_t prev = kNoId;
    std::uint32_t next_free = kNoId;
  };

  void EndAt(std::uint32_t at);

  const std::uint32_t max_leases_;
  const std::uint32_t max_leased_blocks_;
  Slab<Lease> leases_;
  Due due_;
  std::unordered_map<SessionId, std::uint32_t> first_of_;
  std::vector<std::vector<Held>> ended_;
  std::uint64_t leased_blocks_ = 0;  // of ended ones too, until they are let go
  std::uint64_t serial_ = 0;
};

}  // namespace cistern
