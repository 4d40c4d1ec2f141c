// SPDX-License-Identifier: Apache-2.0
// Matches beyond the index: the readable rest of a chain, leases of a matched chain, and uses of its blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/task.h"
#include "residency/context.h"
#include "residency/fetcher.h"
#include "residency/lower_tier.h"
#include "residency/residents.h"
#include "residency/uses.h"
#include "store/block_look.h"
#include "store/deletions.h"
#include "store/matched_runs.h"
#include "store/prompts.h"
#include "store/requests.h"
#include "store/switches.h"
#include "store/term.h"

namespace cistern::store {

class Matcher final {
 public:
  Matcher(const residency::StoreContext& context, residency::LowerTier& lower,
          residency::Residents& residents, residency::Uses& uses, Prompts& prompts,
          residency::Fetcher& fetcher, Deletions& deletions, const Switches& switches, const Term& term)
      : context_(context),
        lower_(lower),
        residents_(residents),
        uses_(uses),
        prompts_(prompts),
        fetcher_(fetcher),
        deletions_(deletions),
        switches_(switches),
        term_(term) {}
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  Executor& executor() { return context_.executor; }

  // Readable blocks after the first `matched` of a chain, in any tier; those in the lower tier are fetched
  // ahead. None where reads are switched off or the namespace is strict and not served, as for Hold, which is
  // kMiss then. It is counted as a client's where `unmatched` is not null: what is left then, to be noted as
  // missed (NoteMisses) unless another node has it. What others ask about is in no number.
  Task<Result<std::vector<MatchRun>>> MatchRest(std::uint32_t slot, std::uint32_t matched,
                                                std::span<const BlockKey> rest, Unmatched* unmatched);
  // Of a client's match of `rest`, of which the first `had` were found, here or elsewhere.
  void NoteMisses(std::uint32_t slot, std::span<const BlockKey> rest, std::size_t had, Unmatched unmatched);
  // Nothing is counted or fetched by it. None: there is no such namespace.
  std::optional<BlockLook> LookAt(std::uint32_t slot, const BlockKey& key);
  // Leases a matched chain (keys from block 0 on) until the deadline. kMiss if some of its blocks are lost
  // already.
  Task<Result<catalog::LeaseId>> Hold(catalog::Caller caller, std::uint32_t slot,
                                      std::span<const BlockKey> chain, std::int64_t hold_us);
  // In order; the last becomes the most recently used. `conversation`, if not 0, uses the blocks.
  Task<std::uint32_t> Touch(std::uint32_t slot, std::span<const BlockKey> keys, std::uint64_t conversation);

 private:
  // False: it lies in the lower tier, and memory, which was larger once, has no slot that it would come to.
  bool MayCome(catalog::TreeId tree, std::uint16_t group, const catalog::Forest::Copy& copy) const;
  // `count` blocks of a chain are not to be had because `first` is not; `expired`: it is past its time.
  void NoteMisses(catalog::TreeId tree, const BlockKey& first, bool expired, std::size_t count);
  // A namespace of the same model has a block of this key: engines that could share it differ in something.
  bool KinHas(catalog::TreeId tree, const BlockKey& key);
  // Number of blocks before a key that each group has without a gap, `*run` one a group, as far as the
  // namespace's windows ask, and at most `most`.
  Task<void> LookBack(catalog::TreeId tree, catalog::KeyHash key_hash, std::uint32_t most,
                      std::vector<std::uint64_t>* run);

  const residency::StoreContext context_;
  residency::LowerTier& lower_;
  residency::Residents& residents_;
  residency::Uses& uses_;
  Prompts& prompts_;
  residency::Fetcher& fetcher_;
  Deletions& deletions_;
  const Switches& switches_;
  const Term& term_;
};

}  // namespace cistern::store
