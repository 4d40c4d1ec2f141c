// SPDX-License-Identifier: Apache-2.0
// What finding and reading need of a member: the drops that it has seen, the names under which the cell
// shares its namespaces, and ways to the other members. Member and Peers stand behind it; tests lie about it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "catalog/namespace_table.h"
#include "mesh/cell_drop.h"
#include "mesh/drop_list.h"
#include "mesh/local_store.h"
#include "net/rail.h"
#include "net/stream.h"

namespace cistern::mesh {

class CellRule {
 public:
  // To be read before a record is looked up that is to be answered; none: this member answers nobody and
  // asks nobody.
  virtual std::optional<Answered> Answering() const = 0;
  // What ChainCheck needs to hold: it has joined, under this history, and what the answering member has
  // applied was seen here.
  virtual bool Same(const Answered& answered) const = 0;
  // Not yet: what the answering member has applied may be seen here soon.
  virtual bool Behind(const Answered& answered) const = 0;
  // Until what was seen here may have changed; kTooLate: nothing has by the deadline.
  virtual Event::WaitingUntil Changed(Instant deadline) = 0;
  virtual const DropList& drops() const = 0;

 protected:
  ~CellRule() = default;
};

class SharedNamespaces {
 public:
  // This node's slot of a namespace; none: it has none such, or shares it with nobody.
  virtual std::optional<std::uint32_t> SlotOf(const SharedNamespace& name) const = 0;
  // None: it stays on this node, or the slot is free.
  virtual std::optional<SharedNamespace> NameAt(std::uint32_t slot) const = 0;
  // Another number when a namespace whose name was asked for is shared from now on, or no longer.
  virtual std::uint64_t switches() const = 0;
  // Of a namespace of this list, whether it is here or not.
  virtual SharedNamespace NameOf(const catalog::NamespaceEntry& entry) const = 0;

 protected:
  ~SharedNamespaces() = default;
};

// What is heard from other members, each known by its process number: Connected comes first, nothing after
// Disconnected.
class PeerListener {
 public:
  virtual void Connected(std::uint64_t peer) = 0;
  virtual void Disconnected(std::uint64_t peer) = 0;
  virtual void Heard(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) = 0;
  // As net::ControlHandler::Answer.
  virtual Task<Result<std::vector<std::byte>>> Answer(std::uint64_t peer, std::uint16_t type,
                                                      net::ConstPiece payload, Instant deadline) = 0;

 protected:
  ~PeerListener() = default;
};

class PeerLinks {
 public:
  // Those that can be reached now.
  virtual std::vector<std::uint64_t> Reachable() const = 0;
  // Whether it says that it stands near this member.
  virtual bool SameZone(std::uint64_t peer) const = 0;
  // As net::ControlConnection: kGone where there is no connection. The payload is copied.
  virtual Status Tell(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) = 0;
  // The same of what takes the place of all that was told of this type: where the connection is full, the
  // latest goes as soon as there is room.
  virtual void TellLatest(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) = 0;
  virtual Task<Result<std::vector<std::byte>>> Ask(std::uint64_t peer, std::uint16_t type,
                                                   std::vector<std::byte> payload, Instant deadline) = 0;
  // Where it serves blocks; empty: it has not said so.
  virtual std::string RailAddress(std::uint64_t peer) const = 0;

 protected:
  ~PeerLinks() = default;
};

// Rails to other members, for who reads blocks.
class BlockRails {
 public:
  // As net::RailReader::Read, on the rail to `peer` with the least under way, once one has a place for it;
  // each item of the sink ends, whatever the outcome, and the sink may be called on another thread until the
  // task has ended. kBusy: none had one before the deadline, and nothing was asked.
  virtual Task<Status> Read(std::uint64_t peer, std::span<const net::ConstPiece> questions,
                            net::RailSink& sink, Instant deadline) = 0;

 protected:
  ~BlockRails() = default;
};

// A namespace here, as it stood when it was looked for.
struct ServedNamespace {
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
  friend bool operator==(const ServedNamespace&, const ServedNamespace&) = default;
};
using ServedNamespaces = std::map<SharedNamespace, ServedNamespace>;

// What who serves blocks knows of the member, on whatever thread that is: a view of the core's, a moment old.
class ServedView {
 public:
  // As CellRule's.
  virtual std::optional<Answered> Answering() const = 0;
  virtual std::optional<ServedNamespace> Find(const SharedNamespace& name) const = 0;

 protected:
  ~ServedView() = default;
};

}  // namespace cistern::mesh
