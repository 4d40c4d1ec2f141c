// SPDX-License-Identifier: Apache-2.0
// What each operation of the protocol does: its arguments out of the session's area, checked; the store
// asked; the reply into the session's area.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/task.h"
#include "cistern/store.h"
#include "io/loop.h"
#include "server/answer.h"
#include "server/arguments.h"
#include "server/parts.h"
#include "server/session.h"
#include "server/steering.h"
#include "store/block_store.h"
#include "wire/protocol.h"

namespace cistern::server {

class Calls final {
 public:
  // Borrows what the parts borrow, and the engines.
  Calls(const ServerParts& parts, Engines& engines)
      : parts_(parts), engines_(engines), steering_(parts, engines) {}
  Executor& executor() const { return parts_.loop.executor(); }

  // Whether the entry's argument and reply ranges lie in the argument area: an entry whose ranges do not is
  // forged. The first thing to be asked.
  static bool InArea(const wire::Submission& call);

  // Does the call. The session and what it waits for stay until the task has ended. Whatever is wrong with
  // the call is its error, which Fail makes an answer.
  Task<Result<Answer>> Do(Session& session, const wire::Submission& call, CallStations& stations);

  // The answer to an acquire that takes no more than this step: its blocks are all in memory. None for
  // another, and for one with something wrong: nothing was done then, and Do is asked.
  std::optional<Answer> AcquireInStep(Session& session, const wire::Submission& call);

  // Op::kAcquire and Op::kRelease of the node's own process, in one step and without a ring; none where an
  // acquire takes more than that or something is wrong with it, which the ring's answer says.
  std::optional<catalog::LeaseId> AcquireAtOnce(Session& session, std::uint32_t slot,
                                                std::uint64_t incarnation, std::span<const BlockRef> blocks,
                                                std::int64_t lease_us, std::span<wire::ViewItem> views);
  void ReleaseAtOnce(const catalog::Caller& caller, catalog::LeaseId lease);

 private:
  Task<Result<Answer>> Attach(Session& session, const wire::Submission& call, CallStations& stations);
  // kMiss where the call's namespace is not attached; the session uses it otherwise.
  Status UseNamespace(Session& session, std::uint32_t slot, std::uint64_t incarnation);
  Task<Result<Answer>> MatchRest(Session& session, const wire::Submission& call, CallStations& stations);
  // What others have behind the `local` blocks of a chain, of which `keys` are all; `runs` get it, and how
  // many blocks it is.
  Task<std::uint32_t> MatchRemote(std::uint32_t slot, std::span<const BlockKey> keys, std::size_t local,
                                  Instant deadline, std::vector<MatchRun>& runs);
  Task<Result<Answer>> Hold(Session& session, const wire::Submission& call);
  // A match's reply with `runs`, as far as there is room for them.
  Task<Answer> ReplyRuns(Session& session, const wire::Submission& call, std::vector<MatchRun> runs,
                         Answer answer);
  Task<Result<Answer>> Acquire(Session& session, const wire::Submission& call, CallStations& stations);
  std::optional<catalog::LeaseId> AcquireAtOnce(Session& session, std::uint32_t slot,
                                                std::uint64_t incarnation,
                                                std::span<const catalog::BlockName> blocks,
                                                std::int64_t lease_us, std::span<wire::ViewItem> views);
  Result<Answer> Release(const Session& session, const wire::Submission& call);
  Task<Result<Answer>> Write(Session& session, const wire::Submission& call, CallStations& stations);
  Task<Result<Answer>> EndPuts(Session& session, const wire::Submission& call);
  Task<Result<Answer>> Touch(Session& session, const wire::Submission& call);
  Task<Result<Answer>> Drop(Session& session, const wire::Submission& call, CallStations& stations);
  Task<Result<Answer>> DropNamespace(Session& session, const wire::Submission& call, CallStations& stations);
  Task<Result<Answer>> EndConversation(Session& session, const wire::Submission& call,
                                       CallStations& stations);
  // By the store, or by who does drops that concern more than this node.
  Task<Result<Dropped>> Drop(DropRequest request);
  Task<Result<Answer>> ReportBad(Session& session, const wire::Submission& call);
  Task<Result<Answer>> ReportStatus(Session& session, const wire::Submission& call);
  Task<Result<Answer>> Inquire(Session& session, const wire::Submission& call);
  Result<Answer> Introduce(Session& session, const wire::Submission& call);
  // The store's MatchRest where reads are on for the session's engine; otherwise nothing, and it is counted.
  Task<Result<std::vector<MatchRun>>> FindRest(const Session& session, std::uint32_t slot,
                                               std::uint32_t matched, std::span<const BlockKey> rest,
                                               store::Unmatched* unmatched);
  Task<Result<Answer>> DropNamed(Session& session, const wire::Submission& call, CallStations& stations);

  // The parts of a write, a slice a step; they borrow from the areas that are added to `read`.
  Task<Status> TakeWrites(Session& session, std::vector<std::shared_ptr<memory::StagingArea>>& read,
                          const wire::Submission& call, Arguments& arguments,
                          std::vector<store::PartWrite>& parts);

  const ServerParts parts_;
  Engines& engines_;
  Steering steering_;
};

}  // namespace cistern::server
