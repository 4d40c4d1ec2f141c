// SPDX-License-Identifier: Apache-2.0
// A node: arena, movers, flash, store and server put together, on a core thread of its own. Starts warm from
// what its memory directory and its flash hold and leaves it there when it ends, in order or not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cistern/status.h"
#include "cistern/store.h"
#include "io/files.h"
#include "node/options.h"
#include "wire/protocol.h"

namespace cistern::node {

class Node final {
 public:
  // Takes the directories' locks, opens or creates arena and flash, recovers, and serves when this returns.
  // With a socket in the options it lets in the processes of the host; without, only who asks ClientEnd().
  // kInvalid, kMismatch, kBusy (directory, device or socket held by another), kIoError: the message says the
  // way out; then nothing was changed but what may have been made anew: directories, an empty arena.
  static Result<std::unique_ptr<Node>> Start(NodeOptions options);
  // Stop(0), unless stopped.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Lets nobody in any more, gives calls in flight that long to end, then ends every session.
  void Stop(std::int64_t drain_us);

  // Where its HTTP port is, with the port that it really has; empty: it has none.
  std::string http() const;
  // What a reload makes of the settings that `read` holds, applied: leases, sessions and what memory holds
  // are not disturbed. kInvalid, or why they could not be read, and nothing has changed: they do not fit each
  // other or this host. What changed, what waits for the next start, and a refusal are logged too. Not once
  // Stop was called.
  Result<Reloaded> Reload(Result<NodeOptions> read);

  // One end of a connection to this node, for Client::Connect: how a process gets into its own node.
  Result<Fd> ClientEnd();
  // For that way in, from any thread of this process, on that thread: as Server has them, between two turns
  // of the core or while it sleeps. None, and false, where the core is busy for longer than a few
  // microseconds or it takes more: the session's ring is the way then.
  std::optional<std::uint64_t> AcquireAtOnce(std::uint64_t session, std::uint32_t slot,
                                             std::uint64_t incarnation, std::span<const BlockRef> blocks,
                                             std::int64_t lease_us, std::span<wire::ViewItem> views);
  bool ReleaseAtOnce(std::uint64_t session, std::uint64_t lease);

 private:
  class Core;
  explicit Node(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace cistern::node
