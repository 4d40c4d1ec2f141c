// SPDX-License-Identifier: Apache-2.0
// The handshake with the node of this host, and what it hands out.
#pragma once

#include <cstdint>
#include <string>

#include "arena/geometry.h"
#include "base/fd.h"
#include "base/mapping.h"
#include "base/mapping_guard.h"
#include "cistern/options.h"
#include "cistern/status.h"
#include "wire/protocol.h"

namespace cistern::client {

// Nanoseconds of CLOCK_MONOTONIC, the clock of every deadline at the server.
std::int64_t NowNs();
// `us` from then on; saturates.
std::int64_t DeadlineNs(std::int64_t us, std::int64_t from_ns = NowNs());

struct Connection {
  Fd socket;
  Fd process;       // of the node, readable once it has ended; none: the socket alone tells
  Fd session_lock;  // the session's memory, which this process has locked
  Fd core_event;    // wakes the core
  Fd client_event;  // wakes this process: a set with the node's eventfd in it
  Mapping arena;
  Mapping index;
  Mapping session;
  Mapping staging;  // area 0
  MappingGuard arena_guard, index_guard;
  arena::Geometry geometry;
  std::uint64_t bucket_count = 0;
  wire::Welcome welcome;
  std::string path;
};

// As Client::Connect.
Result<Connection> ConnectToNode(const ConnectOptions& options);
// The same from a connected socket on; `path` names the node in errors.
Result<Connection> GreetNode(Fd socket, std::string path, const ConnectOptions& options,
                             std::int64_t deadline_ns);

struct Grant {
  std::uint32_t area = 0;
  Mapping memory;
};
// Asks for a further staging area of at least `bytes`, to which AwaitStaging takes the answer. Neither by two
// threads at once.
Status AskForStaging(const Connection& connection, std::uint64_t bytes);
// kTooLate: it has not come, and is still to be taken before another area is asked for.
Result<Grant> AwaitStaging(const Connection& connection, std::int64_t deadline_ns);
// Gives an area back that nothing of the session lies in.
Status GiveStagingBack(const Connection& connection, std::uint32_t area);

}  // namespace cistern::client
