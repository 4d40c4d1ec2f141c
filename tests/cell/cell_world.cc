// SPDX-License-Identifier: Apache-2.0
#include "cell_world.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/event.h"
#include "mesh/peer_reader.h"
#include "mesh/rule_admission.h"

namespace cistern::mesh {
namespace {

constexpr std::int64_t kSecond = 1'000'000;
constexpr int kActions = 400;
constexpr std::int64_t kSlackUs = 1'000;

}  // namespace

CellWorld::CellWorld(std::uint64_t seed, bool trace) : random_(seed), cell_(random_.Next()), trace_(trace) {
  cell_.etcd.SetLags({.answer_us = 200 + Us(5'000), .event_us = 200 + Us(50'000), .lapse_us = Us(kSecond)});
  if (random_.Chance(0.7)) {
    const double rate = random_.Unit() * 0.02;
    cell_.etcd.SetChances({.lost_question = rate,
                           .lost_answer = rate,
                           .broken_call = rate,
                           .slow = rate,
                           .cancelled_watch = rate,
                           .silent_watch = rate / 4,
                           .split = 0.2});
  }
  cell_.faults = {
      .sync_us = 100 + Us(2'000), .slow_sync = 0.02, .failed_sync = random_.Chance(0.3) ? 0.02 : 0};
  oracle_ = cell_.etcd.Client("oracle");
  const std::uint64_t members = random_.Between(2, 5);
  for (std::uint64_t i = 0; i < members; ++i) cell_.Add(std::string(1, static_cast<char>('a' + i)));
  for (int i = 0; i < 4; ++i) conversations_.push_back(++last_conversation_);
}

CellWorld::~CellWorld() {
  for (auto& node : cell_.nodes) cell_.Kill(*node);
}

void CellWorld::Say(const std::string& what) {
  if (trace_)
    std::fprintf(stderr, "%12.6f %s\n", static_cast<double>(cell_.clock.Now().ns) / 1e9, what.c_str());
}

void CellWorld::Break(std::string what) {
  Say("BROKEN " + what);
  if (broken_.empty()) broken_ = std::move(what);
}

std::string CellWorld::Run() {
  for (auto& node : cell_.nodes) cell_.Start(*node);
  for (int i = 0; i < kActions && broken_.empty(); ++i) {
    Act();
    Pass(random_.Chance(0.1) ? Us(2 * kSecond) : Us(30'000));
  }
  if (broken_.empty()) ComeTogether();
  return broken_;
}

void CellWorld::Pass(std::int64_t us) {
  const Instant until = cell_.clock.Now().PlusUs(us);
  while (broken_.empty() && cell_.clock.Now() < until) {
    const Instant next = later_.empty() ? until : std::min(until, later_.begin()->first);
    Task<void> pass = cell_.Pass(std::max<std::int64_t>(0, next.UsSince(cell_.clock.Now())) + 1);
    while (!pass.done() && broken_.empty()) {
      cell_.loop->PollOnce();
      Check();
      if (!pass.done()) cell_.loop->Turn();
      Check();
    }
    while (!later_.empty() && later_.begin()->first <= cell_.clock.Now()) {
      const auto first = later_.extract(later_.begin());
      first.mapped()();
    }
  }
}

void CellWorld::Later(std::int64_t most_us, std::function<void()> call) {
  later_.emplace(cell_.clock.Now().PlusUs(Us(most_us)), std::move(call));
}

// ---- what clients do -------------------------------------------------------------------------------------

std::vector<BlockKey> CellWorld::AnyChain() {
  std::vector<BlockKey> chain;
  std::uint64_t path = 0;
  const std::uint64_t depth = random_.Between(1, 4);
  for (std::uint64_t i = 0; i < depth; ++i) chain.push_back(KeyOf(path = path * 4 + random_.Between(1, 2)));
  return chain;
}

void CellWorld::Write(TestNode& node) {
  Written made{.name = NamespaceOf(random_.Chance(0.7) ? 1 : 2), .chain = AnyChain(), .order = ++order_};
  const RecordName name{made.name, made.chain.back()};
  if (node.store->tree().contains(name)) {
    if (random_.Chance(0.3)) node.store->Evict(name);
    return;
  }
  ModelRecord record{.put = written_.size(), .chain = made.chain};
  if (random_.Chance(0.5)) record.notes.push_back(conversations_[random_.Below(conversations_.size())]);
  written_.push_back(std::move(made));
  node.store->Put(name, std::move(record));
}

void CellWorld::AskForDrop(TestNode& node) {
  const std::size_t which = dropped_.size();
  Dropped asked{.order = ++order_};
  const SharedNamespace name = NamespaceOf(random_.Chance(0.7) ? 1 : 2);
  if (random_.Chance(0.05)) {
    asked.drop = {.what = CellDrop::What::kNamespace, .name = name};
  } else if (random_.Chance(0.3)) {
    const std::size_t at = random_.Below(conversations_.size());
    asked.drop = EndOf(name, conversations_[at]);
    conversations_[at] = ++last_conversation_;
  } else {
    asked.drop = DropOfKeys(name, {AnyChain().back()});
    if (random_.Chance(0.3)) asked.drop.keys.push_back(AnyChain().back());
  }
  asked.deadline = cell_.clock.Now().PlusUs(100'000 + Us(20 * kSecond));
  Say(Text("drop ", which, " at ", node.host));
  dropped_.push_back(std::move(asked));
  ++drops;
  node.calls->Spawn(DropAt(node, which, random_.Chance(0.9) ? DropWait::kApplied : DropWait::kDurable));
}

Task<void> CellWorld::DropAt(TestNode& node, std::size_t which, DropWait wait) {
  dropped_[which].node = &node;
  dropped_[which].process = node.member->options().process_number;
  under_way_.insert(which);
  const Instant deadline = dropped_[which].deadline;
  CellDrop drop = dropped_[which].drop;
  const auto receipt = co_await node.member->Drop(std::move(drop), wait, deadline);
  dropped_[which].ended = true;
  under_way_.erase(which);
  if (cell_.clock.Now() > deadline.PlusUs(kSlackUs))
    Break(Text("P3: drop ", which, " ended after its deadline"));
  if (!receipt) {
    Say(Text("drop ", which, " failed: ", receipt.error().ToString()));
    co_return;
  }
  dropped_[which].history = receipt->history;
  dropped_[which].revision = receipt->revision;
  dropped_[which].etcd_life = etcd_lives_;
  for (const Taken& one : taken_) CheckTaken(one, dropped_[which]);
  if (wait == DropWait::kApplied) Acknowledge(which, node, *receipt);
}

void CellWorld::Acknowledge(std::size_t which, TestNode& writer, const DropReceipt& receipt) {
  Dropped& dropped = dropped_[which];
  Say(Text("drop ", which, " acknowledged at revision ", receipt.revision, " by ", receipt.applied));
  dropped.acknowledged = true;
  ++acknowledged;
  const CellState& state = writer.member->state();
  for (const auto& node : cell_.nodes) {
    if (!node->member) continue;
    const auto heard = state.heard.find(node->member->options().process_number);
    const auto view = state.view.members.find(node->id);
    if (view != state.view.members.end() && heard != state.heard.end() &&
        view->second.process_number == heard->first && heard->second.history == receipt.history &&
        heard->second.a >= receipt.revision)
      dropped.bound.insert(node.get());
  }
  if (dropped.drop.is_end()) ended_[dropped.drop.conversation].push_back(which);
  for (Written& written : written_) {
    if (written.order < dropped.order && Covers(dropped.drop, written.name, written.chain))
      written.dead_by.push_back(which);
  }
}

Task<void> CellWorld::Read(TestNode& at, TestNode& from, RecordName name, std::uint64_t conversation) {
  if (!at.member->joined()) co_return;
  const std::int64_t began = at.member->drops().last();
  const std::uint64_t asked_history = at.member->state().history;
  co_await cell_.Pass(Us(2'000));
  if (!from.member) co_return;
  const std::uint64_t process = from.member->options().process_number;
  const auto alive = [&] { return from.member && from.member->options().process_number == process; };
  const std::optional<Answered> answered = from.member->Answering();
  // An answer under another history is none.
  if (!answered || answered->history != asked_history) co_return;
  if (random_.Chance(0.3)) co_await cell_.Pass(Us(5'000));
  if (!alive()) co_return;
  const auto found = from.store->tree().find(name);
  if (found == from.store->tree().end()) co_return;
  ModelRecord record = found->second;
  co_await cell_.Pass(random_.Chance(0.2) ? Us(5 * kSecond) : Us(20'000));
  const Instant until = cell_.clock.Now().PlusUs(PeerReadLimits::kCatchUpUs);
  while (at.member->Behind(*answered)) {
    const Status waited = co_await at.member->Changed(until);
    if (!waited.ok()) break;
  }
  ChainCheck check(at.member->drops(), name.name, record.chain, answered->a);
  RuleAdmission admission(*at.member, name.name, check, {*answered, record.notes}, {conversation, began});
  const auto look = [&] {
    auto touches = static_cast<std::uint32_t>(random_.Between(1, 4));
    return admission.Look(&touches);
  };
  RuleAdmission::Answer answer = look();
  for (; answer == RuleAdmission::Answer::kMore; answer = look()) co_await cell_.Pass(Us(1'000));
  // The core step that publishes it.
  if (answer != RuleAdmission::Answer::kTake) {
    ++refused;
    co_return;
  }
  record.notes = admission.Notes();
  if (at.store->tree().contains(name)) co_return;
  ++taken;
  Say(Text("record ", record.put, " of ", from.host, " taken at ", at.host, ", a ", answered->a, ", seen ",
           at.member->state().seen, ", applied ", at.member->state().applied));
  // What a member has seen before it has noticed a restore is the earlier etcd's, unless it has seen more
  // since: who was in no cell then joins under the earlier history until somebody notices.
  const auto saw = seen_at_restore_.find(&at);
  const bool earlier = calm_ && answered->history == unnoticed_ && saw != seen_at_restore_.end() &&
                       at.member->state().seen <= saw->second;
  const std::uint64_t life = earlier ? etcd_lives_ - 1 : etcd_lives_;
  taken_.push_back(
      {&at, name.name, record.chain, answered->history, life, answered->a, at.member->state().seen});
  for (const Dropped& dropped : dropped_) CheckTaken(taken_.back(), dropped);
  at.store->Put(name, std::move(record));
}

void CellWorld::CheckTaken(const Taken& one, const Dropped& dropped) {
  if (dropped.revision == 0 || dropped.history != one.history || dropped.etcd_life != one.etcd_life) return;
  if (dropped.revision <= one.a || dropped.revision > one.seen) return;
  if (Covers(dropped.drop, one.name, one.chain))
    Break(Text("the rule: ", one.node->host, " took a record answered with ", one.a, " when it had seen ",
               one.seen, ", and the drop at ", dropped.revision, " covers it"));
}

// ---- what goes wrong -------------------------------------------------------------------------------------

void CellWorld::Act() {
  // A moment after the member has learnt it, as a node does.
  for (const auto& node : cell_.nodes)
    ShownBy(*node).term.SetEnd(node->member ? node->member->valid_until() : Instant());
  TestNode& node = AnyNode();
  for (int i = 0; i < 3; ++i) {
    if (node.member && random_.Chance(0.8)) Write(node);
  }
  TestNode& other = AnyNode();
  if (node.member && &node != &other && other.member && !other.store->tree().empty()) {
    for (int i = 0; i < 4; ++i) {
      auto record = other.store->tree().begin();
      std::advance(record, static_cast<std::ptrdiff_t>(random_.Below(other.store->tree().size())));
      node.calls->Spawn(
          Read(node, other, record->first, conversations_[random_.Below(conversations_.size())]));
    }
  }
  if (node.member && random_.Chance(0.4)) AskForDrop(node);
  if (calm_) return;
  if (random_.Chance(0.10)) ActOnMembers();
  if (random_.Chance(0.10)) ActOnEtcd();
  if (random_.Chance(0.06)) ActOnNetwork();
}

void CellWorld::ActOnMembers() {
  ++faults;
  TestNode& node = AnyNode();
  if (!node.member) return StartAgain(node);
  if (random_.Chance(0.25)) {
    if (!node.member->joined()) return;
    const auto up_to = static_cast<std::uint64_t>(node.member->state().seen);
    const CellFloor floor{static_cast<std::int64_t>(random_.Below(up_to + 1)),
                          static_cast<std::int64_t>(random_.Below(up_to + 1))};
    Say(Text("trim ", floor.drops, " ", floor.ends, " at ", node.host));
    node.calls->Spawn(TrimAt(node, floor));
    return;
  }
  if (random_.Chance(0.05) && cell_.nodes.size() < 7) {
    TestNode& clone = cell_.Add(node.id, node.id + std::to_string(cell_.nodes.size()));
    clone.boot = static_cast<std::uint8_t>(10 + cell_.nodes.size());
    if (random_.Chance(0.5)) clone.medium = node.medium;
    cell_.Start(clone);
    Say("clone " + clone.host);
    return;
  }
  Say("kill " + node.host);
  cell_.Kill(node);
  if (random_.Chance(0.1)) node.boot = static_cast<std::uint8_t>(node.boot + 50);
  Later(random_.Chance(0.5) ? 30 * kSecond : kSecond, [this, &node] {
    if (!node.member) StartAgain(node);
  });
}

// Mostly with what it missed trimmed while it reads: then the floor has to be of the same revision as the
// drops.
void CellWorld::StartAgain(TestNode& node) {
  ShownBy(node).term.SetEnd({});  // whatever the one before has left there, as a node does
  cell_.Start(node);
  Say("start " + node.host);
  if (random_.Chance(0.5)) Later(100'000, [this] { TrimAnywhere(); });
}

void CellWorld::TrimAnywhere() {
  TestNode& node = AnyNode();
  if (!node.member || !node.member->joined()) return;
  const std::int64_t seen = node.member->state().seen;
  Say(Text("trim ", seen, " at ", node.host));
  node.calls->Spawn(TrimAt(node, {seen, seen}));
}

Task<void> CellWorld::TrimAt(TestNode& node, CellFloor floor) { (void)co_await node.member->Trim(floor); }

void CellWorld::ActOnEtcd() {
  ++faults;
  const std::int64_t long_us = random_.Chance(0.3) ? 20 * kSecond : 2 * kSecond;
  switch (random_.Below(11)) {
    case 0:
      Say("etcd silent");
      cell_.etcd.FallSilent();
      Later(long_us, [this] { cell_.etcd.Wake(); });
      break;
    case 1:
      Say("etcd stopped");
      cell_.etcd.Stop();
      Later(long_us, [this] { cell_.etcd.Start(); });
      break;
    case 2:
    case 3: {
      const std::string host = AnyNode().host;
      Say("etcd cut from " + host);
      cell_.etcd.Cut(host);
      Later(long_us, [this, host] { cell_.etcd.Heal(host); });
      break;
    }
    case 4: cell_.etcd.CancelWatches(); break;
    case 5: cell_.etcd.SilenceWatches(); break;
    case 6: {
      Say("compact");
      const auto to = static_cast<std::uint64_t>(cell_.etcd.header().revision);
      cell_.etcd.Compact(
          static_cast<std::int64_t>(random_.Between(to - std::min<std::uint64_t>(to - 1, 10), to)));
      if (random_.Chance(0.5)) cell_.etcd.CancelWatches();
      break;
    }
    case 7:
      if (!random_.Chance(0.3)) break;
      Say("leases lost");
      cell_.etcd.LoseLeases();
      leases_broken_until_ = cell_.clock.Now().PlusUs(CellLimits::kLeaseS * kSecond);
      break;
    case 8:
      cell_.etcd.SetFull(true);
      Later(long_us, [this] { cell_.etcd.SetFull(false); });
      break;
    case 9:
      backups_.push_back(cell_.etcd.TakeBackup());
      backup_revisions_.push_back(cell_.etcd.header().revision);
      break;
    case 10: Restore(); break;
  }
}

// The cell goes on without further trouble until all have noticed.
void CellWorld::Restore() {
  if (backups_.empty()) return;
  const std::size_t which = random_.Below(backups_.size());
  const bool another = random_.Chance(0.3);
  // Of what a restore loses, somebody is left who knows: who has seen a batch that is gone.
  const bool known = std::ranges::any_of(cell_.nodes, [&](const auto& node) {
    return node->member && node->member->joined() &&
           (another || node->member->state().last_seen.revision > backup_revisions_[which]);
  });
  if (!known) return;
  std::uint64_t history = 0;
  for (const auto& node : cell_.nodes) {
    if (!node->member || !node->member->joined()) continue;
    if (history == 0) history = node->member->state().history;
    if (history != node->member->state().history) return;
  }
  Say(Text("etcd restored to ", backup_revisions_[which]));
  for (const auto& [when, call] : std::exchange(later_, {})) call();
  for (const auto& node : cell_.nodes) {
    for (const auto& third : cell_.nodes) cell_.network.Heal(node->host, third->host);
  }
  while (executor().has_ready()) executor().RunReady(64);
  cell_.etcd.Restore(*backups_[which], another);
  ++etcd_lives_;
  leases_broken_until_ = cell_.clock.Now().PlusUs(CellLimits::kLeaseS * kSecond);
  backups_.clear();
  backup_revisions_.clear();
  calm_ = true;
  unnoticed_ = history;
  seen_at_restore_.clear();
  for (const auto& node : cell_.nodes) {
    if (node->member && node->member->joined()) seen_at_restore_[node.get()] = node->member->state().seen;
  }
  const Instant until = cell_.clock.Now().PlusUs(60 * kSecond);
  const auto noticed = [&] {
    return HistoryInEtcd() != history && std::ranges::none_of(cell_.nodes, [&](const auto& node) {
             return node->member && node->member->joined() && node->member->state().history == history;
           });
  };
  while (!noticed() && broken_.empty()) {
    if (cell_.clock.Now() > until) return Break("a restored etcd was not noticed within 60 s");
    Act();
    Pass(Us(100'000));
  }
  calm_ = false;
}

std::uint64_t CellWorld::HistoryInEtcd() {
  for (;;) {
    etcd::RangeRequest request{.keys = {CellKeys("/cistern/").History(), ""}};
    Task<Result<etcd::RangeAnswer>> asked =
        oracle_->Range(std::move(request), cell_.clock.Now().PlusUs(kSecond));
    while (!asked.done()) {
      cell_.loop->Turn();
      Check();
    }
    const auto answer = asked.Take();
    if (!answer) continue;
    return answer->keys.empty() ? 0 : HistoryValue::Decode(answer->keys.front().value)->number;
  }
}

void CellWorld::ActOnNetwork() {
  ++faults;
  const std::string from = AnyNode().host, to = AnyNode().host;
  if (random_.Chance(0.3)) {
    cell_.network.Reset(from, to);
    return;
  }
  Say(Text("network cut from ", from, " to ", to));
  cell_.network.Cut(from, to);
  Later(random_.Chance(0.3) ? 20 * kSecond : 2 * kSecond, [this, from, to] { cell_.network.Heal(from, to); });
}

// ---- what must hold --------------------------------------------------------------------------------------

bool CellWorld::Binds(const Dropped& dropped, const TestNode& node) const {
  if (dropped.bound.contains(&node)) return true;
  if (!node.member->joined() || cell_.clock.Now() >= node.member->valid_until()) return false;
  if (cell_.clock.Now() < leases_broken_until_) return false;
  // A restored etcd that this member has not noticed yet.
  return dropped.etcd_life == etcd_lives_ || node.member->state().history != dropped.history;
}

bool CellWorld::StrictlyRead(const Dropped& dropped, const TestNode& node) {
  static const catalog::NamespaceEntry kStrict{.strict = true};
  if (cell_.clock.Now() < leases_broken_until_ || !ShownBy(node).term.Serves(kStrict)) return false;
  return dropped.etcd_life == etcd_lives_ || node.member->state().history != dropped.history;
}

void CellWorld::Check() {
  if (!broken_.empty()) return;
  for (const auto& node : cell_.nodes) {
    if (!node->member) continue;
    for (const auto& [name, record] : node->store->tree()) {
      for (const std::size_t which : written_[record.put].dead_by) {
        if (name.name == strict_ && StrictlyRead(dropped_[which], *node))
          return Break(Text("strict: ", node->host, " serves record ", record.put, ", which drop ", which,
                            " at revision ", dropped_[which].revision, " ended for all"));
        if (Binds(dropped_[which], *node))
          return Break(Text("R10: ", node->host, " has record ", record.put, ", which drop ", which,
                            " at revision ", dropped_[which].revision, " ended for it; it has seen ",
                            node->member->state().seen));
      }
      for (const std::uint64_t conversation : record.notes) {
        const auto ended = ended_.find(conversation);
        if (ended == ended_.end()) continue;
        for (const std::size_t which : ended->second) {
          if (dropped_[which].drop.name == name.name && Binds(dropped_[which], *node))
            return Break(Text("R10: ", node->host, " has a note of conversation ", conversation,
                              ", whose end at revision ", dropped_[which].revision, " was acknowledged"));
        }
      }
    }
  }
  // The call of a process that was killed has gone with it.
  for (const std::size_t which : under_way_) {
    const Dropped& dropped = dropped_[which];
    if (!dropped.ended && dropped.node->member &&
        dropped.process == dropped.node->member->options().process_number &&
        cell_.clock.Now() > dropped.deadline.PlusUs(kSlackUs))
      return Break(Text("P3: drop ", which, " has not ended by its deadline"));
  }
}

void CellWorld::ComeTogether() {
  for (const auto& [when, call] : std::exchange(later_, {})) call();
  for (const auto& node : cell_.nodes) {
    for (const auto& other : cell_.nodes) cell_.network.Heal(node->host, other->host);
    cell_.etcd.Heal(node->host);
  }
  cell_.etcd.Wake();
  cell_.etcd.SetFull(false);
  cell_.etcd.SetChances({});
  std::set<std::string> ids;
  for (const auto& node : cell_.nodes) {
    if (!ids.insert(node->id).second) {
      cell_.Kill(*node);  // a clone
    } else if (!node->member) {
      cell_.Start(*node);
    }
  }
  // A lease that was lost is noticed by its next keepalive.
  Pass(CellLimits::kKeepAliveUs + kSecond);
  for (const auto& node : cell_.nodes) {
    // Whom a clone on the same boot has ended, a person starts again.
    if (node->member && node->member->ended()) cell_.Kill(*node), cell_.Start(*node);
  }
  const Instant until = cell_.clock.Now().PlusUs(90 * kSecond);
  while (broken_.empty() && !cell_.AllJoined()) {
    if (cell_.clock.Now() > until) {
      std::string why = "the cell did not come together within 90 s:";
      for (const auto& node : cell_.nodes) {
        if (node->member && !node->member->joined())
          why += Text(" ", node->host, ": ", node->member->why().message());
      }
      return Break(std::move(why));
    }
    Pass(kSecond / 10);
  }
  for (const auto& node : cell_.nodes) {
    if (!node->member || !broken_.empty()) continue;
    const std::size_t which = dropped_.size();
    dropped_.push_back({.drop = DropOfKeys(NamespaceOf(1), {KeyOf(1)}),
                        .order = ++order_,
                        .deadline = cell_.clock.Now().PlusUs(40 * kSecond)});
    node->calls->Spawn(DropAt(*node, which, DropWait::kApplied));
    while (!dropped_[which].ended && broken_.empty()) Pass(kSecond / 10);
    if (!dropped_[which].acknowledged && broken_.empty())
      Break(Text("a drop at ", node->host, " was not acknowledged in a quiet cell"));
  }
}

}  // namespace cistern::mesh
