// SPDX-License-Identifier: Apache-2.0
// All sessions of a node: who comes in, what their calls are answered, and their end.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/event.h"
#include "base/log.h"
#include "base/task_group.h"
#include "memory/serial_movers.h"
#include "memory/staging.h"
#include "server/active_sessions.h"
#include "server/call_times.h"
#include "server/calls.h"
#include "server/closer.h"
#include "server/engines.h"
#include "server/handshake.h"
#include "server/lanes.h"
#include "server/owners.h"
#include "server/parts.h"
#include "server/peer_credentials.h"
#include "server/session.h"
#include "server/touches.h"

namespace cistern::server {

class Sessions final {
 public:
  Sessions(const ServerParts& parts, const ServerOptions& options, ServerCounters& counters,
           CallTimes& times);
  // None may be left.
  ~Sessions();

  // Lets the process at the other end in, or tells it why not. Ends when it was told.
  void Admit(Fd socket, const Peer& peer, HelloText hello);

  // Answers new calls kGone, waits for those in flight until the deadline, then ends all sessions and waits
  // for them.
  Task<void> Drain(Instant deadline);

  // For the session of the node's own process, without its ring, during an io::Visit: as Calls has them.
  // None, and no effect, where the session is not open any more.
  std::optional<catalog::LeaseId> AcquireAtOnce(catalog::SessionId session, std::uint32_t slot,
                                                std::uint64_t incarnation, std::span<const BlockRef> blocks,
                                                std::int64_t lease_us, std::span<wire::ViewItem> views);
  void ReleaseAtOnce(catalog::SessionId session, catalog::LeaseId lease);

  // Once a tick, of some of the sessions, the next ones at the next call: adds up what they counted, and ends
  // those whose process has ended where no pidfd tells. And lets go of sockets of which all was received.
  void Tick();

  std::size_t size() const { return sessions_.size(); }
  // Nor is one being made.
  bool empty() const { return sessions_.empty() && making_ == 0; }
  const Engines& engines() const { return engines_; }
  Closer& closer() { return closer_; }
  Executor& executor() const { return parts_.loop.executor(); }

 private:
  static constexpr std::uint32_t kPrefetchedBytes = 4096;  // of a call's arguments
  static constexpr std::size_t kCountedPerTick = 64;

  std::size_t connections() const {
    return sessions_.size() + making_ + closer_.sessions() + untaken_.size();
  }

  Task<void> MakeSession(Fd socket, Peer peer, HelloText hello);
  Status CheckHello(const HelloText& hello) const;
  Task<Result<std::unique_ptr<Session>>> Build(Peer peer, OwnerToken owner, std::uint64_t staging_bytes);
  Status Open(Session& session, Fd socket, Fd process);
  Status Welcome(Session& session);

  // A call out of the session's ring: answered in this step, or given a task.
  void Take(Session& session, const wire::Submission& call);
  std::optional<Answer> AnswerAtOnce(Session& session, const wire::Submission& call);
  Task<void> Serve(Session& session, wire::Submission call);
  void NoteSlow(const Session& session, const wire::Submission& call, Code code, const CallStations& stations,
                Instant ended);
  void Finish(Session& session, const wire::Submission& call, const Answer& answer);
  void TakeCountsOf(Session& session);
  void LookForLock(Session& session);
  void OnSocket(Session& session, std::uint32_t events);
  Task<void> GrantStaging(Session& session, std::uint64_t bytes);
  void TakeStagingBack(Session& session, std::uint64_t area);
  void End(Session& session, LogLevel level, std::string why);
  void LetGo(Fd socket);
  Task<void> Remove(Session& session);
  void Forged(Session& session, std::string what);

  const ServerParts parts_;
  const ServerOptions options_;
  ServerCounters& counters_;
  CallTimes& times_;
  Engines engines_;
  Calls calls_;
  memory::SerialMovers background_;
  memory::StagingPool staging_;
  Owners owners_;
  Lanes& lanes_;
  ServedLane& door_;  // of those who come in
  Closer closer_;
  Touches touches_;
  TaskGroup tasks_;

  std::map<catalog::SessionId, std::unique_ptr<Session>> sessions_;
  std::uint32_t making_ = 0;
  std::deque<Fd> untaken_;  // of sessions that ended with messages that their clients have not received
  catalog::SessionId last_id_ = 0;
  catalog::SessionId last_counted_ = 0;
  bool draining_ = false;
  Event quiet_;  // pulsed when nothing is in flight
  Event empty_;  // pulsed when a session is gone

  std::uint32_t tried_in_ = 0;  // the poll that last answered a call itself, or tried to
  ActiveSessions active_;
};

}  // namespace cistern::server
