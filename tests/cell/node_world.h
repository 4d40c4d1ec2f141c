// SPDX-License-Identifier: Apache-2.0
// A world of the storm of nodes: a cell of real nodes (real_node.h), whose clients put, read, drop and end
// conversations while processes, hosts, the network and etcd fail. A model says after each action that
// - what is read is exactly what some put wrote under this key, and its time has not passed,
// - nothing is read, at a member that an acknowledged drop or end binds, that it covers, nor at any in a
//   strict namespace,
// - what is here has all that stands before it,
// - every call ends by its deadline,
// - what a node has whose drain was told complete is there when its host's power comes back,
// and at the end, with all ways whole again, that the cell comes together, a drop is acknowledged, each node
// is connected to each and reads what another one has, and nothing is kept for calls that are no more. There
// members without a version in common say so of each other, no drop is acknowledged as long as they are, and
// each serves its own clients and the members that it has one with.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cell_model.h"
#include "real_node.h"

namespace cistern::mesh {

class NodeWorld final {
 public:
  NodeWorld(std::uint64_t seed, bool trace);
  ~NodeWorld();
  NodeWorld(const NodeWorld&) = delete;
  NodeWorld& operator=(const NodeWorld&) = delete;

  // Empty, or what was broken.
  std::string Run();

  // Of faults; each is at least so large a part of them.
  static constexpr std::string_view kKinds[] = {"clock set",
                                                "clone",
                                                "cut",
                                                "cut off",
                                                "downgrade",
                                                "drain",
                                                "etcd compacted",
                                                "etcd cut",
                                                "etcd full",
                                                "etcd restored",
                                                "etcd silent",
                                                "etcd stopped",
                                                "flips",
                                                "hours",
                                                "kill",
                                                "leases lost",
                                                "power",
                                                "power of one",
                                                "reset",
                                                "stop",
                                                "stranger",
                                                "too new",
                                                "trim",
                                                "unreadable drop",
                                                "upgrade",
                                                "watches cancelled",
                                                "watches silent"};
  static constexpr double kShare = 0.005;

  std::uint64_t faults = 0, drops = 0, acknowledged = 0, hits = 0, peer_blocks = 0;
  std::map<std::string, std::uint64_t, std::less<>> kinds;  // of faults, and how often each was

 private:
  using Chain = CellModel::Chain;
  // Chances of an action.
  struct Often {
    double members = 0, power = 0, etcd = 0, network = 0, drops = 0;  // of `members`, `power` are all hosts'
    double ttl = 0;                                                   // of a put
    double releases = 0;                                              // of `members`
  };
  static constexpr std::int64_t kSecond = 1'000'000;
  static constexpr std::size_t kPlain = 0, kStrict = 1;

  RealWorld world() { return {clock_, loops_, *network_, *etcd_, *log_, random_}; }
  void Start(RealNode& node);
  void PowerOn();
  void PowerOff();

  // Counts it, too.
  void Fault(std::string_view kind, const std::string& where);
  void Act();
  void ActOnMembers();
  void FailPower();
  // Of one host.
  void FailPowerOf(RealNode& node);
  void LoseMemory(RealNode& node, double chance);
  // What its flash has to keep without power, because a drain said so; then, whether it did.
  void NoteDrained(RealNode& node);
  void CheckDrained(RealNode& node, std::size_t space, std::uint32_t slot);
  void DrainAnywhere(RealNode& node);
  void Stop(RealNode& node);
  void PassHours(RealNode& node);
  void Clone(RealNode& node);
  void ChangeRelease(RealNode& node);
  void Kill(RealNode& node);
  void ActOnEtcd();
  void RestoreEtcd();
  // All that is there, as far as members can tell.
  void DropUnreadably();
  void AcknowledgeUnreadable();
  std::uint64_t HistoryInEtcd();
  void ActOnNetwork();
  // A stranger's bytes where members listen.
  Task<void> Babble(net::Network& from, std::string address);
  void Later(std::int64_t most_us, std::function<void()> call);
  void Pass(std::int64_t us);
  void Say(const std::string& what);
  void Break(std::string what);
  void CheckTime(const RealNode& node, Instant deadline, std::string_view what);
  std::int64_t Us(std::int64_t most) {
    return static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(most) + 1));
  }

  RealNode& AnyNode() { return *nodes_[random_.Below(nodes_.size())]; }
  std::vector<RealNode*> Running();
  static Chain NewChain(std::uint64_t number, std::size_t blocks);
  // `talks`: of those that are put for conversations alone.
  Chain AnyChain(bool talks);

  Task<void> Attach(RealNode& node, std::size_t space);
  Task<void> Put(RealNode& node, std::size_t space, Chain chain, std::uint64_t conversation);
  Task<void> Read(RealNode& node, std::size_t space, Chain chain, std::uint64_t conversation);
  Task<void> Drain(RealNode& node, store::DrainOrder order);
  Task<void> TrimAt(RealNode& node, CellFloor floor);
  void AskForDrop(RealNode& node);
  Task<void> DropAt(RealNode& node, std::size_t which, DropWait wait);
  void Acknowledge(std::size_t which, RealNode& writer, const DropReceipt& receipt);

  // Two with its id run on its host, or did within a lease's time.
  bool IsDoubled(const RealNode& node);
  std::set<std::size_t> Binding(RealNode& node, std::size_t space);
  void CheckBody(RealNode& node, std::size_t space, std::uint64_t number, std::span<const std::byte> body,
                 const std::set<std::size_t>& binding, Instant asked);
  // Of what the node has.
  void Look(RealNode& node);
  void CheckCalls();
  void MakeWhole();
  void ComeTogether();
  bool AllJoin();
  bool AllReadWhatOneHas(const std::vector<RealNode*>& nodes);
  // Those of a release without a version in common with the others.
  void CheckApart();
  bool AreApart(RealNode& one, RealNode& other);
  void CheckConnections(const std::vector<RealNode*>& nodes);
  void CheckKept(std::vector<RealNode*> nodes);

  Random random_;
  const bool trace_;
  SimulatedClock clock_;
  ProcessLoops loops_{clock_};
  io::SimulatedDisk no_disk_;
  const std::unique_ptr<Logger> log_ = Logger::ToSink(LogLevel::kOff, [](LogLevel, std::string_view) {});
  std::unique_ptr<io::SimulatedLoop> loop_;  // of network and etcd
  std::optional<net::SimulatedNetwork> network_;
  std::optional<etcd::SimulatedEtcd> etcd_;
  std::unique_ptr<net::Network> stranger_;
  std::optional<TaskGroup> strangers_;
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
  bool quiet_ = false;                                                       // nothing goes wrong any more
  std::set<const RealNode*> dark_;                                           // have no power
  std::map<const RealNode*, bool> memory_goes_;                              // in its last drain
  std::map<const RealNode*, std::vector<std::set<std::uint64_t>>> drained_;  // blocks, by namespace
  bool calm_ = false;  // nor now: a restored etcd is to be noticed first
  std::multimap<Instant, std::function<void()>> later_;
  CellModel model_{2};
  std::vector<std::uint64_t> conversations_;
  std::uint64_t last_conversation_ = 0;
  Instant leases_broken_until_;  // etcd itself broke its word on leases
  std::map<const RealNode*, Instant> doubled_until_;
  struct EtcdBackup {
    std::shared_ptr<const etcd::SimulatedEtcd::Backup> kept;
    std::int64_t revision = 0;
  };
  std::vector<EtcdBackup> backups_;
  struct Unreadable {
    BatchMark batch;
    std::vector<std::size_t> drops;  // of the model's, one a namespace
  };
  std::vector<Unreadable> unreadable_;  // that are not acknowledged yet
};

}  // namespace cistern::mesh
