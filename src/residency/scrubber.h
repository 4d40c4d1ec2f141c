// SPDX-License-Identifier: Apache-2.0
// The scrubber reads every record again in the background, in each tier, at a low rate, except in memory
// while it is leased: a record that fails its seal is lost before a client asks for it, or is written again
// from memory.
#pragma once

#include <cstdint>
#include <optional>

#include "base/task.h"
#include "residency/block_owner.h"
#include "residency/context.h"
#include "residency/fetcher.h"
#include "residency/lower_records.h"
#include "residency/lower_tier.h"
#include "residency/residents.h"
#include "residency/verifier.h"

namespace cistern::residency {

class Scrubber final {
 public:
  Scrubber(const StoreContext& context, BlockOwner& owner, LowerTier& lower, Residents& residents,
           Verifier& verifier, Fetcher& fetcher, LowerRecords& lower_records)
      : context_(context),
        owner_(owner),
        lower_(lower),
        residents_(residents),
        verifier_(verifier),
        fetcher_(fetcher),
        lower_records_(lower_records) {}
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  Executor& executor() { return context_.executor; }

  // Goes on where the last slice ended, as far as the rate allows now.
  void Start();

 private:
  Task<void> Scrub();
  void NoteRead(std::uint32_t bytes);
  Task<void> ScrubMemory(catalog::RecordHandle handle, std::uint32_t body_bytes);
  Task<void> ScrubLower(catalog::BlockId block, catalog::Forest::Copy copy);

  const StoreContext context_;
  BlockOwner& owner_;
  LowerTier& lower_;
  Residents& residents_;
  Verifier& verifier_;
  Fetcher& fetcher_;
  LowerRecords& lower_records_;
  std::optional<std::uint64_t> running_;  // LowerTier::outs when it began
  catalog::BlockId at_ = 0;
  std::int64_t bytes_ = 0;  // may be read now
  std::optional<Instant> counted_at_;
};

}  // namespace cistern::residency
