// SPDX-License-Identifier: Apache-2.0
// What a server is given, what it keeps to and what it counts: for all its sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/task.h"
#include "cistern/key.h"
#include "cistern/namespace.h"
#include "cistern/status.h"
#include "server/peer_credentials.h"
#include "store/requests.h"

namespace cistern {
class CallStations;
class Logger;
class SlowCalls;
}  // namespace cistern

namespace cistern::io {
class Loop;
}  // namespace cistern::io

namespace cistern::memory {
class Movers;
}  // namespace cistern::memory

namespace cistern::store {
class BlockStore;
class RemoteBlocks;
}  // namespace cistern::store

namespace cistern::server {

class Lanes;

// How many sessions a node with that much memory lets in: each takes sizeof(wire::SessionMemory), 1.1 MiB, of
// the node's memory beside its staging, all of them together a sixteenth of what the arena has. Not fewer
// than 32.
std::uint32_t MaxSessions(std::uint64_t memory_bytes);

struct ServerOptions {
  std::string socket;              // path; empty: no listening, only who is adopted comes in
  std::string tenant = "default";  // 1 to 63 bytes; a hello that names another one is kDenied
  PeerRules peers;                 // who comes in; where not only the own user does, the socket has mode 0666
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
  std::uint64_t calls_refused = 0;     // answered kInvalid, or kGone as the node goes down
  std::uint64_t completions_lost = 0;  // a client did not drain its ring
  std::uint64_t touches = 0;
  std::uint64_t touches_lost = 0;  // overwritten in the ring before they were read
  // As clients say, of all sessions that there were.
  std::uint64_t asked_blocks = 0, indexed_blocks = 0, read_blocks = 0, read_bytes = 0;
  std::uint64_t promised_tokens = 0, delivered_tokens = 0, saved_us = 0, spent_us = 0;
};

// The members of a list as JSON, with commas between, as many as the caller has room for; and where the list
// goes on: wire::kReportEnds, or above 0.
struct ReportPage {
  std::string text;
  std::uint64_t next = 0;
};

// A drop as a client asks for it, of a namespace that is attached.
struct DropRequest {
  using What = store::DropWhat;
  What what = What::kNamespace;
  std::uint32_t slot = 0;
  std::span<const BlockKey> keys;  // of kKeys
  std::uint64_t conversation = 0;  // of kConversation
  Instant deadline;
  CallStations* stations = nullptr;  // is told what it waits for
};
// The node's way out of service, or back.
struct DrainRequest {
  bool on = false;
  bool memory_goes = false;
  bool lower_tier_goes = false;
  bool then_stop = false;
  Instant deadline;
};
struct Dropped {
  std::uint64_t blocks = 0;       // removed on this node
  std::uint64_t incarnation = 0;  // of kNamespace: the new one
};

// A chain that somebody asks about, in a namespace that is attached.
struct ChainQuestion {
  bool explain = false;  // why the last block is not found here; else which member has how much of it
  std::uint32_t slot = 0;
  std::span<const BlockKey> chain;  // stays until the task ends
  Instant deadline;
};

struct ServerParts {  // borrowed; outlive the server
  io::Loop& loop;
  Lanes& lanes;  // of the loop's work
  store::BlockStore& store;
  memory::Movers& movers;  // make and free what sessions share with it
  Logger& log;
  // The tenant's arena and index, opened O_RDONLY: a session is handed these very descriptors (R12).
  int arena_fd;
  int index_fd;
  std::uint64_t boot_count;  // as in the arena's header
  // Fills with unpredictable bytes: owner tokens come from here.
  std::function<void(std::span<std::byte>)> random;
  // The node's state as JSON, for StatusJson().
  std::function<Task<std::string>()> status;
  // Takes a device of flash out of service, or brings it back; null: there are none. kMiss: no such path.
  std::function<Task<Status>(std::string path, bool back)> device = nullptr;
  // A page of the list `what` (wire::kNamespaceList ...) from `from` on, of `most_bytes` at most; null: the
  // node has no lists. kInvalid: it has not this one.
  std::function<Task<Result<ReportPage>>(std::uint64_t what, std::uint64_t from, std::size_t most_bytes)>
      report = nullptr;
  // Does drops where they concern more than this node; null: the store does them. The request stays until
  // the task ends. kUnavailable: nothing was dropped.
  std::function<Task<Result<Dropped>>(const DropRequest& request)> drop = nullptr;
  // Sets memory on its way to another size, and how much that will be; null: the node's is fixed. kInvalid,
  // kBusy: no such size, or not here; nothing has changed.
  std::function<Task<Result<std::uint64_t>>(std::uint64_t bytes)> resize = nullptr;
  // Where matches and acquires go on behind what is here; null: nowhere.
  store::RemoteBlocks* remote = nullptr;
  // Sets the node on its way out of service, or back; null: it is never out. kInvalid: not this node.
  std::function<Task<Status>(const DrainRequest& request)> drain = nullptr;
  // Answers with a JSON object; null: the node is in no cell.
  std::function<Task<Result<std::string>>(const ChainQuestion& question)> inquire = nullptr;
  // Is told of calls that took long; null: nobody is.
  SlowCalls* slow_calls = nullptr;
  // The memory node of the arena's that a process runs on (catalog::Caller::memory_node); null: there is one.
  std::function<std::uint8_t(std::int32_t pid)> node_of = nullptr;
  // Whether the list may have the name that it says, where names are agreed on with others; null: the node's
  // own word counts. kMismatch: it stands for another list there. The spec stays until the task ends.
  std::function<Task<Status>(const NamespaceSpec& spec, Instant deadline)> agree = nullptr;
  // Told once after each `agree` that was ok whether the list has got its place here: the name of one that
  // has not is given back.
  std::function<Task<void>(const NamespaceSpec& spec, bool attached, Instant deadline)> agreed = nullptr;
};

}  // namespace cistern::server
