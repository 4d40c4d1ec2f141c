// SPDX-License-Identifier: Apache-2.0
// Partial fetches: of a block that is not to stay in memory only the segments that were asked for are read,
// and copied into a partial copy's slot. The seal is read with them, so that each segment is checked by that
// copy and once more by its reader. A device never writes into such a slot: it reads whole units, which may
// share bytes with a neighbour segment that a reader was already told of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/task.h"
#include "record/segments.h"
#include "residency/context.h"
#include "residency/fetcher.h"
#include "residency/lower_tier.h"
#include "residency/partial_copies.h"
#include "residency/residents.h"
#include "residency/room.h"
#include "tier/tier.h"

namespace cistern::residency {

class PartialFetch final {
 public:
  PartialFetch(const StoreContext& context, LowerTier& lower, Residents& residents,
               PartialCopies& partial_copies, Room& room, Fetcher& fetcher);
  PartialFetch(const PartialFetch&) = delete;
  PartialFetch& operator=(const PartialFetch&) = delete;

  Executor& executor() { return context_.executor; }

  // The record's partial copy, with a slot or without; null where there is no room for one, or for a read of
  // that size beside those under way.
  PartialCopyPtr Open(catalog::RecordId record, record::BodySpan asked);
  // Starts to fetch the segments that are absent.
  void Request(const PartialCopyPtr& copy, const record::SegmentSpan& segments);
  // A reader saw the copy fail its seal.
  Task<void> Verify(PartialCopyPtr copy);

 private:
  // A read for a partial copy: the bytes between the first and the last of its own segments are read with
  // them.
  struct SegmentRead {
    record::SegmentSpan segments;
    std::vector<bool> own;
    std::uint64_t bytes = 0;
  };

  // Private memory that a read takes.
  std::uint64_t BufferBytes(const catalog::Record& record, record::BodySpan span,
                            std::uint64_t record_bytes) const;
  Task<void> Read(PartialCopyPtr copy, SegmentRead read);
  Task<Status> GetSlot(PartialCopyPtr copy);
  Task<Status> ReadOnce(PartialCopyPtr copy, const SegmentRead& read, tier::Location from);
  // Copies the read's own segments to the slot; false where one fails its seal.
  Task<bool> FillOwn(arena::Place place, const SegmentRead& read, const record::SealView& seal,
                     record::BodySpan span, const std::byte* from);

  const StoreContext context_;
  LowerTier& lower_;
  Residents& residents_;
  PartialCopies& partial_copies_;
  Room& room_;
  Fetcher& fetcher_;
  std::uint64_t reading_bytes_ = 0;  // of private memory, for reads under way
};

}  // namespace cistern::residency
