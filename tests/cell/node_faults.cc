// SPDX-License-Identifier: Apache-2.0
// What goes wrong in a world of the storm of nodes.
#include <utility>

#include "base/format.h"
#include "node_world.h"
#include "store/drain.h"

namespace cistern::mesh {

void NodeWorld::ActOnMembers() {
  ++faults;
  RealNode& node = AnyNode();
  if (!node.running()) return Start(node);
  if (random_.Chance(often_.power)) {
    Say("the power fails");
    PowerOff();
    for (auto& one : nodes_) {
      if (random_.Chance(0.5)) one->ForgetMemory();
    }
    PowerOn();
    return;
  }
  switch (random_.Below(9)) {
    case 1:
    case 2: {
      store::DrainOrder order{.memory_goes = random_.Chance(0.7),
                              .deadline = clock_.Now().PlusUs(Us(5 * kSecond))};
      order.lower_tier_goes = order.memory_goes && random_.Chance(0.5);
      Say(Text("drain ", node.id, order.lower_tier_goes ? " for good" : ""));
      node.calls().Spawn(Drain(node, order));
      const std::uint64_t process = node.member().options().process_number;
      Later(6 * kSecond, [this, &node, process] {
        if (!node.running() || node.member().options().process_number != process) return;
        Say("in service again: " + node.id);
        loops_.BlockOn(node.store().drain().End());
      });
      return;
    }
    case 3: {
      if (!node.member().joined()) return;
      const auto up_to = static_cast<std::uint64_t>(node.member().state().seen);
      Say("trim at " + node.id);
      node.calls().Spawn(TrimAt(node, {static_cast<std::int64_t>(random_.Below(up_to + 1)),
                                       static_cast<std::int64_t>(random_.Below(up_to + 1))}));
      return;
    }
    default: break;
  }
  if (random_.Chance(0.5)) {
    node.HoldMovers();
    Pass(Us(20'000));
    if (!node.running()) return;
  }
  const bool reboots = random_.Chance(0.3);
  Say(Text("kill ", node.id, reboots ? " with its memory" : ""));
  node.Kill();
  if (reboots) node.ForgetMemory();
  Later(random_.Chance(0.5) ? 30 * kSecond : kSecond, [this, &node] {
    if (!node.running()) Start(node);
  });
}

void NodeWorld::ActOnEtcd() {
  ++faults;
  const std::int64_t long_us = random_.Chance(0.3) ? 20 * kSecond : 2 * kSecond;
  switch (random_.Below(8)) {
    case 0:
      Say("etcd silent");
      etcd_->FallSilent();
      Later(long_us, [this] { etcd_->Wake(); });
      break;
    case 1:
      Say("etcd stopped");
      etcd_->Stop();
      Later(long_us, [this] { etcd_->Start(); });
      break;
    case 2:
    case 3: {
      const std::string id = AnyNode().id;
      Say("etcd cut from " + id);
      etcd_->Cut(id);
      Later(long_us, [this, id] { etcd_->Heal(id); });
      break;
    }
    case 4: etcd_->CancelWatches(); break;
    case 5: etcd_->SilenceWatches(); break;
    case 6: {
      const auto to = static_cast<std::uint64_t>(etcd_->header().revision);
      etcd_->Compact(
          static_cast<std::int64_t>(random_.Between(to - std::min<std::uint64_t>(to - 1, 10), to)));
      break;
    }
    case 7:
      if (!random_.Chance(0.3)) break;
      Say("leases lost");
      etcd_->LoseLeases();
      leases_broken_until_ = clock_.Now().PlusUs(CellLimits::kLeaseS * kSecond);
      break;
  }
}

void NodeWorld::ActOnNetwork() {
  ++faults;
  const std::string from = AnyNode().id, to = AnyNode().id;
  if (from == to) return;
  if (random_.Chance(0.3)) return network_->Reset(from, to);
  Say(Text("network cut from ", from, " to ", to));
  network_->Cut(from, to);
  Later(random_.Chance(0.3) ? 20 * kSecond : 2 * kSecond, [this, from, to] { network_->Heal(from, to); });
}

}  // namespace cistern::mesh
