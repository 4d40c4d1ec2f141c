// SPDX-License-Identifier: Apache-2.0
#include "node_world.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/event.h"
#include "base/format.h"
#include "mesh/shared_names.h"
#include "store/drain.h"

namespace cistern::mesh {
namespace {

constexpr int kActions = 250;
constexpr std::int64_t kSlackUs = 5'000;

NamespaceSpec SpecOf(std::string name, bool strict) {
  NamespaceSpec spec;
  spec.name = name;
  spec.fields = {{"name", std::move(name)}};
  spec.groups = {{.name = "full"}};
  spec.strict = strict;
  return spec;
}

Task<void> SleepOn(Executor&, Instant until) { (void)co_await SleepUntil(until); }

}  // namespace

NodeWorld::NodeWorld(std::uint64_t seed, bool trace)
    : random_(seed), trace_(trace), no_disk_(random_.Next()) {
  lags_ = {.answer_us = 200 + Us(5'000), .event_us = 200 + Us(50'000), .lapse_us = Us(kSecond)};
  if (random_.Chance(0.5)) {
    const double rate = random_.Unit() * 0.02;
    chances_ = {.lost_question = rate,
                .lost_answer = rate,
                .broken_call = rate,
                .slow = rate,
                .cancelled_watch = rate,
                .silent_watch = rate / 4,
                .split = 0.2};
  }
  if (random_.Chance(0.5)) link_ = {.latency_us = 30 + Us(4'000), .bytes_per_us = 5 + random_.Below(100)};
  // Devices of which a read or a write may take as long as a drop does.
  const std::int64_t device_us = random_.Chance(0.5) ? 200 + Us(30'000) : 0;
  // What goes wrong most differs from world to world.
  often_ = {.members = random_.Unit() * 0.25,
            .power = random_.Chance(0.2) ? 0.7 : 0.1,
            .etcd = random_.Unit() * 0.15,
            .network = random_.Unit() * 0.15,
            .drops = random_.Unit() * 0.6,
            .ttl = random_.Chance(0.2) ? 0.8 : 0.1,
            .releases = random_.Chance(0.5) ? 0.3 : 0};
  pace_us_ = random_.Chance(0.3) ? 3'000 : 30'000;
  specs_ = {SpecOf("plain", false), SpecOf("strict", true)};
  const std::uint64_t members = random_.Between(2, 5);
  for (std::uint64_t i = 0; i < members; ++i) {
    RealNodeOptions options;
    options.store.max_blocks = static_cast<std::uint32_t>(random_.Between(12, 60));
    options.store.max_lower_blocks = 4'096;
    if (random_.Chance(0.5)) options.store.lower.write = {WritePolicy::kThrough};
    if (random_.Chance(0.3))
      options.store.max_tombstones = static_cast<std::uint32_t>(random_.Between(4, 40));
    options.flash_bytes = random_.Between(2, 6) << 20;
    options.copies = static_cast<std::uint32_t>(random_.Between(1, 3));
    if (i > 1 && random_.Chance(0.3)) options.role = Role::kStore;
    nodes_.push_back(std::make_unique<RealNode>(std::string(1, static_cast<char>('a' + i)), options, clock_,
                                                random_.Next()));
    if (random_.Chance(0.5)) nodes_.back()->clock.SetAhead(Us(10'000 * kSecond));
    if (often_.releases > 0)
      nodes_.back()->release = random_.Chance(0.5) ? NodeRelease::kEarlier : NodeRelease::kLater;
    if (device_us == 0) continue;
    nodes_.back()->disk.set_time([this, device_us](const io::IoRequest&, const std::string&, Instant now) {
      return now.PlusUs(5 + Us(device_us));
    });
  }
  for (int i = 0; i < 3; ++i) conversations_.push_back(++last_conversation_);
  PowerOn();
}

NodeWorld::~NodeWorld() { PowerOff(); }

void NodeWorld::PowerOn() {
  loop_ = std::move(*io::SimulatedLoop::Make(clock_, no_disk_, random_.Next()));
  loops_.Add(*loop_);
  network_.emplace(loop_->executor(), random_.Next(), link_);
  etcd_.emplace(loop_->executor(), random_.Next(), lags_);
  etcd_->SetChances(chances_);
  stranger_ = network_->Host("stranger");
  strangers_.emplace(loop_->executor());
  if (kept_by_etcd_) etcd_->Restore(*kept_by_etcd_);
  for (auto& node : nodes_) Start(*node);
}

void NodeWorld::PowerOff() {
  later_.clear();
  kept_by_etcd_ = etcd_->TakeBackup();
  for (auto& node : nodes_) node->Crash();
  strangers_->Drop();
  strangers_.reset();
  stranger_.reset();
  etcd_.reset();
  network_.reset();
  loops_.Remove(*loop_);
  loop_.reset();
}

void NodeWorld::Start(RealNode& node) {
  if (dark_.erase(&node) > 0) {
    network_->Stop(node.host);
    for (const auto& other : nodes_) {
      network_->Heal(node.host, other->host);
      network_->Heal(other->host, node.host);
    }
  }
  model_.NoteStart(node);
  node.Start(world());
  for (const RealNode* other : Running()) (void)IsDoubled(*other);
  for (std::size_t space = 0; space < specs_.size(); ++space) {
    const auto attached = loops_.BlockOn(node.store().Attach(specs_[space]));
    CISTERN_ASSERT(attached.has_value());
    if (names_.size() == space)
      names_.push_back(NameOf("default", *node.store().NamespaceAt(attached->slot)));
    CheckDrained(node, space, attached->slot);
  }
  drained_.erase(&node);
}

void NodeWorld::Say(const std::string& what) {
  if (trace_) std::fprintf(stderr, "%12.6f %s\n", static_cast<double>(clock_.Now().ns) / 1e9, what.c_str());
}

void NodeWorld::Fault(std::string_view kind, const std::string& where) {
  CISTERN_ASSERT(std::ranges::find(kKinds, kind) != std::end(kKinds));
  ++faults;
  ++kinds[std::string(kind)];
  Say(Text(kind, where.empty() ? "" : " ", where));
}

void NodeWorld::Break(std::string what) {
  Say("BROKEN " + what);
  if (broken_.empty()) broken_ = std::move(what);
}

std::string NodeWorld::Run() {
  for (int i = 0; i < kActions && broken_.empty(); ++i) {
    Act();
    Pass(random_.Chance(0.1) ? Us(2 * kSecond) : Us(pace_us_));
    for (RealNode* node : Running()) Look(*node);
  }
  if (broken_.empty()) ComeTogether();
  for (RealNode* node : Running()) peer_blocks += node->sharing().reader().counters().blocks.value();
  return broken_;
}

void NodeWorld::Act() {
  AcknowledgeUnreadable();
  RealNode& node = AnyNode();
  if (node.awake()) {
    for (std::size_t space = 0; space < specs_.size(); ++space) {
      if (!node.SlotOf(names_[space])) node.calls().Spawn(Attach(node, space));
    }
  }
  for (int i = 0; i < 4; ++i) {
    RealNode& any = AnyNode();
    if (!any.awake()) continue;
    const bool talks = random_.Chance(0.4), puts = random_.Chance(0.4);
    const bool tells = talks && (puts || random_.Chance(0.5));
    const std::uint64_t conversation = tells ? conversations_[random_.Below(conversations_.size())] : 0;
    Chain chain = AnyChain(talks);
    const std::size_t space = random_.Chance(0.7) ? kPlain : kStrict;
    any.calls().Spawn(puts ? Put(any, space, std::move(chain), conversation)
                           : Read(any, space, std::move(chain), conversation));
  }
  if (node.awake() && random_.Chance(often_.drops)) AskForDrop(node);
  if (calm_) return;
  if (random_.Chance(often_.members)) ActOnMembers();
  if (random_.Chance(often_.etcd)) ActOnEtcd();
  if (random_.Chance(often_.network)) ActOnNetwork();
}

void NodeWorld::Pass(std::int64_t us) {
  const Instant until = clock_.Now().PlusUs(us);
  while (broken_.empty() && clock_.Now() < until) {
    const Instant next = later_.empty() ? until : std::min(until, later_.begin()->first);
    loops_.BlockOn(SleepOn(loop_->executor(), next.PlusUs(1)));
    CheckCalls();
    while (!later_.empty() && later_.begin()->first <= clock_.Now()) {
      const auto first = later_.extract(later_.begin());
      first.mapped()();
    }
  }
}

void NodeWorld::Later(std::int64_t most_us, std::function<void()> call) {
  later_.emplace(clock_.Now().PlusUs(Us(most_us)), std::move(call));
}

std::vector<RealNode*> NodeWorld::Running() {
  std::vector<RealNode*> running;
  for (auto& node : nodes_) {
    if (node->running()) running.push_back(node.get());
  }
  return running;
}

// ---- what clients do -------------------------------------------------------------------------------------

NodeWorld::Chain NodeWorld::AnyChain(bool talks) {
  Chain chain;
  std::uint64_t path = talks ? 10'000 : 0;  // the roots of two trees
  const std::uint64_t depth = random_.Between(1, talks ? 3 : 5);
  for (std::uint64_t i = 0; i < depth; ++i) chain.push_back(path = path * 4 + random_.Between(1, 2));
  return chain;
}

// That nobody has read or written.
NodeWorld::Chain NodeWorld::NewChain(std::uint64_t number, std::size_t blocks) {
  Chain chain;
  for (std::size_t i = 0; i < blocks; ++i) chain.push_back((number << 32) + i + 1);
  return chain;
}

Task<void> NodeWorld::Attach(RealNode& node, std::size_t space) {
  (void)co_await node.store().Attach(specs_[space]);
}

void NodeWorld::CheckTime(const RealNode& node, Instant deadline, std::string_view what) {
  if (clock_.Now() > std::max(deadline, node.went_on()).PlusUs(kSlackUs))
    Break(Text("P3: ", what, " ended ", clock_.Now().UsSince(deadline), " us after its deadline"));
}

Task<void> NodeWorld::Put(RealNode& node, std::size_t space, Chain chain, std::uint64_t conversation) {
  for (std::size_t block = 0; block < chain.size(); ++block) {
    const std::optional<std::uint32_t> slot = node.SlotOf(names_[space]);
    if (!slot) co_return;
    Chain itself = {chain[block]};
    const bool has_ttl = random_.Chance(block + 1 == chain.size() ? often_.ttl : often_.ttl / 8);
    const std::uint64_t ttl_s = has_ttl ? random_.Between(1, random_.Chance(0.3) ? 20 : 3) : 0;
    const std::uint64_t version =
        model_.Put(space, {chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(block) + 1}, has_ttl);
    const std::vector<std::byte> body = CellModel::BodyOf(version, chain[block]);
    store::PartWrite part;
    part.key = CellModel::KeyOf(chain[block]);
    if (block > 0) part.parent = CellModel::KeyOf(chain[block - 1]);
    part.put_id = {7, version + 1};
    part.from = body;
    part.conversation = conversation;
    part.ttl_s = static_cast<std::uint32_t>(ttl_s);
    model_.NoteUse(space, itself, conversation, false);
    const Instant deadline = clock_.Now().PlusUs(kSecond);
    std::vector<store::PartWrite> parts;
    parts.push_back(std::move(part));
    const auto outcomes = co_await node.store().Write({1, {std::byte{1}}}, *slot, std::move(parts), deadline);
    CheckTime(node, deadline, "a put");
    using State = store::PartOutcome::State;
    // From when the store had it, which was before now.
    if (outcomes[0].state == State::kPublished)
      model_.NotePut(version, has_ttl ? clock_.Now().PlusUs(static_cast<std::int64_t>(ttl_s) * kSecond)
                                      : Instant::Never());
    model_.NoteUse(space, itself, conversation, true);
    if (conversation != 0 && outcomes[0].state != State::kPublished)
      model_.NoteTold(node, space, itself, conversation);
    if (outcomes[0].state != State::kPublished && outcomes[0].state != State::kPresent) co_return;
  }
}

// As a client's match and acquire (server/calls.cc).
Task<void> NodeWorld::Read(RealNode& node, std::size_t space, Chain chain, std::uint64_t conversation) {
  const std::optional<std::uint32_t> slot = node.SlotOf(names_[space]);
  if (!slot || !node.store().Serves(*slot)) co_return;
  const Instant asked = clock_.Now();
  // A peer that does not answer by one that is short is not asked for a while.
  const auto time_us = [this] { return quiet_ ? 3 * kSecond : 5'000 + Us(3 * kSecond); };
  Instant deadline = clock_.Now().PlusUs(time_us());
  const std::set<std::size_t> binding = Binding(node, space);
  const std::vector<BlockKey> keys = CellModel::KeysOf(chain);
  store::RemoteBlocks& remote = node.sharing().blocks();
  const auto runs = co_await node.store().MatchRest(*slot, 0, keys);
  std::size_t local = 0;
  if (runs) {
    for (const MatchRun& run : *runs) local += run.blocks;
  }
  if (local < keys.size() && remote.MayHaveMore(*slot, keys, local)) {
    (void)co_await remote.Match(*slot, keys, local, deadline);
    CheckTime(node, deadline, "a match of others");
  }
  if (random_.Chance(0.2)) (void)co_await SleepUntil(clock_.Now().PlusUs(Us(50'000)));
  deadline = clock_.Now().PlusUs(time_us());
  if (!node.store().CheckNamespace(*slot, 0).ok() && node.SlotOf(names_[space]) != slot) co_return;
  std::vector<catalog::BlockName> names;
  for (const BlockKey& key : keys) names.push_back({key, 0});
  (void)co_await remote.Bring(*slot, names, deadline);
  CheckTime(node, deadline, "reading from others");
  const catalog::Caller caller{1, {std::byte{1}}};
  const auto grant = co_await node.store().Acquire(caller, *slot, names, kSecond, deadline);
  CheckTime(node, deadline, "an acquire");
  if (!grant || grant->lease == 0) co_return;
  if (node.SlotOf(names_[space]) == slot) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const store::ViewGrant& grants = grant->views[i];
      if (grants.code != Code::kOk) continue;
      ++hits;
      CheckBody(node, space, chain[i], {node.slot(grants.place), grants.bytes}, binding, asked);
    }
  }
  if (conversation != 0 && node.SlotOf(names_[space]) == slot) {
    model_.NoteUse(space, chain, conversation, false);
    model_.NoteTold(node, space, chain, conversation);
    (void)co_await node.store().Touch(*slot, keys, conversation);
    model_.NoteUse(space, chain, conversation, true);
  }
  if (random_.Chance(0.9)) (void)node.store().Release(caller, grant->lease);
}

Task<void> NodeWorld::Drain(RealNode& node, store::DrainOrder order) {
  const bool ended = co_await node.store().drain().Run(order);
  if (!ended || !order.memory_goes || !random_.Chance(0.5)) co_return;
  const std::uint64_t process = node.member().options().process_number;
  Later(kSecond, [this, &node, process] {
    if (quiet_ || calm_ || !node.awake() || node.member().options().process_number != process) return;
    FailPowerOf(node);
  });
}

Task<void> NodeWorld::TrimAt(RealNode& node, CellFloor floor) { (void)co_await node.member().Trim(floor); }

void NodeWorld::AskForDrop(RealNode& node) {
  CellModel::Drop asked{.space = random_.Chance(0.7) ? kPlain : kStrict};
  const SharedNamespace& name = names_[asked.space];
  if (random_.Chance(0.03)) {
    asked.drop = {.what = CellDrop::What::kNamespace, .name = name};
  } else if (random_.Chance(0.3)) {
    const std::size_t at = random_.Below(conversations_.size());
    asked.drop = {.what = CellDrop::What::kConversation, .name = name, .conversation = conversations_[at]};
    conversations_[at] = ++last_conversation_;
  } else {
    asked.numbers.push_back(AnyChain(random_.Chance(0.3)).back());
    if (random_.Chance(0.3)) asked.numbers.push_back(AnyChain(random_.Chance(0.3)).back());
    asked.drop = {.what = CellDrop::What::kKeys, .name = name, .keys = CellModel::KeysOf(asked.numbers)};
  }
  asked.deadline = clock_.Now().PlusUs(100'000 + Us(20 * kSecond));
  const std::uint64_t first = asked.numbers.empty() ? 0 : asked.numbers[0];
  const std::size_t which = model_.Ask(std::move(asked));
  Say(Text("drop ", which, " at ", node.host, " of ", first));
  ++drops;
  node.calls().Spawn(DropAt(node, which, random_.Chance(0.9) ? DropWait::kApplied : DropWait::kDurable));
}

Task<void> NodeWorld::DropAt(RealNode& node, std::size_t which, DropWait wait) {
  model_.drop(which).node = &node;
  model_.drop(which).process = node.member().options().process_number;
  const Instant deadline = model_.drop(which).deadline;
  CellDrop drop = model_.drop(which).drop;
  const auto receipt = co_await node.member().Drop(std::move(drop), wait, deadline);
  model_.drop(which).ended = true;
  CheckTime(node, deadline, Text("drop ", which));
  if (receipt && wait == DropWait::kApplied) Acknowledge(which, node, *receipt);
}

void NodeWorld::Acknowledge(std::size_t which, RealNode& writer, const DropReceipt& receipt) {
  Say(Text("drop ", which, " acknowledged at revision ", receipt.revision));
  ++acknowledged;
  std::set<const RealNode*> bound;
  const CellState& state = writer.member().state();
  for (RealNode* node : Running()) {
    const auto heard = state.heard.find(node->member().options().process_number);
    const auto view = state.view.members.find(node->id);
    if (view != state.view.members.end() && heard != state.heard.end() &&
        view->second.process_number == heard->first && heard->second.history == receipt.history &&
        heard->second.a >= receipt.revision)
      bound.insert(node);
  }
  model_.Acknowledge(which, receipt.history, std::move(bound));
}

// ---- what must hold --------------------------------------------------------------------------------------

bool NodeWorld::IsDoubled(const RealNode& node) {
  Instant& until = doubled_until_[&node];
  for (const RealNode* other : Running()) {
    if (node.Beside(*other)) until = clock_.Now().PlusUs(CellLimits::kLeaseS * kSecond);
  }
  return clock_.Now() < until;
}

std::set<std::size_t> NodeWorld::Binding(RealNode& node, std::size_t space) {
  const bool kept = clock_.Now() >= leases_broken_until_ && !IsDoubled(node);
  const bool joined = node.member().joined() && clock_.Now() < node.member().valid_until();
  return model_.Binding(node, space,
                        {kept && joined, kept && specs_[space].strict, node.member().state().history});
}

void NodeWorld::CheckBody(RealNode& node, std::size_t space, std::uint64_t number,
                          std::span<const std::byte> body, const std::set<std::size_t>& binding,
                          Instant asked) {
  const std::string wrong = model_.Check(space, number, body, binding, asked);
  if (!wrong.empty()) Break(node.host + ": " + wrong);
}

void NodeWorld::Look(RealNode& node) {
  for (std::size_t space = 0; space < specs_.size() && broken_.empty(); ++space) {
    const std::optional<std::uint32_t> slot = node.SlotOf(names_[space]);
    if (!slot || !node.store().Serves(*slot)) continue;
    const std::set<std::size_t> binding = Binding(node, space);
    for (const std::uint64_t number : model_.known(space)) {
      if (const auto body = node.Read(*slot, CellModel::KeyOf(number)))
        CheckBody(node, space, number, *body, binding, clock_.Now());
      const Chain& chain = model_.chain(number);
      const auto look = node.store().LookAt(*slot, CellModel::KeyOf(number));
      if (!look || !look->here || chain.size() == 1) continue;
      const std::uint64_t parent = chain[chain.size() - 2];
      const auto before = node.store().LookAt(*slot, CellModel::KeyOf(parent));
      if (!model_.has_ttl(parent) && (!before || !before->here))
        Break(Text("promise 5: ", node.host, " has block ", number, " without ", parent, " before it"));
    }
  }
}

// The call of a process that was killed has gone with it.
void NodeWorld::CheckCalls() {
  for (std::size_t which = 0; which < model_.drops(); ++which) {
    const CellModel::Drop& one = model_.drop(which);
    if (!one.ended && one.node != nullptr && one.node->awake() &&
        one.node->member().options().process_number == one.process)
      CheckTime(*one.node, one.deadline, Text("drop ", which, ", which has not,"));
  }
}

}  // namespace cistern::mesh
