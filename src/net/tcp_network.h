// SPDX-License-Identifier: Apache-2.0
// TCP by the loop of the thread that calls: sockets never block, the loop says when they are ready, and the
// thread itself copies. The bytes of a Receive are in place when it ends; no buffer is the kernel's
// meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/loop.h"
#include "net/stream.h"

namespace cistern::net {

// What a connection with such a round trip uses in place of the system's congestion control, the best first;
// empty: nothing. BBR paces: where no queue of the kernel's does it, as on a loopback or a virtual card, by a
// timer for each 64 KiB, which costs more than the copy of them. Between hosts that are far apart it is worth
// that.
std::span<const std::string_view> BetterCongestionControl(std::string_view of_system, std::uint32_t rtt_us);

class TcpNetwork final : public Network {
 public:
  // The loop is borrowed and outlives the streams.
  explicit TcpNetwork(io::Loop& loop) : loop_(loop) {}

  Executor& executor() override { return loop_.executor(); }
  Task<Result<std::unique_ptr<Stream>>> Connect(std::string address, Instant deadline) override;
  Result<std::unique_ptr<Listener>> Listen(const std::string& address) override;
  // What Listen would refuse of an address, whoever listens there now.
  static Status CheckListen(const std::string& address);

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
