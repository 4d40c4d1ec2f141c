// SPDX-License-Identifier: Apache-2.0
// What the storm's clients read, and what they check of it.
#include <algorithm>
#include <utility>

#include "base/format.h"
#include "client.h"

namespace cistern::storm {

std::uint32_t Client::MatchChain(std::uint32_t ns, std::span<const BlockCode> chain) {
  World& world = world_;
  const IncarnationTree& tree = world.tree(ns);
  Moment since = world.model().Now();
  arena::ReadCall call = reader_.Begin(known_[ns].slot, world.scheduler().clock().Wall().seconds);
  if (call.incarnation != known_[ns].incarnation) {
    known_[ns].attached = false;
    return 0;
  }
  std::vector<BlockKey> keys = KeysOf(ns, chain);
  const std::uint64_t reboots = world.reboots();
  std::uint32_t there = arena::MatchPrefix(reader_, call, keys, tree.match);
  if (world.reboots() != reboots) return 0;
  world.model().Trace("client ", number_, " matched ", there, " of namespace ", ns, " block ", chain.back(),
                      " since ", since);
  for (const arena::MatchGroup& group : tree.match) {
    std::uint32_t from =
        group.reach_blocks == 0 || group.reach_blocks > there ? 0 : there - group.reach_blocks;
    for (std::uint32_t i = from; i < there; ++i) {
      BlockId block{ns, group.group, chain[i]};
      if (!world.model().AnyLegal(block, since))
        Violation(Text(TextOf(block), " was matched and cannot be there"));
    }
  }
  return there;
}

CallPtr Client::AskForRest(std::uint32_t ns, std::span<const BlockCode> chain, std::uint32_t there) {
  Random& random = world_.random();
  CallPtr call = MakeCall(Call::Kind::kMatchRest, ns);
  const std::uint32_t last = there > 0 && random.Below(4) > 0 ? 1 : 0;  // an older client has not sent it
  call->number = there;
  call->prompt = {
      .keys = KeysOf(ns, chain.subspan(there - last)),
      .first_new = last,
      .hints = {.outlook = static_cast<Outlook>(random.Below(4)),
                .importance = static_cast<Importance>(random.Below(4)),
                .next_turn_ms = static_cast<std::uint32_t>(random.Below(2) * (1 + random.Below(2'000)))},
      .partial = random.Below(4) == 0};
  if (!Ask(call) || !call->status.ok()) return nullptr;
  return call;
}

void Client::MatchOnce() {
  std::uint32_t ns = SomeNamespace();
  if (!Attach(ns)) return;
  std::vector<BlockCode> chain = ChainOf(SomeCode());
  std::uint32_t there = MatchChain(ns, chain);
  if (world_.has_lower_tier() && world_.Chance(60)) there = 0;
  if (!Up() || there == chain.size() || !known_[ns].attached) return;
  // The rest is asked of the core.
  Moment since = world_.model().Now();
  CallPtr call = AskForRest(ns, chain, there);
  if (call == nullptr) return;
  if (call->value > chain.size() - there)
    Violation(Text("the core matched ", call->value, " of ", chain.size() - there));
  auto group = world_.tree(ns).first_full;
  for (std::uint64_t i = 0; group && i < call->value; ++i) {
    BlockId block{ns, *group, chain[there + i]};
    if (!world_.model().AnyLegal(block, since))
      Violation(Text(TextOf(block), " was matched by the core and cannot be there"));
  }
}

void Client::ReadChain() {
  std::uint32_t ns = SomeNamespace();
  if (!Attach(ns)) return;
  const IncarnationTree& tree = world_.tree(ns);
  std::vector<BlockCode> chain = ChainOf(SomeCode());
  std::uint32_t there = world_.Chance(80) ? MatchChain(ns, chain) : static_cast<std::uint32_t>(chain.size());
  for (std::uint32_t i = 0; i < there && Up() && known_[ns].attached; ++i) {
    auto group = static_cast<std::uint16_t>(world_.random().Below(tree.groups()));
    if (world_.Chance(60)) ReadBlock({ns, group, chain[i]}, false);
  }
}

void Client::CheckHit(const BlockId& block, const arena::OpenRecord& record, Moment since,
                      std::uint64_t time_s) {
  World& world = world_;
  Sighting seen = world.SightingOf(block, record);
  world.model().CheckSighting(seen, since, time_s);
  if (record.stamp.region != record.place || record.stamp.region_epoch != record.generation) {
    Violation(Text(TextOf(block), " was read with the stamp of another place or generation"));
  }
  const Put& put = world.model().put(static_cast<PutNo>(seen.put));
  auto group = world.tree(block.ns).ParentGroup(block.group);
  if (group && put.parent != 0 && !world.model().AnyLegal({block.ns, *group, put.parent}, put.first_asked)) {
    Violation(Text(TextOf(block), " put ", seen.put, " is visible and its parent never was"));
  }
}

void Client::ReadBlock(const BlockId& block, bool whole) {
  World& world = world_;
  Random& random = world.random();
  world.reads++;
  world.NoteRead(block);
  const std::uint64_t reboots = world.reboots();
  const IncarnationTree& tree = world.tree(block.ns);
  Moment since = world.model().Now();
  std::uint64_t time_s = world.SureTime();
  arena::ReadCall call = reader_.Begin(known_[block.ns].slot, world.scheduler().clock().Wall().seconds);
  if (call.incarnation != known_[block.ns].incarnation) {
    known_[block.ns].attached = false;
    return;
  }
  BlockKey key = KeyOf(block.ns, block.code);
  // An entry that leads astray may be written again before the read has ended.
  const std::uint64_t entries_hit = world.faults()[Fault::kFlipIndex].injected;
  const bool astray = world.IndexDamaged();
  auto found = reader_.Find(call, block.group, key);
  if (!found) return;
  const auto& lengths = tree.spec.groups[block.group].part_bytes;
  auto parts = static_cast<std::uint16_t>(lengths.empty() ? 1 : lengths.size());
  // All of some parts, or a stretch.
  std::vector<record::PartRange> ranges;
  for (std::uint16_t part = 0; part < parts; ++part) {
    std::uint64_t length = lengths.empty() ? found->body_bytes : lengths[part];
    std::uint64_t from = !whole && random.Below(3) == 0 ? random.Below(length) : 0;
    std::uint64_t bytes = !whole && random.Below(3) == 0 ? 1 + random.Below(length - from) : length - from;
    ranges.push_back({part, from, bytes});
  }
  const arena::ReadOutcome outcome = ReadRanges(block, call, *found, ranges, since, time_s);
  if (world.reboots() != reboots) return;
  if (outcome == arena::ReadOutcome::kBad) {
    const bool misled = astray || entries_hit != world.faults()[Fault::kFlipIndex].injected;
    if (!misled && world.HasLength(record_->place, found->body_bytes) &&
        !world.DamagedRecord(record_->place, found->body_bytes)) {
      Violation(Text(TextOf(block), " is bad under generation ", record_->generation, " at place ",
                     record_->place, " and nobody damaged it"));
    }
    return Report(block, found->body_bytes);
  }
  if (outcome == arena::ReadOutcome::kOutOfRange && !lengths.empty())
    Violation(Text(TextOf(block), " is shorter than its namespace says"));
  if (outcome != arena::ReadOutcome::kHit) return;
  std::uint64_t touch = std::uint64_t{record_->place} << 32 | (record_->generation & 0xffff'ffff);
  touched_.emplace_back(block, touch);
}

// Reads them from one record, and checks what it is told and every byte.
arena::ReadOutcome Client::ReadRanges(const BlockId& block, const arena::ReadCall& call,
                                      const arena::Found& found,
                                      std::span<const record::PartRange> asked_ranges, Moment since,
                                      std::uint64_t time_s) {
  World& world = world_;
  const std::uint64_t reboots = world.reboots();
  const auto& lengths = world.tree(block.ns).spec.groups[block.group].part_bytes;
  const auto parts = static_cast<std::uint16_t>(lengths.empty() ? 1 : lengths.size());
  struct Asked {
    std::uint64_t at;
    std::span<std::byte> piece[2];
  };
  std::vector<Asked> asked(asked_ranges.size());
  std::size_t total = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    asked[i].at = total;
    total += asked_ranges[i].bytes;
  }
  std::span<std::byte> room = Room(total);
  std::vector<arena::RangeCopy> ranges;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const std::uint64_t bytes = asked_ranges[i].bytes, first = world.random().Below(bytes + 1);
    asked[i].piece[0] = room.subspan(asked[i].at, first);
    asked[i].piece[1] = room.subspan(asked[i].at + first, bytes - first);
    ranges.push_back({asked_ranges[i], asked[i].piece});
  }
  reading_ = true;
  arena::ReadOutcome outcome =
      reader_.Read(call, {KeyOf(block.ns, block.code), block.group, parts}, &found, ranges, *record_);
  reading_ = false;
  if (outcome != arena::ReadOutcome::kHit || world.reboots() != reboots) return outcome;
  world.hits++;
  world.model().Trace("client ", number_, " hit ", TextOf(block), " put ", record_->seal.put_id().low,
                      " place ", record_->place, " generation ", record_->generation, " born ",
                      record_->stamp.born);
  CheckHit(block, *record_, since, time_s);
  PutNo put = static_cast<PutNo>(record_->seal.put_id().low);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (world.model().put(put).any_bytes) break;
    const record::PartRange& range = asked_ranges[i];
    if (IsPart(put, range.part, range.offset, room.subspan(asked[i].at, range.bytes))) continue;
    Violation(Text(TextOf(block), " put ", put, ": wrong bytes in part ", range.part, " from ", range.offset,
                   ", ", range.bytes, " bytes"));
  }
  return outcome;
}

// A stretch of a part of blocks that may lie below memory, for which not all of them need come up.
void Client::ReadSegments() {
  World& world = world_;
  Random& random = world.random();
  const std::uint32_t ns = SomeNamespace();
  if (!Attach(ns)) return;
  CallPtr call = MakeCall(Call::Kind::kAcquire, ns);
  if (world.Chance(80)) call->deadline = world.scheduler().clock().Now().PlusUs(1'000'000);
  if (world.Chance(10)) call->worth_us = static_cast<std::int64_t>(random.Below(1000));
  static constexpr std::int64_t kUs[] = {50, 2'000, 100'000, 5'000'000};
  call->duration_us = kUs[random.Below(std::size(kUs))];
  std::vector<std::pair<BlockId, record::PartRange>> asked;
  for (const BlockCode code : ChainOf(SomeCode())) {
    const BlockId block{ns, static_cast<std::uint16_t>(random.Below(world.tree(ns).groups())), code};
    const auto& lengths = world.tree(ns).spec.groups[block.group].part_bytes;
    const auto part = static_cast<std::uint32_t>(lengths.empty() ? 0 : random.Below(lengths.size()));
    const std::uint64_t length = lengths.empty() ? 300'000 : lengths[part];
    const std::uint64_t from = random.Below(length);
    const record::PartRange range{part, from,
                                  1 + random.Below(std::min<std::uint64_t>(length - from, 80'000))};
    record::SegmentSpan segments{static_cast<std::uint32_t>(range.offset / record::kSegmentBytes), 0};
    segments.count = static_cast<std::uint32_t>((range.offset + range.bytes - 1) / record::kSegmentBytes) +
                     1 - segments.first;
    for (std::uint32_t i = 0; i < part; ++i) segments.first += record::SegmentsOfPart(lengths[i]);
    asked.emplace_back(block, range);
    call->names.push_back({KeyOf(ns, code), block.group, segments});
  }
  const LeasePtr lease = NoteLease(*call, ns);
  call->answered = [&world, lease](Call& answer) {
    if (answer.lost || !answer.status.ok() || answer.value == 0) return;
    lease->id = answer.value;
    lease->latest_deadline = world.scheduler().clock().Now().PlusUs(answer.duration_us);
    world.AddLease(lease);
  };
  const Moment since = world.model().Now();
  if (!Ask(call) || lease->id == 0) return;
  leases_.push_back(lease);
  for (std::size_t i = 0; i < asked.size() && Up() && known_[ns].attached; ++i) {
    if (call->grant.views[i].code == Code::kOk)
      ReadView(asked[i].first, call->grant.views[i], asked[i].second, since);
  }
}

// `since`: before the view was asked for.
void Client::ReadView(const BlockId& block, const store::ViewGrant& view, const record::PartRange& range,
                      Moment since) {
  World& world = world_;
  const arena::ReadCall call = reader_.Begin(known_[block.ns].slot, world.scheduler().clock().Wall().seconds);
  if (call.incarnation != known_[block.ns].incarnation) return;
  world.NoteRead(block);
  const std::uint64_t reboots = world.reboots();
  const std::uint64_t entries_hit = world.faults()[Fault::kFlipIndex].injected;
  const bool astray = world.IndexDamaged();
  const arena::Found found{
      .place = view.place,
      .body_bytes = static_cast<std::uint32_t>(view.bytes),
      .generation_low = static_cast<std::uint32_t>(view.generation) & arena::kGenerationLowMask};
  const arena::ReadOutcome outcome =
      ReadRanges(block, call, found, std::span(&range, 1), since, world.SureTime());
  if (outcome != arena::ReadOutcome::kBad || world.reboots() != reboots) return;
  const bool misled = astray || entries_hit != world.faults()[Fault::kFlipIndex].injected;
  if (!misled && !world.DamagedRecord(record_->place, view.bytes)) {
    Violation(Text(TextOf(block), ": ", range.bytes, " bytes of part ", range.part, " from ", range.offset,
                   " at place ", record_->place, " are bad and nobody damaged them"));
  }
  Report(block, view.bytes);
}

void Client::Report(const BlockId& block, std::uint64_t body_bytes) {
  if (!Up() || !known_[block.ns].attached) return;
  CallPtr call = MakeCall(Call::Kind::kReportBad, block.ns);
  call->names = {{KeyOf(block.ns, block.code), block.group}};
  call->deadline = Instant::Never();
  world_.Disturb(block.ns, block.code);
  // Unless it was damaged after the core had looked, it is cut, and at rest it is gone.
  std::uint64_t flips = world_.faults()[Fault::kFlipBody].injected;
  arena::Place place = record_->place;
  std::uint64_t generation = record_->generation;
  // By its own entry: one that leads to another's record makes a report of what is sound.
  bool body = world_.BodyDamaged(place, body_bytes) && !world_.DamagedEntry(block);
  if (!Ask(call) || !call->status.ok()) return;
  if (body && flips == world_.faults()[Fault::kFlipBody].injected) {
    world_.Reported(block, place, generation, body_bytes);
  }
  // The engine has computed it again, before all that hung below it is gone.
  if (world_.Chance(60) && Attach(block.ns)) PutAgain(block);
}

// Opens a record, copies it in steps and stops between them for as long as it likes.
void Client::ReadSlowly() {
  World& world = world_;
  Random& random = world.random();
  BlockId block = SomeBlock();
  for (int tries = 0; tries < 8 && world.LookAt(block, false).outcome != arena::ReadOutcome::kHit; ++tries)
    block = SomeBlock();
  if (!Attach(block.ns)) return;
  const IncarnationTree& tree = world.tree(block.ns);
  const std::uint64_t reboots = world.reboots();
  Moment since = world.model().Now();
  std::uint64_t time_s = world.SureTime();
  arena::ReadCall call = reader_.Begin(known_[block.ns].slot, world.scheduler().clock().Wall().seconds);
  if (call.incarnation != known_[block.ns].incarnation) return;
  BlockKey key = KeyOf(block.ns, block.code);
  const auto& lengths = tree.spec.groups[block.group].part_bytes;
  auto parts = static_cast<std::uint16_t>(lengths.empty() ? 1 : lengths.size());
  arena::ReadOutcome opened = reader_.Open(call, {key, block.group, parts}, nullptr, *record_);
  if (opened != arena::ReadOutcome::kHit || world.reboots() != reboots) return;
  CheckHit(block, *record_, since, time_s);
  PutNo put = static_cast<PutNo>(record_->seal.put_id().low);
  reading_ = true;
  bool whole = true;
  std::uint64_t bytes = world.PartBytes(put, 0);
  std::span<std::byte> room = Room(bytes);
  std::uint64_t step = 1 + bytes / 2;
  if (world.faults().Wants(Fault::kClientStalls)) {
    world.faults().Injected(Fault::kClientStalls);
    world.faults().Seen(Fault::kClientStalls);
    world.scheduler().WaitFor(static_cast<std::int64_t>(100 + random.Below(20'000)));
  }
  for (std::uint64_t at = 0; at < bytes && whole && !dying_; at += step) {
    std::uint64_t n = std::min(step, bytes - at);
    std::span<std::byte> piece[] = {room.subspan(at, n)};
    whole = reader_.CopyRange(*record_, {{0, at, n}, piece}) == arena::ReadOutcome::kHit;
  }
  reading_ = false;
  if (dying_ || !reader_.StillGood(*record_) || world.reboots() != reboots) return;
  if (!whole) {
    if (!world.DamagedRecord(record_->place, record_->seal.body_bytes())) {
      Violation(Text(TextOf(block), " is bad in a slow read and nobody damaged it"));
    }
    return;
  }
  if (!world.model().put(put).any_bytes && !IsPart(put, 0, 0, room)) {
    Violation(Text(TextOf(block), " put ", put, ": wrong bytes in a slow read"));
  }
}

// ---- leases ----------------------------------------------------------------------------------------------

// Of one that is about to be asked for.
LeasePtr Client::NoteLease(const Call& call, std::uint32_t ns) {
  auto lease = std::make_shared<LeaseNote>();
  lease->caller = caller_;
  lease->ns = ns;
  lease->deadline = world_.scheduler().clock().Now().PlusUs(call.duration_us);
  lease->cuts = world_.Cuts();
  lease->boot = world_.boots();
  return lease;
}

void Client::AcquireSome() {
  std::uint32_t ns = SomeNamespace();
  if (Attach(ns)) AcquireChain(ns, ChainOf(SomeCode()));
}

void Client::AcquireChain(std::uint32_t ns, const std::vector<BlockCode>& chain) {
  World& world = world_;
  std::uint32_t there = MatchChain(ns, chain);
  // What is not in memory may lie below.
  if (world.has_lower_tier() && world.Chance(80)) there = static_cast<std::uint32_t>(chain.size());
  if (there == 0 || !Up() || !known_[ns].attached) return;
  CallPtr call = MakeCall(Call::Kind::kAcquire, ns);
  if (world.has_lower_tier()) {
    if (world.Chance(80)) call->deadline = world.scheduler().clock().Now().PlusUs(1'000'000);
    if (world.Chance(10)) call->worth_us = static_cast<std::int64_t>(world.random().Below(1000));
  }
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i < there; ++i) {
    if (!world.Chance(60)) continue;
    auto group = static_cast<std::uint16_t>(world.random().Below(world.tree(ns).groups()));
    blocks.push_back({ns, group, chain[i]});
    call->names.push_back({KeyOf(ns, chain[i]), group});
  }
  if (blocks.empty()) return;
  static constexpr std::int64_t kUs[] = {50, 2'000, 100'000, 5'000'000, 60'000'000};
  call->duration_us = kUs[world.random().Below(5)];
  const LeasePtr lease = NoteLease(*call, ns);
  Moment since = world.model().Now();
  call->answered = [&world, lease, blocks, since](Call& answer) {
    if (answer.lost || !answer.status.ok() || answer.value == 0) return;
    lease->id = answer.value;
    lease->latest_deadline = world.scheduler().clock().Now().PlusUs(answer.duration_us);
    world.Granted(*lease, blocks, answer.grant.views, since);
    world.AddLease(lease);
  };
  if (!Ask(call)) return;
  if (lease->id != 0) leases_.push_back(lease);
  for (std::size_t i = 0; world.has_lower_tier() && i < lease->blocks.size(); ++i) {
    if (!Up() || !known_[ns].attached) return;
    if (world.Chance(30)) ReadBlock(lease->blocks[i].block, true);
  }
}

void Client::HoldChain() {
  World& world = world_;
  std::uint32_t ns = SomeNamespace();
  if (!Attach(ns)) return;
  std::vector<BlockCode> chain = ChainOf(SomeCode());
  std::uint32_t there = MatchChain(ns, chain);
  if (there == 0 || !Up() || !known_[ns].attached) return;
  chain.resize(there);
  CallPtr call = MakeCall(Call::Kind::kHold, ns);
  call->keys = KeysOf(ns, chain);
  static constexpr std::int64_t kUs[] = {50, 2'000, 100'000, 5'000'000, 60'000'000};
  call->duration_us = kUs[world.random().Below(5)];
  const LeasePtr lease = NoteLease(*call, ns);
  call->answered = [&world, lease, chain, ns](Call& answer) {
    if (answer.lost || !answer.status.ok()) return;
    lease->id = answer.value;
    lease->latest_deadline = world.scheduler().clock().Now().PlusUs(answer.duration_us);
    world.RecordHandle(*lease, ns, chain);
    world.AddLease(lease);
  };
  if (!Ask(call)) return;
  if (lease->id != 0) leases_.push_back(lease);
}

// Copies through a view without a checksum, perhaps after a long stop; the generation afterwards decides.
void Client::UseView() {
  World& world = world_;
  Random& random = world.random();
  std::erase_if(leases_, [](const LeasePtr& lease) { return lease->released; });
  if (leases_.empty()) return AcquireSome();
  LeasePtr lease = leases_[random.Below(leases_.size())];
  if (lease->blocks.empty()) return;
  LeasedBlock view = lease->blocks[random.Below(lease->blocks.size())];
  const Put& put = world.model().put(static_cast<PutNo>(view.put));
  std::uint64_t bytes = put.parts[0].bytes;
  std::span<std::byte> room = Room(bytes);
  const std::byte* from = world.arena().slot(view.place);
  const std::uint64_t reboots = world.reboots();
  std::uint64_t half = random.Below(bytes + 1);
  reading_ = true;
  world.sim().CopyOut(room.data(), from, half, 0, bytes - half);
  if (world.faults().Wants(Fault::kClientStalls)) {
    world.faults().Injected(Fault::kClientStalls);
    world.faults().Seen(Fault::kClientStalls);
    world.scheduler().WaitFor(static_cast<std::int64_t>(100 + random.Below(50'000)));
  }
  world.sim().CopyOut(room.data() + half, from + half, bytes - half, 0, 0);
  reading_ = false;
  bool good = reader_.CheckView(view.place, view.generation);
  bool damaged = world.DamagedRecord(view.place, bytes);
  if (good && !damaged && world.reboots() == reboots && !put.any_bytes && !IsPart(view.put, 0, 0, room)) {
    Violation(Text(TextOf(view.block), " put ", view.put, ": wrong bytes through a view that is still good"));
  }
}

void Client::ReleaseOne() {
  World& world = world_;
  std::erase_if(leases_, [](const LeasePtr& lease) { return lease->released; });
  if (leases_.empty()) return;
  LeasePtr lease = leases_[world.random().Below(leases_.size())];
  CallPtr call = MakeCall(Call::Kind::kRelease, lease->ns);
  call->number = lease->id;
  lease->lapsed = true;
  call->answered = [lease](Call& answer) {
    if (answer.lost) return;
    lease->released = true;
  };
  Ask(call);
}

void Client::StealLease() {
  World& world = world_;
  for (const LeasePtr& lease : world.leases()) {
    if (lease->lapsed || lease->caller.owner == caller_.owner) continue;
    world.faults().Injected(Fault::kClientLies);
    world.faults().Seen(Fault::kClientLies);
    CallPtr call = MakeCall(Call::Kind::kRelease, lease->ns);
    call->number = lease->id;
    LeasePtr theirs = lease;
    call->answered = [theirs](Call& answer) {
      if (!answer.lost && answer.status.ok() && !theirs->lapsed)
        Violation("a lease was released by another owner");
    };
    Ask(call);
    return;
  }
  TouchGarbage();
}

}  // namespace cistern::storm
