// SPDX-License-Identifier: Apache-2.0
// Connections that have not said hello yet. Few may wait at once and none for long; further ones stay in the
// kernel's queue.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include "base/executor.h"
#include "door/listener.h"
#include "door/peer.h"
#include "door/sessions.h"
#include "io/loop.h"

namespace cistern::door {

class Guests final {
 public:
  // Borrows the loop, the sessions and the counters. Without a listener only who is let in by Adopt comes.
  Guests(Loop& loop, std::optional<Listener> listener, Sessions& sessions, std::int64_t hello_us,
         DoorCounters& counters);

  // Starts to accept.
  Status Start();
  // Nobody can connect any more; who waits is sent away.
  void Close();
  // A connection that was made elsewhere, as if it had just been accepted.
  void Adopt(Fd socket) { Welcome(std::move(socket)); }

 private:
  static constexpr std::size_t kMaxGuests = 64;
  static constexpr int kAcceptsPerStep = 8;

  struct Guest {
    Guest(Guests& guests, Fd connection, const Peer& who);
    Fd socket;
    Peer peer;
    Timer timer;
    FdWatch watch;
    std::list<Guest>::iterator self;
  };

  void AcceptSome();
  void Welcome(Fd socket);
  void OnHello(Guest& guest);
  void Leave(Guest& guest);

  Loop& loop_;
  std::optional<Listener> listener_;
  Sessions& sessions_;
  const std::int64_t hello_us_;
  DoorCounters& counters_;
  std::list<Guest> guests_;
  FdWatch watch_;
  Timer retry_;  // accepts again: more are waiting, or there was no descriptor
};

}  // namespace cistern::door
