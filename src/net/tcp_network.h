// SPDX-License-Identifier: Apache-2.0
// TCP by the loop of the thread that calls: sockets never block, the loop says when they are ready, and the
// thread itself copies. The bytes of a Receive are in place when it ends; no buffer is the kernel's
// meanwhile.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/loop.h"
#include "net/stream.h"

namespace cistern::net {

class TcpNetwork final : public Network {
 public:
  // The loop is borrowed and outlives the streams.
  explicit TcpNetwork(io::Loop& loop) : loop_(loop) {}

  Executor& executor() override { return loop_.executor(); }
  Task<Result<std::unique_ptr<Stream>>> Connect(std::string address, Instant deadline) override;
  Result<std::unique_ptr<Listener>> Listen(const std::string& address) override;

 private:
  io::Loop& loop_;
};

// One address for several loops, at least one: a listener for each, in their order. A connection belongs to
// the loop that has the fewest from that host, and of these the fewest in all. Called on the first loop's
// thread, which takes all of them, and whose listener goes when no other thread is in an Accept. The loops
// outlive what is posted to them. As Network::Listen otherwise.
Result<std::vector<std::unique_ptr<Listener>>> ListenFor(std::span<io::Loop* const> loops,
                                                         const std::string& address);

}  // namespace cistern::net
