// SPDX-License-Identifier: Apache-2.0
// The server of a node: where the processes of its host come in. It listens on a unix socket, makes every
// session's memory, takes submissions from its ring, checks each against its own tables, has the store do
// them and puts the answers into the completion ring. docs/formats/session.md says what is said.
//
// Everything here belongs to the core's thread. What costs is bounded: sessions, calls in flight, work a
// poll, staging; past a bound a client is answered kBusy, and nobody waits for a client (R13). A session ends
// with its socket's hang-up, its process's death (a pidfd: hang-up does not come while a forked child lives,
// R15) or a forged ring; its leases end with it, its memory stays until the store let go of the last byte.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/task.h"
#include "cistern/status.h"
#include "cistern/store.h"
#include "io/files.h"
#include "server/call_times.h"
#include "server/parts.h"
#include "wire/protocol.h"

namespace cistern::server {

class Handshakes;
class Listener;
class Engines;
class Sessions;

class Server final {
 public:
  using Parts = ServerParts;

  // Binds the socket (mode 0660) and lets clients in from the loop's next turn on. A socket file that nobody
  // listens on is replaced. kInvalid: the path is longer than a socket's may be, or an option is out of
  // range; kBusy: another process listens there (its pid is in the message); kIoError. To be called on the
  // loop's thread or before it runs.
  static Result<std::unique_ptr<Server>> Open(const Parts& parts, const ServerOptions& options);

  // No session may be left: Drain() first.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Lets in a client at the other end of this connected SOCK_SEQPACKET socket: how a process gets into its
  // own node.
  void Adopt(Fd socket);

  // A session's acquire and release without its ring, during an io::Visit of the loop by a thread of this
  // process: at most store::kAtOnce blocks, all in memory or nowhere. The lease (0: nothing was leased) and a
  // view each; none where it takes more, and then the ring is the way.
  std::optional<std::uint64_t> AcquireAtOnce(std::uint64_t session, std::uint32_t slot,
                                             std::uint64_t incarnation, std::span<const BlockRef> blocks,
                                             std::int64_t lease_us, std::span<wire::ViewItem> views);
  void ReleaseAtOnce(std::uint64_t session, std::uint64_t lease);

  // Lets nobody in any more; who is in goes on.
  void CloseDoor();

  // Closes the door, answers new calls kGone, waits for those in flight until `deadline`, then ends
  // every session and removes the socket file. The store's tasks for calls that were still in flight are
  // waited for in any case: they end when no mover holds a session's bytes.
  Task<void> Drain(Instant deadline);

  // Once a tick: adds up what clients count by themselves, into counters(), and ends sessions whose process
  // has ended where no pidfd tells.
  void Tick();

  // For its tasks.
  Executor& executor() const;
  const ServerCounters& counters() const { return counters_; }
  // Nobody is in, nor on the way in once it has said hello.
  bool empty() const;
  const CallTimes& times() const { return times_; }
  const Engines& engines() const;
  const std::string& socket() const { return socket_; }

 private:
  Server(const Parts& parts, const ServerOptions& options, std::optional<Listener> listener);

  ServerCounters counters_;
  CallTimes times_;
  const std::string socket_;
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Handshakes> handshakes_;
};

}  // namespace cistern::server
