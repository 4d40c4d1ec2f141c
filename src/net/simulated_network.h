// SPDX-License-Identifier: Apache-2.0
// A network of named hosts in one process, on the executor's time: what is sent arrives after a latency and
// at a bandwidth, in order, unless the way is cut. With a simulated clock the seed decides every arrival, so
// a run replays exactly.
//
// What it models is what TCP gives a program, not packets: bytes that are lost on the way are sent again once
// the way is whole, so a cut way delays, and only Reset, Stop or a deadline ends a connection.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/executor.h"
#include "base/random.h"
#include "net/stream.h"

namespace cistern::net {

struct SimulatedLinkOptions {
  std::int64_t latency_us = 30;         // one way; each arrival takes half of it to one and a half
  std::uint64_t bytes_per_us = 5'000;   // of one direction of a connection
  std::size_t window_bytes = 4u << 20;  // that are sent and not yet received, of one direction
};

class SimulatedNetwork final {
 public:
  // The executor is borrowed and outlives the network; the network outlives its hosts.
  SimulatedNetwork(Executor& executor, std::uint64_t seed, const SimulatedLinkOptions& options = {});
  ~SimulatedNetwork();
  SimulatedNetwork(const SimulatedNetwork&) = delete;
  SimulatedNetwork& operator=(const SimulatedNetwork&) = delete;

  // The network as the host of this name sees it. Its addresses are "NAME:PORT"; port 0 chooses one. A host
  // may have an executor of its own, on the same clock, which outlives it and its connections: where that
  // does not run, what is sent to it waits, and connections to it are made, as a kernel does that.
  std::unique_ptr<Network> Host(std::string name) { return Host(std::move(name), executor_); }
  std::unique_ptr<Network> Host(std::string name, Executor& executor);

  // From now on nothing of `from` arrives at `to`, connection attempts either; Heal delivers what was sent.
  void Cut(const std::string& from, const std::string& to);
  void Heal(const std::string& from, const std::string& to);
  // From now on a bit of some of what `from` sends to `to` is wrong when it arrives, by that chance; of
  // pieces of kFlipBytes and more: those have checksums of their own, others only TLS guards. 0 ends it.
  static constexpr std::size_t kFlipBytes = 3'000;
  void Flip(const std::string& from, const std::string& to, double chance) { flips_[{from, to}] = chance; }
  // Every connection between the two breaks at once.
  void Reset(const std::string& a, const std::string& b);
  // The host's process died: its connections break and its addresses answer no more.
  void Stop(const std::string& host);

 private:
  friend class SimulatedHost;
  friend class SimulatedListener;
  friend class SimulatedStream;
  struct Pipe;
  struct Connection;

  void FlipSome(const std::string& from, const std::string& to, std::vector<std::byte>& bytes);
  bool IsCut(const std::string& from, const std::string& to) const { return cuts_.contains({from, to}); }
  // When what is sent now may arrive.
  Instant Arrival();
  template <class Which>
  void BreakConnections(Which&& which);

  Executor& executor_;
  Random random_;
  const SimulatedLinkOptions options_;
  std::map<std::string, class SimulatedListener*> listeners_;  // by address
  std::set<std::pair<std::string, std::string>> cuts_;         // from, to
  std::map<std::pair<std::string, std::string>, double> flips_;
  std::map<std::uint64_t, Connection*> connections_;  // in order of their making
  std::uint64_t last_connection_ = 0;
  std::uint32_t last_port_ = 0;
};

}  // namespace cistern::net
