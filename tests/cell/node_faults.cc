// SPDX-License-Identifier: Apache-2.0
// What goes wrong in a world of the storm of nodes.
#include <algorithm>
#include <utility>

#include "base/event.h"
#include "base/format.h"
#include "base/random_bytes.h"
#include "node_world.h"
#include "store/drain.h"

namespace cistern::mesh {

// ---- nodes -----------------------------------------------------------------------------------------------

void NodeWorld::ActOnMembers() {
  RealNode& node = AnyNode();
  if (!node.running()) return Start(node);
  if (random_.Chance(often_.power)) return FailPower();
  if (random_.Chance(0.02)) return PassHours(node);
  if (random_.Chance(often_.releases)) return ChangeRelease(node);
  if (node.stopped()) {
    if (random_.Chance(0.3)) return Kill(node);
    return Stop(AnyNode());
  }
  switch (random_.Below(13)) {
    case 1:
    case 2: return DrainAnywhere(node);
    case 3: {
      if (!node.member().joined()) return;
      const auto up_to = static_cast<std::uint64_t>(node.member().state().seen);
      Fault("trim", "at " + node.host);
      node.calls().Spawn(TrimAt(node, {static_cast<std::int64_t>(random_.Below(up_to + 1)),
                                       static_cast<std::int64_t>(random_.Below(up_to + 1))}));
      return;
    }
    case 4:
    case 5: return Stop(node);
    case 6: return Clone(node);
    case 7: return FailPowerOf(node);
    default: break;
  }
  if (random_.Chance(0.1)) {
    Fault("clock set", node.host + " ahead");
    return node.clock.SetAhead(Us(10 * kSecond));
  }
  if (random_.Chance(0.5)) {
    node.HoldMovers();
    Pass(Us(20'000));
    if (!node.running()) return;
  }
  Kill(node);
}

void NodeWorld::FailPower() {
  Fault("power", "");
  PowerOff();
  dark_.clear();
  for (auto& one : nodes_) {
    LoseMemory(*one, 0.5);
  }
  PowerOn();
}

// The others hear nothing of it, but that nothing comes.
void NodeWorld::FailPowerOf(RealNode& node) {
  Fault("power of one", node.host);
  NoteDrained(node);
  for (const auto& other : nodes_) {
    if (other.get() == &node) continue;
    network_->Cut(node.host, other->host);
    network_->Cut(other->host, node.host);
  }
  node.Crash();
  node.Reboot();
  dark_.insert(&node);
  Later(random_.Chance(0.5) ? 30 * kSecond : kSecond, [this, &node] {
    if (!node.running()) Start(node);
  });
}

// What goes to others alone, and what may go by itself, is not asked for.
void NodeWorld::NoteDrained(RealNode& node) {
  drained_.erase(&node);
  if (!node.awake() || !memory_goes_[&node]) return;
  const store::Drain& drain = node.store().drain();
  if (!drain.complete() || drain.alone() > 0) return;
  ++kinds["power after a drain"];
  std::vector<std::set<std::uint64_t>>& kept = drained_[&node];
  for (std::size_t space = 0; space < specs_.size(); ++space) {
    kept.emplace_back();
    const std::optional<std::uint32_t> slot = node.SlotOf(names_[space]);
    if (!slot) continue;
    for (const std::uint64_t number : model_.known(space)) {
      const auto look = node.store().LookAt(*slot, CellModel::KeyOf(number));
      if (look && look->here && model_.Stays(space, number)) kept.back().insert(number);
    }
  }
}

void NodeWorld::CheckDrained(RealNode& node, std::size_t space, std::uint32_t slot) {
  const auto drained = drained_.find(&node);
  if (drained == drained_.end()) return;
  for (const std::uint64_t number : drained->second[space]) {
    const auto look = node.store().LookAt(slot, CellModel::KeyOf(number));
    if (model_.Stays(space, number) && (!look || !look->here))
      return Break(Text("P7: ", node.host, " has lost block ", number, " with its power after a drain"));
  }
}

// By that chance. A member of another boot waits until the one before has lapsed: not too often.
void NodeWorld::LoseMemory(RealNode& node, double chance) {
  if (!random_.Chance(chance)) return;
  const bool reboots = random_.Chance(0.2);
  Say(node.host + (reboots ? " reboots" : " loses its memory"));
  reboots ? node.Reboot() : node.ForgetMemory();
}

void NodeWorld::DrainAnywhere(RealNode& node) {
  store::DrainOrder order{.memory_goes = random_.Chance(0.7),
                          .deadline = clock_.Now().PlusUs(Us(5 * kSecond))};
  order.lower_tier_goes = order.memory_goes && random_.Chance(0.5);
  Fault("drain", node.host + (order.lower_tier_goes ? " for good" : ""));
  memory_goes_[&node] = order.memory_goes;
  node.calls().Spawn(Drain(node, order));
  const std::uint64_t process = node.member().options().process_number;
  Later(6 * kSecond, [this, &node, process] {
    if (!node.awake() || node.member().options().process_number != process) return;
    Say("in service again: " + node.host);
    loops_.BlockOn(node.store().drain().End());
  });
}

// Within its lease, or past it.
void NodeWorld::Stop(RealNode& node) {
  if (!node.awake()) return;
  Fault("stop", node.host);
  node.Stop();
  const std::uint64_t process = node.member().options().process_number;
  Later(random_.Chance(0.3) ? 40 * kSecond : 4 * kSecond, [this, &node, process] {
    if (!node.stopped() || node.member().options().process_number != process) return;
    Say("goes on: " + node.host);
    node.GoOn();
  });
}

// Mostly of one that was killed then: its id lapses, and the other may have it first.
void NodeWorld::Clone(RealNode& node) {
  if (nodes_.size() >= 7 || random_.Chance(0.5)) return;
  const std::string host(1, static_cast<char>('a' + nodes_.size()));
  const bool beside = random_.Chance(0.3);
  Fault("clone", Text(host, " of ", node.host, beside ? " beside it" : ""));
  nodes_.push_back(std::make_unique<RealNode>(host, node, beside, random_.Next()));
  model_.NoteCopy(node, *nodes_.back());
  if (random_.Chance(0.7)) Kill(node);
  Start(*nodes_.back());
}

// An upgrade that goes wrong is taken back, or is done for the others too.
void NodeWorld::ChangeRelease(RealNode& node) {
  constexpr NodeRelease kAll[] = {NodeRelease::kEarlier, NodeRelease::kThis, NodeRelease::kLater,
                                  NodeRelease::kApart};
  const NodeRelease next = kAll[random_.Below(random_.Chance(0.5) ? 4 : 3)];
  if (next == node.release) return;
  const bool up = next > node.release;
  Fault(next == NodeRelease::kApart ? "too new" : up ? "upgrade" : "downgrade", node.host);
  node.Kill();
  LoseMemory(node, 0.1);
  node.release = next;
  Later(kSecond, [this, &node] {
    if (!node.running()) Start(node);
  });
  if (next != NodeRelease::kApart) return;
  Later(30 * kSecond, [this, &node] {
    if (node.release != NodeRelease::kApart) return;
    Say("back at this release: " + node.host);
    node.Kill();
    node.release = NodeRelease::kThis;
    Start(node);
  });
}

// A node is away from before some drops until they are trimmed, or ends alone are. The hours themselves are
// a moment for all: they do not run, and find that their memberships have lapsed.
void NodeWorld::PassHours(RealNode& node) {
  Fault("hours", node.host + " is away");
  calm_ = true;
  MakeWhole();
  node.Kill();
  LoseMemory(node, 0.3);
  for (int i = 0; i < 10; ++i) {
    Act();
    Pass(Us(kSecond));
  }
  for (RealNode* one : Running()) one->Stop();
  clock_.AdvanceUs(static_cast<std::int64_t>(random_.Between(1, 30)) * 3600 * kSecond);
  for (RealNode* one : Running()) one->GoOn();
  Pass(2 * Trimmer::kEveryUs + Us(20 * kSecond));
  for (RealNode* one : Running()) {
    const CellFloor floor = one->member().state().floor;
    Say(Text("the floor at ", one->host, " is ", floor.drops, ", of ends ", floor.ends));
  }
  calm_ = false;
  if (broken_.empty()) Start(node);
}

void NodeWorld::Kill(RealNode& node) {
  Fault("kill", node.host);
  node.Kill();
  LoseMemory(node, 0.3);
  Later(random_.Chance(0.5) ? 30 * kSecond : kSecond, [this, &node] {
    if (!node.running()) Start(node);
  });
}

// ---- etcd ------------------------------------------------------------------------------------------------

void NodeWorld::ActOnEtcd() {
  const std::int64_t long_us = random_.Chance(0.3) ? 20 * kSecond : 2 * kSecond;
  switch (random_.Below(13)) {
    case 0:
      Fault("etcd silent", "");
      etcd_->FallSilent();
      Later(long_us, [this] { etcd_->Wake(); });
      break;
    case 1:
      Fault("etcd stopped", "");
      etcd_->Stop();
      Later(long_us, [this] { etcd_->Start(); });
      break;
    case 2:
    case 3: {
      const std::string host = AnyNode().host;
      Fault("etcd cut", "from " + host);
      etcd_->Cut(host);
      Later(long_us, [this, host] { etcd_->Heal(host); });
      break;
    }
    case 4:
      Fault("watches cancelled", "");
      etcd_->CancelWatches();
      break;
    case 5:
      Fault("watches silent", "");
      etcd_->SilenceWatches();
      break;
    case 6: {
      Fault("etcd compacted", "");
      const auto to = static_cast<std::uint64_t>(etcd_->header().revision);
      etcd_->Compact(
          static_cast<std::int64_t>(random_.Between(to - std::min<std::uint64_t>(to - 1, 10), to)));
      break;
    }
    case 7:
      if (!random_.Chance(0.6)) break;
      Fault("leases lost", "");
      etcd_->LoseLeases();
      leases_broken_until_ = clock_.Now().PlusUs(CellLimits::kLeaseS * kSecond);
      break;
    case 8:
      Fault("etcd full", "");
      etcd_->SetFull(true);
      Later(long_us, [this] { etcd_->SetFull(false); });
      break;
    case 9:
    case 10: backups_.push_back({etcd_->TakeBackup(), etcd_->header().revision}); break;
    case 11: RestoreEtcd(); break;
    case 12:
      if (random_.Chance(0.4)) DropUnreadably();
      break;
  }
}

// As a member of a later release would whose batches are others.
void NodeWorld::DropUnreadably() {
  Unreadable made;
  for (std::size_t space = 0; space < specs_.size(); ++space) {
    made.drops.push_back(
        model_.Ask({.drop = {.what = CellDrop::What::kNamespace, .name = names_[space]}, .space = space}));
    ++drops;
  }
  const std::string key = CellKeys("/cistern/").Drops() + CellKeys::BatchName(random_.Next(), 1);
  etcd::Transaction write;
  write.then.push_back({.keys = {key, ""}, .value = "of a later release"});
  const std::unique_ptr<etcd::Etcd> writer = etcd_->Client("writer");
  const auto answer = loops_.BlockOn(writer->Commit(std::move(write), clock_.Now().PlusUs(kSecond)));
  Fault("unreadable drop", answer ? "" : "perhaps");
  if (!answer) return;
  made.batch = {answer->header.revision, BatchHash(key)};
  unreadable_.push_back(std::move(made));
}

// As DropWriter does of what its member wrote.
void NodeWorld::AcknowledgeUnreadable() {
  for (RealNode* node : Running()) {
    if (!node->awake() || !node->member().joined()) continue;
    const CellState& state = node->member().state();
    std::erase_if(unreadable_, [&](const Unreadable& one) {
      const std::int64_t revision = one.batch.revision;
      if (!state.known.Has(one.batch) || state.seen < revision || state.applied < revision ||
          !AcknowledgedBy(state.view, state.heard, state.known, state.history, one.batch).complete())
        return false;
      for (const std::size_t which : one.drops)
        Acknowledge(which, *node, {.history = state.history, .revision = revision});
      return true;
    });
  }
}

// Who restores it has the cell whole, but for one that may be stopped or away, and goes on when all have
// noticed. Of what the restore loses, somebody is left who knows: nobody else could notice.
void NodeWorld::RestoreEtcd() {
  if (backups_.empty()) return;
  calm_ = true;
  MakeWhole();
  Pass(5 * kSecond);
  if (random_.Chance(0.5)) random_.Chance(0.5) ? Stop(AnyNode()) : Kill(AnyNode());
  calm_ = false;
  const EtcdBackup backup = backups_[random_.Below(backups_.size())];
  const bool another_cluster = random_.Chance(0.3);
  bool known = false;
  const std::uint64_t history = HistoryInEtcd();
  for (const auto& node : nodes_) {
    if (!node->running() || !node->member().joined()) continue;
    if (node->member().state().history != history) return;
    const bool knows = another_cluster || node->member().state().last_seen.revision > backup.revision;
    known = known || (knows && node->awake());
  }
  if (!known || !broken_.empty()) return;
  Fault("etcd restored", Text("to ", backup.revision, another_cluster ? " as another cluster" : ""));
  etcd_->Restore(*backup.kept, another_cluster);
  model_.NoteRestore();
  leases_broken_until_ = clock_.Now().PlusUs(CellLimits::kLeaseS * kSecond);
  backups_.clear();
  calm_ = true;
  const Instant until = clock_.Now().PlusUs(60 * kSecond);
  const auto noticed = [&] {
    return HistoryInEtcd() != history && std::ranges::none_of(nodes_, [&](const auto& node) {
             return node->awake() && node->member().joined() && node->member().state().history == history;
           });
  };
  while (!noticed() && broken_.empty()) {
    if (clock_.Now() > until) return Break("a restored etcd was not noticed within 60 s");
    Act();
    Pass(Us(100'000));
  }
  calm_ = false;
}

// 0: none.
std::uint64_t NodeWorld::HistoryInEtcd() {
  const std::unique_ptr<etcd::Etcd> oracle = etcd_->Client("oracle");
  while (true) {
    etcd::RangeRequest request{.keys = {CellKeys("/cistern/").History(), ""}};
    const auto answer = loops_.BlockOn(oracle->Range(std::move(request), clock_.Now().PlusUs(kSecond)));
    if (!answer) continue;
    return answer->keys.empty() ? 0 : HistoryValue::Decode(answer->keys.front().value)->number;
  }
}

// ---- network ---------------------------------------------------------------------------------------------

void NodeWorld::ActOnNetwork() {
  const std::string from = AnyNode().host, to = AnyNode().host;
  const std::int64_t long_us = random_.Chance(0.3) ? 20 * kSecond : 2 * kSecond;
  if (random_.Chance(0.1)) {
    Fault("stranger", "at " + to);
    strangers_->Spawn(Babble(*stranger_, to + (random_.Chance(0.5) ? ":1" : ":2")));
    return;
  }
  if (from == to) return;
  if (random_.Chance(0.1)) {
    Fault("flips", "from " + from + " to " + to);
    network_->Flip(from, to, random_.Chance(0.5) ? 1 : 0.2);
    return Later(long_us, [this, from, to] { network_->Flip(from, to, 0); });
  }
  if (random_.Chance(0.15)) {
    Fault("cut off", from);
    for (const auto& other : nodes_) {
      if (other->host == from) continue;
      network_->Cut(from, other->host);
      network_->Cut(other->host, from);
    }
    return Later(long_us, [this, from] {
      for (const auto& other : nodes_) {
        network_->Heal(from, other->host);
        network_->Heal(other->host, from);
      }
    });
  }
  if (random_.Chance(0.3)) {
    Fault("reset", from + " and " + to);
    return network_->Reset(from, to);
  }
  Fault("cut", from + " to " + to);
  network_->Cut(from, to);
  Later(long_us, [this, from, to] { network_->Heal(from, to); });
}

Task<void> NodeWorld::Babble(net::Network& from, std::string address) {
  const auto deadline = [this] { return clock_.Now().PlusUs(5 * kSecond); };
  auto stream = co_await from.Connect(std::move(address), deadline());
  for (std::uint64_t left = stream ? random_.Between(1, 5) : 0; left > 0; --left) {
    std::vector<std::byte> bytes(random_.Between(1, random_.Chance(0.5) ? 40 : 40'000));
    FillRandom(random_.Next(), bytes);
    const std::span<const std::byte> piece = bytes;
    const Status sent = co_await (*stream)->Send({&piece, 1}, deadline());
    if (!sent.ok()) co_return;
    (void)co_await SleepUntil(clock_.Now().PlusUs(Us(2 * kSecond)));
  }
}

}  // namespace cistern::mesh
