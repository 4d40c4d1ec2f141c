// SPDX-License-Identifier: Apache-2.0
// A world of the storm of nodes: a cell of real nodes (real_node.h), whose clients put, read, drop and end
// conversations while processes, hosts, the network and etcd fail. A model says after each action that
// - what is read is exactly what some put wrote under this key, and its time has not passed,
// - nothing is read, at a member that an acknowledged drop or end binds, that it covers, nor at any in a
//   strict namespace,
// - what is here has all that stands before it,
// - every call ends by its deadline,
// and at the end, with all ways whole again, that the cell comes together, a drop is acknowledged, each node
// reads what another one has, and nothing is kept for calls that are no more.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "real_node.h"

namespace cistern::mesh {

class NodeWorld final {
 public:
  NodeWorld(std::uint64_t seed, bool trace);
  ~NodeWorld();
  NodeWorld(const NodeWorld&) = delete;
  NodeWorld& operator=(const NodeWorld&) = delete;

  Executor& executor() { return loop_->executor(); }

  // Empty, or what was broken.
  std::string Run();

  std::uint64_t faults = 0, drops = 0, acknowledged = 0, hits = 0, peer_blocks = 0;

 private:
  // Numbers of a chain's blocks, from the first on. The last one's tells the chain.
  using Chain = std::vector<std::uint64_t>;
  // Chances of an action.
  struct Often {
    double members = 0, power = 0, etcd = 0, network = 0, drops = 0;  // of `members`, `power` are all hosts'
  };
  // What one put wrote; its body begins with its number.
  struct Version {
    std::size_t space = 0;
    Chain chain;
    std::uint64_t expires_s = UINT64_MAX;  // wall clock
    std::uint64_t order = 0;               // when its put was answered; 0: it was not
    // Acknowledged drops that cover it: each alone, or ends of all of its users together.
    std::vector<std::vector<std::size_t>> dead_by;
  };
  struct Dropped {
    CellDrop drop;
    std::size_t space = 0;
    std::vector<std::uint64_t> numbers;
    std::uint64_t order = 0;  // when it was asked for
    Instant deadline;
    bool ended = false, acknowledged = false;
    RealNode* node = nullptr;         // that was asked, in this process
    std::uint64_t process = 0;        // of it
    std::set<const RealNode*> bound;  // that have applied it
  };

  RealWorld world() { return {clock_, *loop_, *network_, *etcd_, *log_, random_}; }
  void Start(RealNode& node);
  void PowerOn();
  void PowerOff();

  void Act();
  void ActOnMembers();
  void ActOnEtcd();
  void ActOnNetwork();
  void Later(std::int64_t most_us, std::function<void()> call);
  void Pass(std::int64_t us);
  Task<void> Sleep(std::int64_t us);
  void Say(const std::string& what);
  void Break(std::string what);
  void CheckTime(Instant deadline, std::string_view what);
  std::int64_t Us(std::int64_t most) {
    return static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(most) + 1));
  }

  RealNode& AnyNode() { return *nodes_[random_.Below(nodes_.size())]; }
  std::vector<RealNode*> Running();
  static Chain NewChain(std::uint64_t number, std::size_t blocks);
  // `talks`: of those that are put for conversations alone.
  Chain AnyChain(bool talks);
  static std::vector<std::byte> BodyOf(std::uint64_t version, std::uint64_t number);

  Task<void> Attach(RealNode& node, std::size_t space);
  Task<void> Put(RealNode& node, std::size_t space, Chain chain, std::uint64_t conversation);
  Task<void> Read(RealNode& node, std::size_t space, Chain chain, std::uint64_t conversation);
  Task<void> Drain(RealNode& node, store::DrainOrder order);
  Task<void> TrimAt(RealNode& node, CellFloor floor);
  void AskForDrop(RealNode& node);
  Task<void> DropAt(RealNode& node, std::size_t which, DropWait wait);
  void Acknowledge(std::size_t which, RealNode& writer, const DropReceipt& receipt);

  void NoteUse(std::size_t space, const Chain& chain, std::uint64_t conversation, std::uint64_t order);
  // The drop `which` alone, or with the ends of other conversations; empty: something keeps the version.
  std::vector<std::size_t> EndedBy(const Version& version, std::size_t which) const;
  // Acknowledged drops that bind the node's clients now.
  std::set<std::size_t> Binding(RealNode& node, std::size_t space);
  void CheckBody(RealNode& node, std::size_t space, std::uint64_t number, std::span<const std::byte> body,
                 const std::set<std::size_t>& binding, std::uint64_t asked_s);
  // Of what the node has.
  void Look(RealNode& node);
  void CheckCalls();
  void ComeTogether();
  bool AllReadWhatOneHas();

  Random random_;
  const bool trace_;
  SimulatedClock clock_;
  io::SimulatedDisk disk_;
  const std::unique_ptr<Logger> log_ = Logger::ToSink(LogLevel::kOff, [](LogLevel, std::string_view) {});
  std::unique_ptr<io::SimulatedLoop> loop_;
  std::optional<net::SimulatedNetwork> network_;
  std::optional<etcd::SimulatedEtcd> etcd_;
  std::shared_ptr<const etcd::SimulatedEtcd::Backup> kept_by_etcd_;  // while the power is off
  Often often_;
  std::int64_t pace_us_ = 0;  // between actions, mostly
  net::SimulatedLinkOptions link_;
  etcd::SimulatedLags lags_;
  etcd::SimulatedChances chances_;
  std::vector<NamespaceSpec> specs_;
  std::vector<SharedNamespace> names_;
  std::vector<std::unique_ptr<RealNode>> nodes_;
  std::string broken_;
  bool quiet_ = false;  // nothing goes wrong any more
  std::multimap<Instant, std::function<void()>> later_;
  std::vector<Version> versions_;               // by number
  std::vector<std::set<std::uint64_t>> known_;  // by namespace: numbers that were put
  std::map<std::uint64_t, Chain> chains_;       // by the last block's number
  std::set<std::uint64_t> with_ttl_;            // numbers of which some version had one
  std::vector<Dropped> dropped_;
  std::vector<std::uint64_t> conversations_;
  // By namespace and block: conversations that wrote or used it, or may have, and when the last such call was
  // answered; 0: it was not.
  std::map<std::pair<std::size_t, std::uint64_t>, std::map<std::uint64_t, std::uint64_t>> users_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::size_t> ends_;  // acknowledged, by namespace
  std::uint64_t order_ = 0, last_conversation_ = 0;
  Instant leases_broken_until_;  // etcd itself broke its word on leases
};

}  // namespace cistern::mesh
