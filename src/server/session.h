// SPDX-License-Identifier: Apache-2.0
// One client process at the server: its descriptors, its memory, what it has in flight.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <vector>

#include "arena/layout.h"
#include "base/event.h"
#include "base/executor.h"
#include "io/files.h"
#include "io/loop.h"
#include "memory/shared_memory.h"
#include "memory/staging.h"
#include "server/engines.h"
#include "server/lanes.h"
#include "server/ring.h"
#include "store/block_store.h"
#include "wire/protocol.h"

namespace cistern::server {

// Sessions owns it and ends it. It stays, its memory mapped, until the last task that uses it has ended, so
// nothing that a mover still holds goes away (R6).
struct Session {
  // The movers, which made the memory and free it, are borrowed.
  Session(catalog::Caller who, std::int32_t process_id, memory::Movers& movers, memory::SharedMemory shared,
          ServedLane& steps)
      : caller(who), pid(process_id), frees(movers), memory(std::move(shared)), ring(page()), lane(steps) {}
  ~Session() {
    lane.End();
    // The client may still look at its rings.
    memory::FreeSharedMemory(frees, std::move(memory), memory::PagesAtEnd::kLeft);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  wire::SessionMemory& page() const { return *reinterpret_cast<wire::SessionMemory*>(memory.mapping.data()); }
  // What is switched off for its engine.
  bool on(store::Switch which) const { return engine == nullptr || engine->on(which); }
  std::span<std::byte> arguments() const { return page().arguments; }

  const catalog::Caller caller;
  const std::int32_t pid;
  memory::Movers& frees;
  memory::SharedMemory memory;
  NodeRing ring;
  ServedLane& lane;                                           // of its calls
  std::vector<std::shared_ptr<memory::StagingArea>> staging;  // by number of the area

  Fd socket, core_event;
  Fd process;  // none: the kernel gives no pidfd; then `memory.fd` stays, to look for the process's lock
  // The node's alone: whoever shares an eventfd can make a write to it block. The client gets `client_wait`,
  // a set with nothing but this in it, which reports each signal once.
  Fd client_event;
  Fd client_wait;  // until the welcome
  io::FdWatch socket_watch, process_watch, event_watch;

  std::bitset<arena::kMaxNamespaces> namespaces;  // that its calls used, by slot number
  std::uint32_t tasks = 0;                        // that use it
  Event idle;                                     // pulsed when there are none
  std::uint32_t argument_bytes = 0;               // of calls in flight
  bool ended = false;                             // answers nobody any more
  bool active = false;                            // looked at by polling; else a signal brings it back
  bool granting = false;                          // an answer to MoreStaging is being made
  std::shared_ptr<const Engine> engine;           // whose it is, where it has said
  bool own_user = false;                          // its process runs as the node's user
  bool locked = false;  // `memory`, by its process, when that was asked last, or as that says itself
  Instant last_used;
  NodeRing::Counts counted{};  // of what the client says, what was added up
};

}  // namespace cistern::server
