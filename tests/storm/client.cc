// SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <algorithm>
#include <utility>

#include "base/format.h"

namespace cistern::storm {

Client::Client(World& world, std::uint32_t number, std::uint32_t engine)
    : world_(world),
      number_(number),
      engine_number_(engine),
      reader_(world.sim(), world.arena(), world.index()),
      record_(std::make_unique<arena::OpenRecord>()) {
  actor_ = world_.scheduler().Spawn(Text("client ", number), [this] { Main(); });
}

bool Client::busy() const {
  return open_ > 0 || reading_ ||
         std::ranges::any_of(leases_, [](const LeasePtr& lease) { return !lease->released; });
}

void Client::Die() {
  dying_ = true;
  world_.scheduler().Wake(actor_);
}

bool Client::Up() {
  return !dying_ && !world_.ending() && world_.node() != nullptr && boot_ == world_.boots();
}

void Client::Main() {
  while (!world_.ending()) {
    dying_ = false;
    if (world_.node() == nullptr) {
      world_.scheduler().WaitFor(static_cast<std::int64_t>(5 + world_.random().Below(50)));
      continue;
    }
    OpenSession();
    Live();
    CloseSession();
  }
}

void Client::Live() {
  while (Up()) {
    Operate();
    if (world_.Chance(20)) world_.scheduler().WaitFor(static_cast<std::int64_t>(world_.random().Below(100)));
  }
}

void Client::OpenSession() {
  boot_ = world_.boots();
  Engine& engine = world_.engine(engine_number_);
  engine.sessions++;
  caller_ = {world_.NewSession(), engine.token};
  open_ = 0;
  known_.assign(world_.trees().size(), {});
  leases_.clear();
  touched_.clear();
}

// The process is gone. What it had under way goes on without it.
void Client::CloseSession() {
  World& world = world_;
  Engine& engine = world.engine(engine_number_);
  if (engine.token != caller_.owner) return;  // the node went away, and with it all that the token meant
  bool last = --engine.sessions == 0;
  CallPtr call = std::make_shared<Call>();
  call->kind = Call::Kind::kSessionEnded;
  call->caller = caller_;
  call->last_of_owner = last;
  std::vector<PutNo> unfinished;
  if (last) {
    unfinished = std::move(engine.unfinished);
    world.NewToken(engine);
  }
  for (LeasePtr& lease : leases_) lease->lapsed = true;
  Moment asked = world.model().Now();
  call->answered = [&world, unfinished, asked, session = caller_.session](Call& answer) {
    if (answer.lost) return;
    for (PutNo put : unfinished) world.model().UnfinishedEnded(put, asked);
    world.EndLeasesOf(session);
  };
  if (world.node() != nullptr) world.node()->Send(call);
}

CallPtr Client::MakeCall(Call::Kind kind, std::uint32_t ns) {
  CallPtr call = std::make_shared<Call>();
  call->kind = kind;
  call->caller = caller_;
  call->slot = known_[ns].slot;
  call->incarnation = known_[ns].incarnation;
  call->deadline = SomeDeadline();
  return call;
}

void Client::Send(const CallPtr& call) {
  call->waiter = actor_;
  open_++;
  if (!Up()) {
    call->lost = call->done = true;
    call->status = Status(Code::kGone);
    if (call->answered) std::exchange(call->answered, nullptr)(*call);
    return;
  }
  world_.node()->Send(call);
}

bool Client::Wait(const CallPtr& call) {
  if (call->waiter != nullptr) {
    while (!call->done && !dying_) world_.scheduler().WaitFor(3'600'000'000);
    open_--;
    call->waiter = nullptr;
  }
  return call->done && !call->lost && Up();
}

bool Client::Attach(std::uint32_t ns) {
  Known& known = known_[ns];
  if (known.attached) return true;
  CallPtr call = MakeCall(Call::Kind::kAttach, ns);
  call->spec = world_.tree(ns).spec;
  World& world = world_;
  call->answered = [&world, ns](Call& answer) {
    if (answer.lost || !answer.status.ok()) return;
    if (world.tree(ns).gone.contains(answer.incarnation_now)) {
      Violation(Text("attach to namespace ", ns, " gave incarnation ", answer.incarnation_now,
                     ", which was dropped"));
    }
    world.SetAttached(ns, static_cast<std::uint32_t>(answer.value), answer.incarnation_now);
  };
  if (!Ask(call) || !call->status.ok()) return false;
  known = {static_cast<std::uint32_t>(call->value), call->incarnation_now, true};
  return true;
}

BlockCode Client::SomeCode() {
  Random& random = world_.random();
  if (world_.narrow()) return MakeCode(0, 1 + static_cast<std::uint32_t>(random.Below(3)));
  // Small trees, and of them the first more often: clients are to meet.
  auto forest = static_cast<std::uint32_t>(random.Below(random.Below(kTrees) + 1));
  std::uint32_t place = 1;
  auto depth = 1 + random.Below(kMaxDepth);
  for (std::uint64_t i = 1; i < depth; ++i) place = place * 2 + (random.Below(4) == 0 ? 1 : 0);
  return MakeCode(forest, place);
}

BlockId Client::SomeBlock() {
  BlockId block;
  block.ns = SomeNamespace();
  block.group = static_cast<std::uint16_t>(world_.random().Below(world_.tree(block.ns).groups()));
  block.code = SomeCode();
  return block;
}

Instant Client::SomeDeadline() {
  static constexpr std::int64_t kUs[] = {5, 50, 500, 5'000, 50'000, 1'000'000};
  return world_.scheduler().clock().Now().PlusUs(kUs[world_.random().Below(6)]);
}

std::span<std::byte> Client::Room(std::size_t bytes) {
  if (buffer_.size() < bytes) buffer_.resize(bytes);
  return std::span(buffer_).first(bytes);
}

void Client::Operate() {
  world_.operations++;
  Random& random = world_.random();
  Faults& faults = world_.faults();
  if (auto block = world_.Curious(); block && world_.Chance(40)) {
    if (Attach(block->ns)) ReadBlock(*block, true);
    return;
  }
  // A fault that only a client can do, when it is due.
  if (random.Below(2) == 0) {
    if (faults.Wants(Fault::kRevive)) return Revive();
    if (faults.Wants(Fault::kClientStalls)) return world_.Chance(50) ? UseView() : ReadSlowly();
    if (faults.Wants(Fault::kClientLies)) {
      switch (random.Below(4)) {
        case 0: return TouchGarbage();
        case 1: return StealLease();
        case 2: return PutOdd();
        default: return PutChain();
      }
    }
  }
  if (world_.has_lower_tier() && random.Below(3) == 0) {
    return random.Below(3) == 0 ? AcquireSome() : ReadSegments();
  }
  std::uint64_t draw = random.Below(100);
  if (draw < 26) return PutChain();
  if (draw < 52) return ReadChain();
  if (draw < 58) return WriteOthers();
  if (draw < 62) return FinishHeld();
  if (draw < 67) return MatchOnce();
  if (draw < 75) return AcquireSome();
  if (draw < 79) return HoldChain();
  if (draw < 83) return UseView();
  if (draw < 86) return ReleaseOne();
  if (draw < 92) return TouchSome();
  if (draw < 95) return ReadSlowly();
  if (draw < 98) return DropKey();
  if (draw < 99 || random.Below(4) != 0) return EndConversation();
  DropAll();
}

// ---- touches, drops --------------------------------------------------------------------------------------

void Client::TouchSome() {
  if (touched_.empty()) return;
  Faults& faults = world_.faults();
  if (faults.Wants(Fault::kLostTouches)) {
    world_.LoseTouches(touched_);
    touched_.clear();
    return;
  }
  if (world_.Chance(50)) {
    for (auto& [block, what] : std::exchange(touched_, {})) {
      CallPtr call = MakeCall(Call::Kind::kTouchPlace, block.ns);
      call->number = what;
      if (!Ask(call)) return;
    }
    return;
  }
  std::uint32_t ns = touched_.front().first.ns;
  CallPtr call = MakeCall(Call::Kind::kTouch, ns);
  std::vector<BlockId> blocks;
  for (auto& [block, what] : touched_) {
    if (block.ns != ns) continue;
    call->keys.push_back(KeyOf(ns, block.code));
    blocks.push_back(block);
  }
  // Often another one's than whose blocks they are.
  call->number = world_.Chance(50) ? world_.SomeConversation(ns, touched_.front().first.code)
                                   : world_.ConversationOf(ns, SomeCode());
  touched_.clear();
  if (!Attach(ns)) return;
  if (call->number != 0) world_.Use(*call, blocks);
  Ask(call);
}

void Client::TouchGarbage() {
  Random& random = world_.random();
  world_.faults().Injected(Fault::kClientLies);
  world_.faults().Seen(Fault::kClientLies);
  CallPtr call = MakeCall(Call::Kind::kTouchPlace, 0);
  call->number = random.Next() >> (random.Below(4) * 16);
  if (random.Below(3) == 0 && !touched_.empty()) call->number = touched_.front().second ^ random.Below(4);
  Ask(call);
}

void Client::DropKey() {
  BlockId block = SomeBlock();
  if (!Attach(block.ns)) return;
  CallPtr call = MakeCall(Call::Kind::kDrop, block.ns);
  std::vector<BlockCode> codes{block.code};
  if (world_.Chance(20)) codes.push_back(SomeCode());
  call->keys = KeysOf(block.ns, codes);
  call->deadline = Instant::Never();
  world_.Drop(*call, block.ns, codes);
  Send(call);
  if (world_.Chance(30)) ReadChain();
  Wait(call);
}

void Client::DropAll() {
  std::uint32_t ns = SomeNamespace();
  if (!Attach(ns)) return;
  CallPtr call = MakeCall(Call::Kind::kDropNamespace, ns);
  world_.Drop(*call, ns, {});
  known_[ns].attached = false;
  Ask(call);
}

void Client::EndConversation() {
  const BlockId block = SomeBlock();
  if (!Attach(block.ns)) return;
  CallPtr call = MakeCall(Call::Kind::kEndConversation, block.ns);
  call->deadline = Instant::Never();
  call->number = world_.ConversationOf(block.ns, block.code);
  world_.EndConversation(*call, block.ns);
  Send(call);
  if (world_.Chance(30)) ReadChain();
  Wait(call);
}

// The key of a living subtree is dropped and put again, perhaps while the drop is under way, and then its old
// descendants are asked for.
void Client::Revive() {
  World& world = world_;
  BlockId below;
  bool found = false;
  for (int tries = 0; tries < 12 && !found; ++tries) {
    below = SomeBlock();
    auto full = world.tree(below.ns).first_full;
    if (!full || ParentOf(below.code) == 0) continue;
    below.group = *full;
    found = world.LookAt(below, false).outcome == arena::ReadOutcome::kHit || world.InLowerTier(below);
  }
  if (!found) return PutChain();
  if (!Attach(below.ns)) return;
  std::uint16_t group = below.group;
  std::vector<BlockCode> chain = ChainOf(below.code);
  BlockCode dropped = chain[world.random().Below(chain.size() - 1)];
  world.faults().Injected(Fault::kRevive);
  CallPtr drop = MakeCall(Call::Kind::kDrop, below.ns);
  drop->keys = {KeyOf(below.ns, dropped)};
  world.Drop(*drop, below.ns, {dropped});
  Send(drop);
  if (world.Chance(60)) Wait(drop);
  bool written = Up() && PutAgain({below.ns, group, dropped});
  if (!Wait(drop) || !written) return;
  world.faults().Seen(Fault::kRevive);
  ReadBlock(below, false);
  if (Up() && Attach(below.ns)) MatchChain(below.ns, chain);
  if (world.has_lower_tier() && Up() && Attach(below.ns)) AcquireChain(below.ns, chain);
}

}  // namespace cistern::storm
