// SPDX-License-Identifier: Apache-2.0
// Leases of views: resident blocks are verified, the others fetched first, side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/task.h"
#include "residency/context.h"
#include "residency/fetcher.h"
#include "residency/lower_tier.h"
#include "residency/partial_copies.h"
#include "residency/partial_fetch.h"
#include "residency/residents.h"
#include "residency/verifier.h"
#include "store/deletions.h"
#include "store/prompts.h"
#include "store/requests.h"
#include "store/switches.h"
#include "store/term.h"

namespace cistern::store {

class Acquirer final {
 public:
  Acquirer(const residency::StoreContext& context, residency::LowerTier& lower,
           residency::Residents& residents, residency::PartialCopies& partial_copies,
           residency::Verifier& verifier, residency::Fetcher& fetcher, residency::PartialFetch& partial_fetch,
           Prompts& prompts, Deletions& deletions, const Switches& switches, const Term& term)
      : context_(context),
        lower_(lower),
        residents_(residents),
        partial_copies_(partial_copies),
        verifier_(verifier),
        fetcher_(fetcher),
        partial_fetch_(partial_fetch),
        prompts_(prompts),
        deletions_(deletions),
        switches_(switches),
        term_(term) {}
  Acquirer(const Acquirer&) = delete;
  Acquirer& operator=(const Acquirer&) = delete;

  Executor& executor() { return context_.executor; }

  // Verifies blocks that were not checked since the restart, fetches those in the lower tier, and leases the
  // blocks that are then in memory. kTooLate for a block that would not be, or was not, in memory by the
  // deadline or after `worth_us` from now on; kBusy for one that there was no room for. Nothing is leased
  // where reads are switched off. `stations` may be null.
  Task<Result<AcquireGrant>> Acquire(catalog::Caller caller, std::uint32_t slot,
                                     std::span<const catalog::BlockName> blocks, std::int64_t lease_us,
                                     Instant deadline, std::int64_t worth_us, CallStations* stations);
  // The same in this step, where it takes no more: of at most kAtOnce blocks, each in memory and verified, or
  // in no tier. The lease, 0 where no block was leased, and a grant each in `views`; none where it takes
  // more, and then nothing was changed.
  std::optional<catalog::LeaseId> AcquireAtOnce(const catalog::Caller& caller, std::uint32_t slot,
                                                std::span<const catalog::BlockName> blocks,
                                                std::int64_t lease_us, std::span<ViewGrant> views);
  // A reader saw a body fail its seal: the body is verified again, then the block is lost with its
  // descendants. A sound one has its index entry written again, which may be the damaged part.
  Task<Status> ReportBad(std::uint32_t slot, std::span<const catalog::BlockName> blocks);

 private:
  // One block of an Acquire that lies in the lower tier, referenced: it is fetched whole, or some of it into
  // a partial copy.
  struct PendingView {
    std::size_t index = 0;
    residency::RecordReference reference;
    std::shared_ptr<residency::PendingFetch> fetch;
    residency::PartialCopyPtr copy;
    record::SegmentSpan asked;
  };
  // What an Acquire has come to.
  struct Acquisition {
    explicit Acquisition(std::size_t blocks);
    void Lease(std::size_t block, residency::RecordReference reference, std::uint64_t record_bytes);

    std::vector<ViewGrant> views;  // of the blocks
    // What is leased: of each record what it keeps of memory, and which block it is.
    std::vector<residency::RecordReference> references;
    std::vector<std::uint64_t> bytes;
    std::vector<std::size_t> leased;
    std::vector<PendingView> pending;
  };

  // The steps of an Acquire: what is in memory is verified and referenced, and the fetches of the others
  // start; they are awaited; what is still there then is leased if its owner may have so much, `cuts` being
  // the forest's before the first step.
  Task<void> Find(catalog::TreeId tree, std::span<const catalog::BlockName> blocks, Instant deadline,
                  Instant worth, CallStations* stations, Acquisition* call);
  Task<void> AwaitFetches(std::span<const catalog::BlockName> blocks, Instant worth, CallStations* stations,
                          Acquisition* call);
  Task<Result<AcquireGrant>> Grant(const catalog::Caller& caller, std::int64_t lease_us, std::uint32_t cuts,
                                   Acquisition* call);
  // The records of blocks that are all in memory and verified, or in no tier (kNoId); false for others.
  bool FindAtOnce(catalog::TreeId tree, std::span<const catalog::BlockName> blocks,
                  std::span<catalog::RecordId> records);
  // Of the slot that the record takes in memory.
  std::uint64_t SlotBytesOf(const catalog::Record& record) const;
  // References a block in the lower tier, if its bytes would be in memory in time, and there beside the
  // `kept` bytes that the call has or fetches already, to which its slot's are added.
  bool StartFetch(const catalog::BlockName& asked, catalog::RecordId record, Instant worth,
                  std::uint64_t* kept, PendingView* pending, ViewGrant* view);
  // kTooLate; kBusy where there was no room to fetch the block into; kMiss for one that was lost or could not
  // be read. `bytes`: what the view keeps of memory.
  Task<Status> Await(const PendingView& pending, const BlockKey& key, Instant worth, ViewGrant* view,
                     std::uint64_t* bytes, CallStations* stations);

  const residency::StoreContext context_;
  residency::LowerTier& lower_;
  residency::Residents& residents_;
  residency::PartialCopies& partial_copies_;
  residency::Verifier& verifier_;
  residency::Fetcher& fetcher_;
  residency::PartialFetch& partial_fetch_;
  Prompts& prompts_;
  Deletions& deletions_;
  const Switches& switches_;
  const Term& term_;
};

}  // namespace cistern::store
