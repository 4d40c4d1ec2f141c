// SPDX-License-Identifier: Apache-2.0
// Connections that have not said hello yet. Few may wait at once and none for long: past that the one that
// has been silent longest is sent away, so who keeps connections open and says nothing keeps nobody out.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include "base/executor.h"
#include "io/loop.h"
#include "server/closer.h"
#include "server/listener.h"
#include "server/peer_credentials.h"
#include "server/sessions.h"

namespace cistern::server {

class Handshakes final {
 public:
  // Borrows the loop, the sessions and the counters. Without a listener only who is let in by Adopt comes.
  Handshakes(io::Loop& loop, std::optional<Listener> listener, Sessions& sessions,
             const ServerOptions& options, ServerCounters& counters);

  // Starts to accept.
  Status Start();
  // Nobody can connect any more; who waits is sent away.
  void Close();
  // A connection that was made elsewhere, as if it had just been accepted.
  void Adopt(Fd socket) { Greet(std::move(socket)); }

 private:
  static constexpr std::size_t kMaxHandshakes = 64;
  static constexpr int kAcceptsPerStep = 2;  // some ten system calls each

  struct Handshake {
    Handshake(Handshakes& handshakes, Fd connection, const Peer& who);
    ~Handshake();
    Closer& closer;
    Fd socket;
    Peer peer;
    Timer timer;
    io::FdWatch watch;
    std::list<Handshake>::iterator self;
  };

  void AcceptSome();
  void Greet(Fd socket);
  void OnHello(Handshake& handshake);
  void Leave(Handshake& handshake);

  io::Loop& loop_;
  std::optional<Listener> listener_;
  Sessions& sessions_;
  const std::int64_t hello_us_;
  const PeerRules peers_;
  ServerCounters& counters_;
  std::list<Handshake> handshakes_;
  io::FdWatch watch_;
  Timer retry_;  // accepts again: more may be waiting, or there was no descriptor or no place
};

}  // namespace cistern::server
