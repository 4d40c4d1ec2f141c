// SPDX-License-Identifier: Apache-2.0
// What the storm's clients write: whole chains, parts of what others began, held puts, and lies.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "client.h"

namespace cistern::storm {

void Client::PutChain() {
  World& world = world_;
  Random& random = world.random();
  Engine& engine = world.engine(engine_number_);
  std::uint32_t ns = SomeNamespace();
  if (!Attach(ns)) return;
  const IncarnationTree& tree = world.tree(ns);
  std::vector<BlockCode> chain = ChainOf(SomeCode());
  std::uint32_t there = MatchChain(ns, chain);
  if (!Up()) return;
  if (there < chain.size() && random.Below(2) == 0) AskForRest(ns, chain, there);
  if (!Up() || !known_[ns].attached) return;
  if (there == chain.size() || random.Below(10) == 0)
    there = static_cast<std::uint32_t>(random.Below(chain.size()));
  std::uint32_t end = std::min<std::uint32_t>(static_cast<std::uint32_t>(chain.size()),
                                              there + 1 + static_cast<std::uint32_t>(random.Below(3)));
  std::uint32_t ttl_s = random.Below(6) == 0 ? static_cast<std::uint32_t>(1 + random.Below(60)) : 0;
  bool held = random.Below(5) == 0;
  const std::uint64_t conversation = world.SomeConversation(ns, chain.back());
  bool share = random.Below(4) == 0;
  std::vector<std::pair<PutNo, std::uint32_t>> parts;
  for (std::uint32_t i = there; i < end; ++i) {
    for (std::uint16_t group = 0; group < tree.groups(); ++group) {
      PutNo put = world.MakePut({ns, group, chain[i]}, engine, ParentOf(chain[i]), ttl_s, held, conversation);
      for (std::uint32_t part = 0; part < world.model().put(put).parts.size(); ++part) {
        if (share && random.Below(3) == 0) {
          engine.unwritten.emplace_back(put, part);
        } else {
          parts.emplace_back(put, part);
        }
      }
    }
  }
  if (random.Below(5) == 0) random.Shuffle(std::span(parts));
  if (random.Below(2) == 0) {
    WriteParts(ns, parts);
    return;
  }
  for (auto& part : parts) {
    if (!Up() || !WriteParts(ns, {part})) return;
  }
}

// A block whose parent is none of its own chain: another forest's, its own child, itself.
void Client::PutOdd() {
  auto ns = static_cast<std::uint32_t>(world_.trees().size() - 1);
  if (!Attach(ns)) return;
  BlockId block{ns, 0, SomeCode()};
  BlockCode parent = SomeCode();
  if (world_.Chance(20)) parent = block.code;
  world_.faults().Injected(Fault::kClientLies);
  PutNo put = world_.MakePut(block, world_.engine(engine_number_), parent, 0, false, 0);
  std::vector<std::pair<PutNo, std::uint32_t>> parts;
  for (std::uint32_t part = 0; part < world_.model().put(put).parts.size(); ++part)
    parts.emplace_back(put, part);
  if (WriteParts(ns, parts)) world_.faults().Seen(Fault::kClientLies);
}

bool Client::PutAgain(const BlockId& block) {
  PutNo put = world_.MakePut(block, world_.engine(engine_number_), ParentOf(block.code), 0, false,
                             world_.SomeConversation(block.ns, block.code));
  std::vector<std::pair<PutNo, std::uint32_t>> parts;
  for (std::uint32_t part = 0; part < world_.model().put(put).parts.size(); ++part)
    parts.emplace_back(put, part);
  if (!WriteParts(block.ns, parts)) return false;
  world_.Delicate();
  return true;
}

void Client::WriteOthers() {
  Engine& engine = world_.engine(engine_number_);
  if (engine.unwritten.empty()) return;
  auto at =
      engine.unwritten.begin() + static_cast<std::ptrdiff_t>(world_.random().Below(engine.unwritten.size()));
  auto part = *at;
  if (world_.Chance(85)) engine.unwritten.erase(at);  // else it is written twice
  std::uint32_t ns = world_.model().put(part.first).block.ns;
  if (Attach(ns)) WriteParts(ns, {part});
}

// Changes what it has just given away, or gives checksums of something else.
void Client::Lie(Call& call, std::size_t bytes) {
  Random& random = world_.random();
  Faults& faults = world_.faults();
  faults.Injected(Fault::kClientLies);
  faults.Seen(Fault::kClientLies);
  std::uint64_t turns = 1 + random.Below(6);
  for (std::uint64_t i = 0; i < turns && !call.done && !dying_; ++i) {
    world_.scheduler().WaitUntil(
        world_.scheduler().clock().Now().PlusNs(static_cast<std::int64_t>(random.Below(4000))));
    if (!call.done) call.staging->bytes[random.Below(bytes)] ^= std::byte{0x10};
  }
}

bool Client::WriteParts(std::uint32_t ns, const std::vector<std::pair<PutNo, std::uint32_t>>& parts) {
  World& world = world_;
  Random& random = world.random();
  if (parts.empty() || !Up()) return Up();
  CallPtr call = MakeCall(Call::Kind::kWrite, ns);
  auto staging = std::make_shared<Staging>();
  std::size_t bytes = 0;
  for (auto [put, part] : parts) bytes += world.PartBytes(put, part);
  staging->bytes.resize(bytes);
  world.AddStaging(staging);
  call->staging = staging;
  bool change = random.Below(8) == 0 && world.faults().Wants(Fault::kClientLies);
  bool wrong_sums = !change && random.Below(8) == 0 && world.faults().Wants(Fault::kClientLies);
  bool sums = wrong_sums || random.Below(2) == 0;
  if (wrong_sums) {
    world.faults().Injected(Fault::kClientLies);
    world.faults().Seen(Fault::kClientLies);
  }
  std::size_t at = 0;
  for (auto [number, part] : parts) {
    const Put& put = world.model().put(number);
    std::span<std::byte> room = std::span(staging->bytes).subspan(at, world.PartBytes(number, part));
    at += room.size();
    FillPart(number, part, room);
    store::PartWrite write;
    write.key = KeyOf(ns, put.block.code);
    write.parent = KeyOf(ns, put.parent);
    write.group = put.block.group;
    write.part = static_cast<std::uint16_t>(part);
    write.put_id = PutIdOf(number);
    write.from = room;
    write.ttl_s = put.ttl_s;
    write.held = put.held;
    write.conversation = put.conversation;
    for (std::size_t from = 0; sums && from < room.size(); from += record::kSegmentBytes) {
      write.checksums.push_back(record::Crc32c(
          room.data() + from, std::min<std::size_t>(record::kSegmentBytes, room.size() - from)));
    }
    if (wrong_sums) write.checksums[random.Below(write.checksums.size())] ^= 1u << random.Below(32);
    call->parts.push_back(std::move(write));
    world.model().WriteAsked(number, part, world.LeastTime());
    if (change && !sums) world.model().BytesUnknown(number);
    if ((change && sums) || wrong_sums) world.model().SumsWrong(number);
  }
  const Moment asked = world.model().Now();
  call->answered = [&world, parts, wrong_sums, staging, asked](Call& answer) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto [put, part] = parts[i];
      if (answer.lost) {
        // With wrong sums it could not have come in even then.
        if (wrong_sums) {
          world.model().WriteAnswered(put, part, false, world.LatestTime());
        } else {
          world.model().WriteLost(put, part, world.LatestTime());
        }
        continue;
      }
      bool ok = answer.status.ok() && answer.outcomes[i].status.ok();
      store::PartOutcome::State state = ok ? answer.outcomes[i].state : store::PartOutcome::State::kNone;
      // Another write of the same part may have been what was taken.
      const PutPart& as_asked = world.model().put(put).parts[part];
      bool alone = as_asked.open == 1 && !as_asked.committed;
      if (ok && wrong_sums && alone && state != store::PartOutcome::State::kPresent) {
        Violation(
            Text(TextOf(world.model().put(put).block), " put ", put, " was taken with wrong checksums"));
      }
      Code code = answer.status.ok() ? answer.outcomes[i].status.code() : answer.status.code();
      if (!ok)
        world.model().Trace("put ", put, ": ",
                            (answer.status.ok() ? answer.outcomes[i].status : answer.status).ToString());
      if (code == Code::kBusy || code == Code::kTooLate) world.NoRoom();
      const Put& put_of = world.model().put(put);
      if (code == Code::kInvalid && !put_of.refutable && !world.model().odd_parents(put_of.block.ns)) {
        Violation(Text(TextOf(put_of.block), " put ", put, " was refused as wrong and is right: ",
                       (answer.status.ok() ? answer.outcomes[i].status : answer.status).ToString()));
      }
      world.model().WriteAnswered(put, part, ok && state != store::PartOutcome::State::kPresent,
                                  world.LatestTime());
      // It may have been dropped again before the answer to the last part's write came.
      if (state == store::PartOutcome::State::kPublished && !world.model().Legal(put, asked)) {
        Violation(
            Text(TextOf(world.model().put(put).block), " put ", put, " was published and is not whole"));
      }
    }
    // The session fills it with the next thing at once.
    if (staging->writes == 0) std::memset(staging->bytes.data(), 0x5a, staging->bytes.size());
  };
  Send(call);
  if (change && !call->done) Lie(*call, bytes);
  return Wait(call);
}

void Client::FinishHeld() {
  World& world = world_;
  Random& random = world.random();
  bool foreign = world.faults().Wants(Fault::kClientLies) && random.Below(4) == 0;
  std::uint32_t whose = foreign ? (engine_number_ + 1) % world.engine_count() : engine_number_;
  Engine& engine = world.engine(whose);
  if (engine.held.empty()) return;
  auto at = engine.held.begin() + static_cast<std::ptrdiff_t>(random.Below(engine.held.size()));
  PutNo put = *at;
  if (whose == engine_number_) engine.held.erase(at);
  std::uint32_t ns = world.model().put(put).block.ns;
  if (!Attach(ns)) return;
  bool publish = random.Below(10) < 7;
  CallPtr call = MakeCall(publish ? Call::Kind::kPublish : Call::Kind::kAbandon, ns);
  call->puts = {PutIdOf(put)};
  if (whose != engine_number_) {
    world.faults().Injected(Fault::kClientLies);
    world.faults().Seen(Fault::kClientLies);
    Ask(call);
    return;
  }
  if (publish) {
    world.model().PublishAsked(put, world.engine(engine_number_).number);
  } else {
    Moment asked = world.model().Now();
    call->answered = [&world, put, asked](Call& answer) {
      if (!answer.lost && answer.status.ok()) world.model().UnfinishedEnded(put, asked);
    };
  }
  Ask(call);
}

}  // namespace cistern::storm
