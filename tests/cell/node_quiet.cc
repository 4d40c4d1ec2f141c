// SPDX-License-Identifier: Apache-2.0
// What must hold in a world of the storm of nodes when nothing goes wrong any more.
#include <algorithm>
#include <set>
#include <utility>

#include "base/format.h"
#include "node_world.h"
#include "store/drain.h"

namespace cistern::mesh {

// All ways, and every node runs.
void NodeWorld::MakeWhole() {
  for (const auto& [when, call] : std::exchange(later_, {})) call();
  for (const auto& node : nodes_) {
    if (!node->running()) Start(*node);
  }
  for (const auto& node : nodes_) {
    for (const auto& other : nodes_) {
      network_->Heal(node->host, other->host);
      network_->Flip(node->host, other->host, 0);
    }
    etcd_->Heal(node->host);
  }
  etcd_->Wake();
  etcd_->SetFull(false);
  for (const auto& node : nodes_) {
    if (node->stopped()) node->GoOn();
    loops_.BlockOn(node->store().drain().End());
  }
}

void NodeWorld::ComeTogether() {
  quiet_ = true;
  MakeWhole();
  etcd_->SetChances({});
  std::set<std::string> ids;
  for (const auto& node : nodes_) {
    if (!ids.insert(node->id).second) node->Kill();  // a clone
  }
  if (random_.Chance(often_.releases)) {
    RealNode& node = *Running()[random_.Below(Running().size())];
    Fault("too new", node.host);
    node.Kill();
    node.release = NodeRelease::kApart;
    Start(node);
  }
  Pass(CellLimits::kKeepAliveUs + kSecond);
  for (RealNode* node : Running()) {
    // Whom a clone beside it has ended, a person starts again.
    if (node->member().ended()) node->Kill(), Start(*node);
  }
  if (!AllJoin()) return;
  CheckApart();
  if (!broken_.empty()) return;
  const std::vector<RealNode*> nodes = Running();
  for (RealNode* node : nodes) {
    const std::size_t which = model_.Ask(
        {.drop = {.what = CellDrop::What::kKeys, .name = names_[kPlain], .keys = {CellModel::KeyOf(1)}},
         .numbers = {1},
         .deadline = clock_.Now().PlusUs(40 * kSecond)});
    node->calls().Spawn(DropAt(*node, which, DropWait::kApplied));
    while (!model_.drop(which).ended && broken_.empty()) Pass(kSecond / 10);
    if (!model_.drop(which).acknowledged)
      Break(Text("a drop at ", node->host, " was not acknowledged in a quiet cell"));
    Look(*node);
  }
  if (broken_.empty() && !AllReadWhatOneHas(nodes)) return;
  // Leases of a second, and what others were to have.
  Pass(10 * kSecond);
  CheckConnections(nodes);
  CheckKept(nodes);
}

bool NodeWorld::AllJoin() {
  const std::vector<RealNode*> nodes = Running();
  const Instant until = clock_.Now().PlusUs(90 * kSecond);
  while (broken_.empty()) {
    const auto out = std::ranges::find_if(nodes, [](const auto& node) { return !node->member().joined(); });
    if (out == nodes.end()) return true;
    if (clock_.Now() > until)
      Break(Text((*out)->host, " has not joined within 90 s: ", (*out)->member().why().message()));
    Pass(kSecond / 10);
  }
  return false;
}

// A copy that a member is offered just then is leased for a moment.
void NodeWorld::CheckKept(std::vector<RealNode*> nodes) {
  const auto kept = [](RealNode& node) {
    const store::BlockStore::Occupancy occupied = node.store().occupancy();
    const PeerReader& reader = node.sharing().reader();
    return occupied.leases + occupied.pending + reader.landing_bytes() + reader.transfers() == 0
               ? std::string()
               : Text(node.host, " keeps ", occupied.leases, " leases, ", occupied.pending, " puts, ",
                      reader.transfers(), " transfers and ", reader.landing_bytes(), " bytes for nobody");
  };
  for (int looks = 0; broken_.empty(); ++looks) {
    std::erase_if(nodes, [&](RealNode* node) { return kept(*node).empty(); });
    if (nodes.empty()) return;
    if (looks == 20) Break(kept(*nodes.front()));
    Pass(kSecond / 4);
  }
}

void NodeWorld::CheckConnections(const std::vector<RealNode*>& nodes) {
  for (RealNode* node : nodes) {
    for (RealNode* other : nodes) {
      if (node == other) continue;
      const std::uint64_t process = other->member().options().process_number;
      if (!node->member().Reaches(process)) {
        Break(Text(node->host, " has no connection to ", other->host,
                   " in a quiet cell: ", node->member().WhyApart(other->id)));
      } else if (const Peer* peer = node->sharing().peers().Find(process);
                 peer == nullptr || peer->room_bytes == 0) {
        Break(Text(node->host, " has not heard what room ", other->host, " has"));
      }
    }
  }
}

bool NodeWorld::AreApart(RealNode& one, RealNode& other) {
  const std::string why = one.member().WhyApart(other.id);
  return !one.member().Reaches(other.member().options().process_number) &&
         why.find("bring both to releases that are neighbours") != std::string::npos;
}

void NodeWorld::CheckApart() {
  std::vector<RealNode*> apart, others;
  for (RealNode* node : Running()) (node->release == NodeRelease::kApart ? apart : others).push_back(node);
  if (!apart.empty() && !others.empty()) {
    const Instant until = clock_.Now().PlusUs(30 * kSecond);
    for (RealNode* one : apart) {
      for (RealNode* other : others) {
        while (broken_.empty() && !(AreApart(*one, *other) && AreApart(*other, *one))) {
          if (clock_.Now() > until)
            Break(Text(one->host, " and ", other->host, " do not say that they have no version in common: ",
                       one->member().WhyApart(other->id), "; ", other->member().WhyApart(one->id)));
          Pass(kSecond / 10);
        }
      }
    }
    if (!broken_.empty()) return;
    // It is a member, whose clients a drop has to reach as well.
    const CellDrop drop = {
        .what = CellDrop::What::kKeys, .name = names_[kPlain], .keys = {CellModel::KeyOf(1)}};
    // Another one may be missing at first: its connections are new.
    const auto names = [&](std::string_view said) {
      return std::ranges::any_of(
          apart, [&](const auto& one) { return said.find(Text(one->id, " not yet")) != said.npos; });
    };
    std::string said;
    for (int tries = 0; tries < 10 && !names(said); ++tries) {
      const Instant deadline = clock_.Now().PlusUs(3 * kSecond);
      const auto receipt = loops_.BlockOn(others.front()->member().Drop(drop, DropWait::kApplied, deadline));
      if (receipt) return Break(Text("a drop is acknowledged for ", apart.front()->host, ", which is apart"));
      said = receipt.error().message();
    }
    if (!names(said))
      return Break(Text("a drop does not say that it waits for ", apart.front()->host, ": ", said));
  }
  if (apart.empty() || !AllReadWhatOneHas(apart) || (!others.empty() && !AllReadWhatOneHas(others))) return;
  for (RealNode* node : apart) {
    node->Kill();
    node->release = NodeRelease::kThis;
    Start(*node);
  }
  (void)AllJoin();
}

bool NodeWorld::AllReadWhatOneHas(const std::vector<RealNode*>& nodes) {
  RealNode& first = *nodes.front();
  for (RealNode* node : nodes) loops_.BlockOn(Attach(*node, kPlain));
  Pass(kSecond);
  for (int tries = 0;; ++tries) {
    const Chain chain = NewChain(++last_conversation_, 4);
    loops_.BlockOn(Put(first, kPlain, chain, 0));
    Pass(kSecond);  // the others hear of it
    std::size_t readers = 0;
    for (RealNode* node : nodes) {
      const std::uint64_t before = hits;
      loops_.BlockOn(Read(*node, kPlain, chain, 0));
      readers += hits - before == chain.size() ? 1 : 0;
    }
    if (readers == nodes.size()) return true;
    if (!broken_.empty()) return false;
    if (tries == 60) {
      Break(Text("only ", readers, " of ", nodes.size(), " read what ", first.host, " has within a minute"));
      return false;
    }
  }
}

}  // namespace cistern::mesh
