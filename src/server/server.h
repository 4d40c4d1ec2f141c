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

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/task.h"
#include "cistern/status.h"
#include "io/files.h"

namespace cistern {

class BlockStore;
class Logger;
class Loop;

struct ServerOptions {
  std::string socket;              // path; empty: no listening, only who is adopted comes in
  std::string tenant = "default";  // 1 to 63 bytes; a hello that names another one is kDenied
  std::uint32_t max_sessions = 1000;
  std::uint64_t session_staging_bytes = 1u << 20;  // what a session starts with that wishes nothing else
  std::uint64_t staging_budget_bytes = 0;          // of all sessions together; past it none comes in (R13)
  std::int64_t hello_us = 5'000'000;               // a connection that says nothing that long is closed
};

// Only grow, but for `sessions` and `in_flight`.
struct ServerCounters {
  std::uint64_t sessions = 0;
  std::uint64_t in_flight = 0;
  std::uint64_t staging_bytes = 0;  // of all sessions
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;       // hellos answered with an error
  std::uint64_t ended_forged = 0;  // sessions ended for what stood in their ring
  std::uint64_t calls = 0;
  std::uint64_t calls_refused = 0;     // answered kInvalid, kGone or kBusy by the server itself
  std::uint64_t completions_lost = 0;  // a client did not drain its ring
  std::uint64_t touches = 0;
  std::uint64_t touches_lost = 0;  // overwritten in the ring before they were read
};

class Server final {
 public:
  struct Parts {  // borrowed; outlive the server
    Loop& loop;
    BlockStore& store;
    Logger& log;
    // The tenant's arena and index, opened O_RDONLY: a session is handed these very descriptors (R12).
    int arena_fd;
    int index_fd;
    std::uint64_t boot_count;  // as in the arena's header
    // Fills with unpredictable bytes: owner tokens come from here.
    std::function<void(std::span<std::byte>)> random;
    // The node's state as JSON, for StatusJson().
    std::function<std::string()> status;
    // Takes a device of flash out of service, or brings it back; null: there are none. kMiss: no such path.
    std::function<Task<Status>(std::string path, bool back)> device = nullptr;
  };

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

  // Lets nobody in any more, answers new calls kGone, waits for those in flight until `deadline`, then ends
  // every session and removes the socket file. The store's tasks for calls that were still in flight are
  // waited for in any case: they end when no mover holds a session's bytes.
  Task<void> Drain(Instant deadline);

  const ServerCounters& counters() const;
  const std::string& socket() const;

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cistern
