// SPDX-License-Identifier: Apache-2.0
// Attaching, finding, leasing, touching.
#include <algorithm>
#include <array>

#include "base/format.h"
#include "store/impl.h"

namespace cistern {

namespace {

Status Unknown(std::uint32_t slot) {
  return Status(Code::kMiss, Text("namespace ", slot, ": is not attached, or was dropped; attach again"));
}

}  // namespace

Task<Result<Attached>> BlockStore::Impl::Attach(NamespaceSpec spec) {
  if (Status status = Names::Validate(spec); !status.ok()) co_return std::unexpected(std::move(status));
  for (const GroupSpec& group : spec.groups) {
    std::uint64_t body = 0;
    for (std::uint64_t bytes : group.part_bytes) body += bytes;
    if (body == 0) continue;
    if (Status status = slots_.CheckBody(body); !status.ok()) {
      co_return Error(status.code(), Text("group ", group.name, ": ", status.message()));
    }
  }
  // One change of the names at a time: two that attach the same new list get one namespace.
  while (naming_) co_await named_.Wait();
  const auto found = names_.Find(spec);
  if (!found) co_return std::unexpected(found.error());
  if (!found->changes) co_return Attached{found->entry->slot, found->entry->incarnation};
  naming_ = true;
  const bool is_new = found->entry == nullptr;
  NamespaceEntry entry = names_.Merged(spec, journal_.IncarnationOf(sequence_));
  if (is_new) ++sequence_;
  Status status = co_await journal_.PutNamespace(entry);
  const Attached attached{entry.slot, entry.incarnation};
  if (status.ok()) {
    if (is_new) {
      if (realms_.size() <= entry.slot) realms_.resize(entry.slot + 1, kNoId);
      realms_[entry.slot] = tree_.AddRealm(entry.slot, entry.incarnation);
      realm_of_[entry.incarnation] = realms_[entry.slot];
      SetIncarnation(words_, index_.index(), entry.slot, entry.incarnation);
    }
    names_.Put(std::move(entry));
  }
  naming_ = false;
  named_.Pulse();
  if (!status.ok()) co_return std::unexpected(std::move(status));
  co_return attached;
}

Status BlockStore::Impl::CheckNamespace(std::uint32_t slot, std::uint64_t incarnation) const {
  const NamespaceEntry* entry = names_.at(slot);
  if (entry != nullptr && entry->incarnation == incarnation) return Status();
  return Unknown(slot);
}

const NamespaceEntry* BlockStore::Impl::EntryOf(RealmId realm) const {
  const Realm* found = tree_.realm(realm);
  return found != nullptr && RealmOf(found->slot) == realm ? names_.at(found->slot) : nullptr;
}

LowerPolicy BlockStore::Impl::LowerOf(const Record& record) const {
  const NamespaceEntry* entry = EntryOf(tree_.block(record.block).realm);
  return entry == nullptr ? options_.lower : entry->lower.Over(options_.lower);
}

BlockId BlockStore::Impl::IfStanding(BlockId block, bool* unsure) {
  Count();
  if (block == kNoId || !tree_.collecting()) return block;
  std::uint32_t budget = kStandingLooks;
  const Tree::Answer answer = tree_.Standing(block, &budget);
  Count(kStandingLooks - budget);
  if (answer == Tree::Answer::kUnknown && unsure != nullptr) *unsure = true;
  return answer == Tree::Answer::kYes ? block : kNoId;
}

// The first of the names: each takes two or three lines of memory one after the other, all of them together
// hardly longer than one.
void BlockStore::Impl::FindAhead(RealmId realm, std::span<const BlockName> names,
                                 std::span<BlockId, kFoundAhead> found) {
  std::array<Tag, kFoundAhead> tags;
  const std::size_t count = std::min(names.size(), kFoundAhead);
  for (std::size_t i = 0; i < count; ++i) tree_.PrefetchBucket(tags[i] = TagOf(realm, names[i].key));
  for (std::size_t i = 0; i < count; ++i) tree_.PrefetchBlock(tags[i]);
  for (std::size_t i = 0; i < count; ++i) found[i] = tree_.PrefetchRecord(realm, tags[i]);
  for (std::size_t i = 0; i < count; ++i) {
    const BlockKey& key = names[i].key;
    if (found[i] != kNoId && !tree_.MayHaveKey(found[i], key)) found[i] = tree_.Find(realm, key, tags[i]);
    found[i] = IfStanding(found[i]);
  }
}

bool BlockStore::Impl::Readable(BlockId block, std::uint16_t group, std::uint64_t now_s) const {
  const auto copy = tree_.See(block, group);
  return copy && !Expired(copy->expiry, now_s);
}

RecordId BlockStore::Impl::ReadableRecord(BlockId block, std::uint16_t group, std::uint64_t now_s) {
  return Readable(block, group, now_s) ? tree_.Take(block, group) : kNoId;
}

// For each block of `rest`: how far back from it every group's records follow each other without a gap. A
// full group ends the match at its first gap; a window only has to reach back its length, or to block 0.
Task<Result<std::vector<MatchedRun>>> BlockStore::Impl::MatchRest(std::uint32_t slot, std::uint32_t matched,
                                                                  std::span<const BlockKey> rest) {
  const RealmId realm = RealmOf(slot);
  if (EntryOf(realm) == nullptr) co_return std::unexpected(Unknown(slot));
  const std::vector<Group> groups = EntryOf(realm)->groups;
  std::vector<std::uint64_t> run(groups.size(), 0);
  MatchedRuns runs;
  // What the index had.
  if (matched > 0 && !rest.empty()) co_await LookBack(realm, TagOf(realm, rest[0]), matched, &run);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (Spent()) co_await Yield();
    if (EntryOf(realm) == nullptr) co_return std::vector<MatchedRun>();
    const std::uint64_t now_s = NowS();
    const BlockId block = Find(realm, rest[i]);
    bool full = true, windows = true;
    std::uint64_t below_bytes = 0;
    FlashPlace below;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto copy = block == kNoId ? std::nullopt : tree_.See(block, static_cast<std::uint16_t>(g));
      const bool here = copy && !Expired(copy->expiry, now_s);
      if (here && !copy->in_memory) {
        below_bytes += copy->body_bytes;
        below = copy->flash;
      }
      run[g] = here ? run[g] + 1 : 0;
      if (groups[g].reach == Reach::kFull) {
        full = full && here;
      } else {
        windows = windows && run[g] >= std::min<std::uint64_t>(groups[g].window_blocks, matched + i + 1);
      }
    }
    Count(static_cast<std::uint32_t>(groups.size()));
    if (!full) break;
    runs.Add(below_bytes, below, windows);
  }
  const std::size_t first_below = runs.first_below();
  std::vector<MatchedRun> found = runs.Take(tier_.get());
  std::size_t blocks = 0;
  for (const MatchedRun& one : found) blocks += one.blocks;
  if (first_below < blocks) ReadAhead(realm, rest.subspan(first_below, blocks - first_below));
  co_return found;
}

Task<void> BlockStore::Impl::LookBack(RealmId realm, Tag tag, std::uint32_t most,
                                      std::vector<std::uint64_t>* run) {
  for (std::uint32_t back = 0; back <= most;) {
    if (Spent()) co_await Yield();
    // From the tag again after each step: what was a block's id may be another's by now.
    const NamespaceEntry* entry = EntryOf(realm);
    BlockId at = entry == nullptr ? kNoId : FindTag(realm, tag);
    const std::uint64_t now_s = NowS();
    for (; at != kNoId && !Spent(); at = tree_.block(at).parent) {
      const Block& b = tree_.block(at);
      if (!b.has_key() || back > most) co_return;
      tag = b.tag();
      bool wanted = back == 0;
      for (std::size_t g = 0; back > 0 && g < run->size(); ++g) {
        Count();
        std::uint64_t& there = (*run)[g];
        if (there + 1 != back || back > entry->groups[g].window_blocks) continue;
        if (!Readable(at, static_cast<std::uint16_t>(g), now_s)) continue;
        ++there;
        wanted = true;
      }
      if (!wanted) co_return;
      ++back;
    }
    if (at == kNoId) co_return;
    tag = tree_.block(at).tag();
  }
}

void BlockStore::Impl::AddHold(RecordId record) {
  Record& r = tree_.record(record);
  if (r.holds++ == 0 && r.in_memory()) slots_.Pin(r.place);
  Count();
}

void BlockStore::Impl::DropHold(Held held, Used used) {
  Record& r = tree_.record(held.record);
  Count();
  if (!Lives(held)) return;  // dropped meanwhile
  if (--r.holds > 0) return;
  if (!r.in_memory()) {
    tree_.Fold(held.record);
    return;
  }
  slots_.Unpin(r.place);
  if (order_.Parked(held.record)) order_.Unpark(held.record);
  if (used == Used::kYes && r.is(Record::kPassing)) order_.InsertCold(held.record);
}

// A chain's end keeps its ancestors: the last copy of a full group's record does not go while something below
// is here. What a window needs may go by itself, so it is leased record by record.
Task<Result<LeaseId>> BlockStore::Impl::Hold(Caller caller, std::uint32_t slot,
                                             std::span<const BlockKey> chain, std::int64_t hold_us) {
  const RealmId realm = RealmOf(slot);
  if (EntryOf(realm) == nullptr) co_return std::unexpected(Unknown(slot));
  if (hold_us <= 0 || chain.empty()) {
    co_return Error(Code::kInvalid, Text("hold_us: is ", hold_us, " for ", chain.size(),
                                         " blocks; a hold takes at least 1 of both"));
  }
  const Instant deadline = clock_.Now().PlusUs(std::min(hold_us, kMaxLeaseUs));
  // While something is collected each block is asked after its parent: then each costs one look.
  for (std::size_t i = 0; tree_.collecting() && i + 1 < chain.size(); ++i) {
    if (Spent()) co_await Yield();
    if (Find(realm, chain[i]) == kNoId) break;
  }
  if (!leases_.CheckRoom(chain.size()).ok()) co_await LetGoOfAllEnded();
  if (Spent()) co_await Yield();
  const NamespaceEntry* entry = EntryOf(realm);
  std::vector<Held> holds;
  bool whole = entry != nullptr;
  const std::uint64_t now_s = NowS();
  for (std::size_t back = 0; whole && back < chain.size(); ++back) {
    if (Spent()) {
      // The chain's end is held by now, and with it what a full group needs.
      co_await Yield();
      entry = EntryOf(realm);
      if (entry == nullptr) break;
    }
    bool wanted = false;
    BlockId block = kNoId;
    for (std::uint16_t g = 0; g < entry->groups.size(); ++g) {
      const Group& group = entry->groups[g];
      if (back >= (group.reach == Reach::kFull ? 1 : group.window_blocks)) continue;
      if (!wanted) block = Find(realm, chain[chain.size() - 1 - back]);
      wanted = true;
      const RecordId record = block == kNoId ? kNoId : ReadableRecord(block, g, now_s);
      if (record == kNoId) {
        whole = false;
        break;
      }
      AddHold(record);
      holds.push_back(HeldOf(record));
    }
    if (!wanted) break;
  }
  Status room = leases_.CheckRoom(holds.size());
  if (entry == nullptr) whole = false;
  if (whole && room.ok()) {
    counters_.leases_granted.Add();
    co_return leases_.Add(caller, std::move(holds), deadline);
  }
  for (const Held& held : holds) {
    if (Spent()) co_await Yield();
    DropHold(held);
  }
  if (!whole) co_return Error(Code::kMiss, "hold: some of the chain is not here any more");
  counters_.busy.Add();
  co_return std::unexpected(std::move(room));
}

Task<bool> BlockStore::Impl::Verify(Held held) {
  const Record r = tree_.record(held.record);
  BeginIo(r.place);
  VerifyTask check(movers_, slots_.arena(), r.place, r.body_bytes, r.part_count());
  co_await check;
  EndIo(r.place);
  Record& now = tree_.record(held.record);
  if (!Lives(held)) co_return false;
  if (check.sound()) {
    now.flags |= Record::kVerified;
    co_return true;
  }
  counters_.cut_bad.Add();
  if (now.on_flash()) {
    log_.Log(LogLevel::kWarning, "block ", now.key.ToHex(), ": its record at place ", r.place,
             " fails its seal; the one on flash is left");
    LeaveMemory(held.record);
    co_return false;
  }
  log_.Log(LogLevel::kWarning, "block ", now.key.ToHex(), ": its record at place ", r.place,
           " fails its seal; it goes with what descends from it");
  Cut(now.block, Reason::kBad);
  co_return false;
}

// One block of an Acquire that lies on flash, held: it comes whole, or some of it by a passage.
struct BlockStore::Impl::Coming {
  std::size_t index = 0;
  Held held;
  std::shared_ptr<Fetching> fetching;
  PassagePtr passage;
  SegmentSpan asked;
};

Task<Result<AcquireGrant>> BlockStore::Impl::Acquire(Caller caller, std::uint32_t slot,
                                                     std::span<const BlockName> blocks, std::int64_t lease_us,
                                                     Instant deadline, std::int64_t worth_us) {
  const RealmId realm = RealmOf(slot);
  if (EntryOf(realm) == nullptr) co_return std::unexpected(Unknown(slot));
  if (lease_us <= 0)
    co_return Error(Code::kInvalid, Text("lease_us: is ", lease_us, " and has to be at least 1"));
  if (!leases_.CheckRoom(blocks.size()).ok()) co_await LetGoOfAllEnded();
  if (Status room = leases_.CheckRoom(blocks.size()); !room.ok()) {
    counters_.busy.Add();
    co_return std::unexpected(std::move(room));
  }
  AcquireGrant grant;
  grant.views.reserve(blocks.size());
  std::vector<Held> holds;
  holds.reserve(blocks.size());
  std::vector<Coming> coming;
  const Instant worth =
      worth_us == kNoWorthLimit ? deadline : std::min(deadline, clock_.Now().PlusUs(worth_us));
  const std::uint64_t now_s = NowS();
  std::array<BlockId, kFoundAhead> ahead;
  std::uint64_t found_in_step = 0;  // what was found ahead may have gone in a later one
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (Spent()) co_await Yield();
    ViewGrant& view = grant.views.emplace_back();
    if (i % kFoundAhead == 0) {
      FindAhead(realm, blocks.subspan(i), ahead);
      found_in_step = executor_.steps();
    }
    const BlockId block =
        executor_.steps() == found_in_step ? ahead[i % kFoundAhead] : Find(realm, blocks[i].key);
    const RecordId record = block == kNoId ? kNoId : ReadableRecord(block, blocks[i].group, now_s);
    if (record == kNoId) continue;
    const Held held = HeldOf(record);
    if (!tree_.record(record).in_memory()) {
      Coming one{.index = i, .held = held};
      if (StartComing(blocks[i], worth, &one, &view)) coming.push_back(std::move(one));
      continue;
    }
    if (!tree_.record(record).is(Record::kVerified)) {
      if (clock_.Now() >= deadline) {
        view.code = Code::kTooLate;
        continue;
      }
      AddHold(record);
      const bool sound = co_await Verify(held);
      if (!sound || !Lives(held) || !tree_.record(record).in_memory()) {
        DropHold(held);
        continue;
      }
    } else {
      AddHold(record);
    }
    holds.push_back(held);
    const Record& r = tree_.record(record);
    view = {.code = Code::kOk, .place = r.place, .bytes = r.body_bytes, .generation = r.generation};
  }
  for (const Coming& one : coming) {
    if (Spent()) co_await Yield();
    ViewGrant& view = grant.views[one.index];
    const Status came = co_await Arrive(one, blocks[one.index].key, worth, &view);
    if (came.ok()) {
      holds.push_back(one.held);
      continue;
    }
    view.code = came.code();
    DropHold(one.held);
  }
  // Others may have taken the room while this one verified.
  const Status room = leases_.CheckRoom(holds.size());
  if (!room.ok() || holds.empty()) {
    for (const Held& held : holds) {
      if (Spent()) co_await Yield();
      DropHold(held);
    }
    if (room.ok()) co_return grant;
    counters_.busy.Add();
    co_return std::unexpected(room);
  }
  counters_.leases_granted.Add();
  grant.lease = leases_.Add(caller, std::move(holds), clock_.Now().PlusUs(std::min(lease_us, kMaxLeaseUs)));
  co_return grant;
}

// Holds a block that lies on flash, if it would be here in time.
bool BlockStore::Impl::StartComing(const BlockName& asked, Instant worth, Coming* coming, ViewGrant* view) {
  const RecordId record = coming->held.record;
  Record& r = tree_.record(record);
  const BodySpan span = SpanOf(r, asked.asked);
  const std::uint64_t asked_bytes = span.bytes;
  const std::int64_t worth_us = worth.UsSince(clock_.Now());
  const auto late = [&](std::int64_t us) { return us == Tier::kNever || Refused(us, worth_us); };
  PassagePtr passage = passages_.Find(record);
  // Of a passage all that is asked for is there or on its way.
  const bool passes =
      passage != nullptr && asked_bytes < r.body_bytes && !passage->Any(asked.asked, Passage::State::kAway);
  const std::int64_t whole_us = ReadyInUs(r.flash, r.body_bytes);
  const std::int64_t asked_us = passes ? 0 : ReadyInUs(r.flash, asked_bytes);
  const bool on_its_way = fetching_.contains(record);
  // Who asks for another share of what passes through asks for the same reason.
  const bool promoted = passage == nullptr && Promoted(options_.lower, r.is(Record::kTouched));
  DecidePassing(record);
  r.flags |= Record::kTouched;
  if (r.uses < UINT8_MAX) ++r.uses;
  Count(3);
  WayUp way = passes ? WayUp::kSegments : WayUp::kWhole;
  if (!passes && (!on_its_way || whole_us == Tier::kNever)) {
    way = ChooseWayUp(promoted, asked_bytes, r.body_bytes, late(whole_us), late(asked_us));
    if (way == WayUp::kSegments) {
      passage = OpenPassage(record, span);
      if (passage == nullptr) way = late(whole_us) ? WayUp::kNone : WayUp::kWhole;
    }
  }
  view->ready_in_us = way == WayUp::kSegments ? asked_us : whole_us;
  if (way == WayUp::kNone) {
    counters_.fetch_refused.Add();
    view->code = Code::kTooLate;
    tree_.Fold(record);
    return false;
  }
  AddHold(record);
  if (way == WayUp::kWhole) {
    coming->fetching = StartFetch(record);
  } else {
    passages_.Asked(record);
    AskFor(passage, asked.asked);
    coming->passage = std::move(passage);
    coming->asked = asked.asked;
  }
  return true;
}

// kTooLate, or kMiss for what went or could not be read.
Task<Status> BlockStore::Impl::Arrive(const Coming& coming, const BlockKey& key, Instant worth,
                                      ViewGrant* view) {
  Status came;
  if (coming.passage != nullptr) {
    Passage& passage = *coming.passage;
    while (came.ok() && !passage.ended && passage.Any(coming.asked, Passage::State::kComing)) {
      came = co_await passage.changed.Wait(worth);
    }
    Count(1 + coming.asked.count / 16);
  } else {
    came = co_await coming.fetching->done.Wait(worth);
    if (came.ok() && !coming.fetching->status.ok()) came = Status(Code::kMiss, "acquire: it was not read");
  }
  if (!came.ok()) co_return Status(came.code() == Code::kMiss ? Code::kMiss : Code::kTooLate, "acquire");
  const Record& r = tree_.record(coming.held.record);
  if (!Lives(coming.held) || r.key != key) co_return Status(Code::kMiss, "acquire: it went meanwhile");
  if (r.in_memory()) {
    *view = {.code = Code::kOk, .place = r.place, .bytes = r.body_bytes, .generation = r.generation};
    co_return Status();
  }
  const Passage* passage = coming.passage.get();
  if (passage == nullptr || passage->ended || !passage->All(coming.asked, Passage::State::kHere)) {
    co_return Status(Code::kMiss, "acquire: it was not read");
  }
  *view = {
      .code = Code::kOk, .place = passage->place, .bytes = r.body_bytes, .generation = passage->generation};
  co_return Status();
}

Task<std::uint32_t> BlockStore::Impl::Touch(std::uint32_t slot, std::span<const BlockKey> keys,
                                            std::uint64_t conversation) {
  const RealmId realm = RealmOf(slot);
  std::uint32_t applied = 0;
  for (const BlockKey& key : keys) {
    if (Spent()) co_await Yield();
    if (EntryOf(realm) == nullptr) break;
    const BlockId block = Find(realm, key);
    if (block == kNoId || tree_.block(block).ghost()) continue;
    UseBlock(block);
    if (conversation != 0) conversations_.Uses(realm, key, conversation);
    ++applied;
  }
  if (conversation != 0) co_await ShareAll();
  counters_.touches_applied.Add(applied);
  co_return applied;
}

void BlockStore::Impl::TouchPlace(std::uint32_t place, std::uint32_t generation_low) {
  Count();
  if (const PassagePtr passage = passages_.At(place); passage != nullptr) {
    passages_.Asked(passage->held.record);  // its use was noted when it was asked for
    return;
  }
  const RecordId record = tree_.At(place);
  if (record == kNoId || static_cast<std::uint32_t>(tree_.record(record).generation) != generation_low) {
    counters_.touches_refused.Add();
    return;
  }
  NoteUse(record);
  counters_.touches_applied.Add();
}

void BlockStore::Impl::UseBlock(BlockId block) {
  Block& b = tree_.block(block);
  if (b.folded()) {
    b.flags |= Block::kTouched;
    return;
  }
  for (RecordId r = b.first_record; r != kNoId; r = tree_.record(r).next) NoteUse(r);
}

void BlockStore::Impl::NoteUse(RecordId record) {
  Record& r = tree_.record(record);
  Count();
  r.flags |= Record::kTouched;
  if (r.uses < UINT8_MAX) ++r.uses;
  if (!r.in_memory()) return;
  if (!r.is(Record::kPassing)) order_.Touch(record);
  if (tier_ != nullptr && WrittenAtUse(LowerOf(r), r.uses)) WantBelow(record);
}

// A record that is sound was reached by an entry that is not: what it says is said again.
void BlockStore::Impl::RepairEntry(RecordId record) {
  const Record& r = tree_.record(record);
  const Block& b = tree_.block(r.block);
  if (r.entry == kNoId) return;
  Count(2);
  const Fingerprint fingerprint = FingerprintOf(tree_.realm(b.realm)->incarnation, r.group, r.key);
  index_.Repair(r.entry, fingerprint, FoundOf(r));
}

Task<Status> BlockStore::Impl::ReportBad(std::uint32_t slot, std::span<const BlockName> blocks) {
  const RealmId realm = RealmOf(slot);
  for (const BlockName& name : blocks) {
    if (Spent()) co_await Yield();
    if (EntryOf(realm) == nullptr) co_return Unknown(slot);
    const BlockId block = Find(realm, name.key);
    const RecordId record = block == kNoId ? kNoId : tree_.FindRecord(block, name.group);
    if (record == kNoId) continue;
    if (!tree_.record(record).in_memory()) {
      if (const PassagePtr passage = passages_.Find(record)) co_await VerifyPassage(passage);
      continue;
    }
    const Held held = HeldOf(record);
    AddHold(record);
    const bool sound = co_await Verify(held);
    (sound ? counters_.reported_good : counters_.reported_bad).Add();
    if (sound && Lives(held)) RepairEntry(record);
    DropHold(held);
  }
  co_return Status();
}

Task<void> BlockStore::Impl::SessionEnded(Caller caller, bool last_of_owner) {
  while (leases_.EndOneOf(caller.session)) {
    counters_.leases_ended.Add();
    Count();
    if (Spent()) co_await Yield();
  }
  while (LetGoOfEnded()) {
    if (Spent()) co_await Yield();
  }
  if (!last_of_owner) co_return;
  for (PutSlot put = 0; put < pending_.end(); ++put) {
    Count();
    if (Spent()) co_await Yield();
    const Put& p = pending_[put];
    if (p.name.realm == kNoId || p.state != Put::State::kOpen || p.name.owner != caller.owner) continue;
    counters_.pending_dropped.Add();
    EndPut(put, Code::kGone);
  }
}

}  // namespace cistern
