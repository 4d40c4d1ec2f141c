// SPDX-License-Identifier: Apache-2.0
#include "store/writer.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/call_stations.h"
#include "base/format.h"
#include "base/limits.h"
#include "memory/movers.h"

namespace cistern::store {

namespace {
constexpr std::uint64_t kStretchBytes = 4u << 20;  // bytes of a part that one mover copies
}  // namespace

struct Writer::PartJob {
  PartWrite part;
  catalog::PutIndex put = catalog::kNoId;  // the job counts as its user
  bool copies = false;                     // its bytes are being copied, or wait to be committed
  Task<void> copying;
  PartOutcome outcome;

  bool failed() const { return !outcome.status.ok(); }
};

// Facts that one call's parts share.
struct Writer::WriteCall {
  catalog::TreeId tree;
  std::uint32_t slot;
  Instant deadline;
  // Puts that this call could not write: a child of one would not be reachable, so it is refused too, not
  // kept waiting.
  std::unordered_set<BlockKey> refused;
  // What the call's last new block is held to be: mostly the next one's parent.
  BlockKey last;
  policy::Standing last_standing;
};

Task<std::vector<PartOutcome>> Writer::Write(catalog::Caller caller, std::uint32_t slot,
                                             std::vector<PartWrite> parts, Instant deadline,
                                             CallStations* stations) {
  std::vector<PartJob> jobs;
  jobs.reserve(parts.size());  // the task that copies a part keeps its job's address
  WriteCall call{.tree = context_.catalog.TreeOf(slot), .slot = slot, .deadline = deadline};
  std::uint64_t bytes = 0;
  for (const PartWrite& part : parts) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    bytes += part.from.size();
  }
  const bool by_core = bytes <= context_.options.core_copy_bytes;
  if (context_.sequences.low()) {
    const AtStation at(stations, Station::kJournal);
    co_await context_.sequences.Reserve();
  }
  residents_.NoteTime();
  for (PartWrite& part : parts) {
    PartJob& job = jobs.emplace_back();
    job.part = std::move(part);
    if (context_.steps.Spent()) co_await Yield();
    if (prompts_.AwaitsWrite(call.tree, job.part.key)) co_await prompts_.TakeIn(call.tree, job.part.key);
    if (MayJoin(call, job) && JoinPut(caller, call, job) == residency::Step::kWaits) {
      const AtStation at(stations, Station::kRemoval);
      co_await JoinWhenSure(caller, call, job);
    }
    const residency::SlotFill fill(residents_);
    if (job.put != catalog::kNoId && !context_.pending[job.put].has_slot &&
        context_.pending[job.put].state == catalog::Put::State::kOpen) {
      const auto place =
          room_.MakeAtOnce(puts_.RecordBytesOf(context_.pending[job.put]),
                           {.group = context_.catalog.GroupOf(context_.pending[job.put].name.tree),
                            .node = caller.memory_node});
      if (place) {
        puts_.GiveSlot(job.put, *place);
      } else {
        Task<void> finding = FindSlot(fill, job, deadline, caller.memory_node);
        const AtStation at(finding.done() ? nullptr : stations, Station::kRoom);
        co_await finding;
      }
    }
    if (job.put == catalog::kNoId || !BeginCopy(job)) {
      NoteRefused(call, job);
    } else if (by_core) {
      co_await CopyByCore(job);
      co_await Finish(call, job);
    } else {
      job.copying = CopyByMover(job);
    }
  }
  // Only now: this call's own search for room does not wait for what it commits afterwards.
  const residency::SlotFill committing(residents_);
  for (PartJob& job : jobs) {
    if (by_core) break;
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    if (!job.copies) continue;
    {
      const AtStation at(job.copying.done() ? nullptr : stations, Station::kMover);
      co_await job.copying;
    }
    co_await Finish(call, job);
  }
  if (publisher_.settles()) co_await publisher_.Settle();
  std::vector<PartOutcome> outcomes;
  outcomes.reserve(jobs.size());
  for (PartJob& job : jobs) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    Outcome(job);
    outcomes.push_back(std::move(job.outcome));
  }
  co_return outcomes;
}

Task<Result<std::uint32_t>> Writer::EndHeld(catalog::Caller caller, std::uint32_t slot,
                                            std::span<const PutId> puts, bool publish) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  std::uint32_t ended = 0;
  bool mine = false, foreign = false;
  std::vector<catalog::PutIndex> found;
  for (const PutId& id : puts) {
    found.clear();
    for (;;) {
      if (context_.steps.Spent()) co_await Yield();
      context_.steps.Count();
      // The search goes on from the last put found that is still in the order.
      std::size_t last = found.size();
      while (last > 0 && context_.pending[found[last - 1]].state != catalog::Put::State::kOpen) --last;
      const catalog::PutIndex put =
          context_.pending.NextNumbered(tree, id, last > 0 ? found[last - 1] : catalog::kNoId);
      if (put == catalog::kNoId) break;
      ++context_.pending[put].users;
      found.push_back(put);
    }
    for (catalog::PutIndex put : found) {
      if (context_.steps.Spent()) co_await Yield();
      const bool open = context_.pending[put].state == catalog::Put::State::kOpen;
      if (context_.pending[put].name.owner != caller.owner) {
        foreign = true;
      } else if (mine = true; open && !publish) {
        puts_.End(put, Code::kGone);
        ++ended;
      } else if (open) {
        context_.pending[put].held = false;
        while (TryPublish(put) == residency::Step::kSpent) co_await Yield();
        if (Unsure(put)) co_await PublishWhenSure(put);
        const catalog::Put& p = context_.pending[put];
        ended += p.state != catalog::Put::State::kEnded || p.end == Code::kOk;
      }
      puts_.Leave(put);
    }
  }
  if (publisher_.settles()) co_await publisher_.Settle();
  if (!mine && foreign) {
    co_return Error(Code::kDenied,
                    "put: is another owner's; only sessions of its owner publish or abandon it");
  }
  co_return ended;
}

Status Writer::CheckPart(const catalog::NamespaceEntry& entry, const PartWrite& part) const {
  const auto invalid = [&](std::string message) {
    return Status(Code::kInvalid, Text("block ", part.key.ToHex(), ": ", message));
  };
  if (part.key.none() || part.key.length > BlockKey::kMaxBytes || part.parent.length > BlockKey::kMaxBytes) {
    return invalid(Text("its key has ", part.key.length, " bytes and its parent's ", part.parent.length,
                        ", a key has 1 to ", BlockKey::kMaxBytes));
  }
  const std::size_t shorter =
      part.parent.none() ? part.key.length : std::min(part.key.length, part.parent.length);
  if (shorter < BlockKey::kMinUntrustedBytes && !entry.trusted_keys) {
    return invalid(Text("its key or its parent's has ", shorter, " bytes, under ",
                        BlockKey::kMinUntrustedBytes,
                        " two contents may get one key: use longer keys, or attach with trusted_keys"));
  }
  if (part.key == part.parent) return invalid("is its own parent");
  if (part.group >= entry.groups.size()) {
    return invalid(Text("group ", part.group, " is not in the namespace, which has ", entry.groups.size()));
  }
  const catalog::Group& group = entry.groups[part.group];
  if (part.part >= group.parts()) {
    return invalid(Text("part ", part.part, " is not in group ", group.name, ", which has ", group.parts()));
  }
  if (part.from.empty()) return invalid(Text("part ", part.part, " has no bytes"));
  if (!group.part_bytes.empty() && part.from.size() != group.part_bytes[part.part]) {
    return invalid(Text("part ", part.part, " has ", part.from.size(), " bytes and in group ", group.name,
                        " it has ", group.part_bytes[part.part]));
  }
  if (!part.checksums.empty() && part.checksums.size() != record::SegmentsOfPart(part.from.size())) {
    return invalid(Text("part ", part.part, " comes with ", part.checksums.size(), " checksums and has ",
                        record::SegmentsOfPart(part.from.size()), " segments"));
  }
  return context_.slots.CheckBody(group.part_bytes.empty() ? part.from.size() : group.body_bytes);
}

// An owner's first always does: whether there is room is then for eviction to say.
bool Writer::LeavesMemory(const OwnerToken& owner, std::uint64_t record_bytes) const {
  const std::uint64_t mine = context_.pending.Of(owner).bytes;
  const std::uint64_t kept = residents_.referenced_bytes() + context_.pending.bytes();
  return mine == 0 || policy::MayTake(context_.slots.bytes_soon(), kept, mine, record_bytes);
}

std::string Writer::PendingFull(const OwnerToken& owner) const {
  const catalog::PendingBound& bound = context_.pending.bound();
  const catalog::PendingPuts::Share share = context_.pending.Of(owner);
  return Text("write: ", context_.pending.size(), " puts of ", context_.pending.bytes(),
              " bytes are pending, ", share.puts, " of ", share.bytes, " this owner's; ", bound.puts, " of ",
              bound.bytes, " may be (and leases keep ", residents_.referenced_bytes(), " of ",
              context_.slots.bytes_soon(), " bytes of memory), and of an owner ", policy::kShare,
              " times what is left; publish or abandon some, or give the node more memory");
}

policy::Standing Writer::StandingOf(WriteCall& call, const PartWrite& part) {
  const policy::Order& order = residents_.order();
  if (!order.taught()) return {};
  policy::Standing above;
  if (!part.parent.none() && part.parent == call.last) {
    above = call.last_standing;
  } else if (!part.parent.none()) {
    const catalog::KeyHash parent = catalog::KeyHashOf(call.tree, part.parent);
    const catalog::BlockId block = context_.forest.Find(call.tree, part.parent, parent);
    above = residents_.StandingOf(block);
    if (!above.told) {
      const catalog::PutIndex put = context_.pending.NextOf(call.tree, parent, catalog::kNoId);
      if (put != catalog::kNoId) above = context_.pending[put].standing;
    }
  }
  call.last = part.key;
  call.last_standing = order.StandingOf(catalog::KeyHashOf(call.tree, part.key), above);
  return call.last_standing;
}

residency::Step Writer::JoinPut(const catalog::Caller& caller, WriteCall& call, PartJob& job) {
  const PartWrite& part = job.part;
  const catalog::TreeId tree = call.tree;
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  if (entry == nullptr) {
    job.outcome.status = Status(Code::kMiss, "write: the namespace was dropped meanwhile");
    return residency::Step::kDone;
  }
  bool unsure = false;
  const catalog::BlockId block = context_.catalog.Find(tree, part.key, &unsure);
  if (unsure) return residency::Step::kWaits;
  const std::uint64_t now_s = context_.catalog.NowS();
  if (block != catalog::kNoId) {
    const auto copy = context_.forest.See(block, part.group);
    if (copy && catalog::Catalog::Expired(copy->expiry, now_s)) {
      deletions_.Cut(block, residency::LossReason::kExpired);
    } else if (copy && !removal_.LoseGone(block, part.group, *copy)) {
      if (part.part == 0) context_.counters.present.Add();  // each part of a put comes here
      if (lower_.present()) uses_.UseBlock(block);
      if (part.conversation != 0) context_.conversations.Uses(tree, part.key, part.conversation);
      job.outcome.state = PartOutcome::State::kPresent;
      return residency::Step::kDone;
    }
  }
  const catalog::PutName name{caller.owner, tree, part.group, part.key, part.put_id};
  context_.steps.Count();
  catalog::PutIndex put = context_.pending.Find(name);
  const catalog::Group& group = entry->groups[part.group];
  if (put == catalog::kNoId) {
    const std::uint64_t body_bytes = group.part_bytes.empty() ? part.from.size() : group.body_bytes;
    const std::uint64_t record_bytes = context_.catalog.RecordBytesOf(*entry, part.group, body_bytes);
    if (!context_.pending.HasRoom(caller.owner, record_bytes) || !LeavesMemory(caller.owner, record_bytes)) {
      context_.counters.busy.Add();
      job.outcome.status = Status(Code::kBusy, PendingFull(caller.owner));
      return residency::Step::kDone;
    }
    if (job.outcome.status = puts_.CheckHash(tree, part.key); !job.outcome.status.ok()) {
      context_.counters.busy.Add();
      return residency::Step::kDone;
    }
    put = context_.pending.Add(name, part.parent, record_bytes,
                               context_.clock.Now().PlusUs(context_.options.pending_us));
    catalog::Put& p = context_.pending[put];
    p.part_bytes = group.part_bytes;
    if (p.part_bytes.empty()) p.part_bytes = {static_cast<std::uint32_t>(part.from.size())};
    p.body_bytes = body_bytes;
    p.crcs.resize(record::SegmentCount(p.part_bytes));
    p.expiry = part.ttl_s == 0
                   ? 0
                   : static_cast<std::uint32_t>(std::min<std::uint64_t>(now_s + part.ttl_s, UINT32_MAX));
    p.held = part.held;
    p.conversation = part.conversation;
    p.standing = StandingOf(call, part);
    p.made = context_.catalog.NextEvent();
    p.after_drop = context_.forest.tree(tree)->last_drop;
    p.parent_stood = publisher_.ParentStands(tree, part.parent);
    context_.steps.Count(2);
  }
  catalog::Put& p = context_.pending[put];
  if (p.parent != part.parent || p.part_bytes[part.part] != part.from.size()) {
    job.outcome.status =
        Status(Code::kInvalid, Text("block ", part.key.ToHex(), ": part ", part.part,
                                    " has another parent or length than the parts before it"));
    return residency::Step::kDone;
  }
  job.put = put;
  ++p.users;
  return residency::Step::kDone;
}

Task<void> Writer::JoinWhenSure(catalog::Caller caller, WriteCall& call, PartJob& job) {
  co_await context_.catalog.LearnStanding(call.tree, catalog::KeyHashOf(call.tree, job.part.key));
  while (JoinPut(caller, call, job) == residency::Step::kWaits) {
    if (Status waited = co_await deletions_.NextCollected(call.deadline); !waited.ok()) {
      job.outcome.status = std::move(waited);
      co_return;
    }
  }
}

Task<void> Writer::FindSlot(const residency::SlotFill& fill, PartJob& job, Instant deadline,
                            memory::NodeIndex node) {
  const catalog::TreeId tree = context_.pending[job.put].name.tree;
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  const bool full = entry != nullptr && entry->groups[job.part.group].reach == Reach::kFull;
  const policy::Standing standing = full ? context_.pending[job.put].standing : policy::Standing();
  const auto place = co_await room_.Make(
      fill, puts_.RecordBytesOf(context_.pending[job.put]), deadline,
      {.standing = standing, .group = context_.catalog.GroupOf(tree), .node = node, .put = true});
  if (place) {
    puts_.GiveSlot(job.put, *place);
    co_return;
  }
  // Another call's part may have found a slot meanwhile, or ended the put.
  const catalog::Put& p = context_.pending[job.put];
  if (p.state != catalog::Put::State::kOpen || p.has_slot) co_return;
  job.outcome.status = place.error();
  puts_.End(job.put, place.error().code());
}

bool Writer::BeginCopy(PartJob& job) {
  catalog::Put& p = context_.pending[job.put];
  const std::uint64_t bit = 1ull << job.part.part;
  if (p.state != catalog::Put::State::kOpen || !p.has_slot || ((p.written | p.writing) & bit) != 0)
    return false;
  p.writing |= bit;
  job.copies = true;
  return true;
}

Task<void> Writer::CopyByCore(PartJob& job) {
  const std::span<const std::byte> from = job.part.from;
  for (std::size_t at = 0; at < from.size(); at += record::kSegmentBytes) {
    const auto piece = from.subspan(at, std::min<std::size_t>(record::kSegmentBytes, from.size() - at));
    if (context_.steps.CopySpent(piece.size())) co_await Yield();
    context_.steps.CountCopy(piece.size());
    catalog::Put& p = context_.pending[job.put];
    const std::span<const std::byte> pieces[] = {piece};
    arena::RunFill(
        context_.words,
        {context_.slots.arena().slot(p.place) + p.part_offset(job.part.part) + at, pieces,
         std::span(p.crcs).subspan(p.first_segment(job.part.part) + at / record::kSegmentBytes, 1)});
  }
}

Task<void> Writer::CopyByMover(PartJob& job) {
  const residency::SlotFill filling(residents_);
  const std::span<const std::byte> from = job.part.from;
  for (std::size_t at = 0; at < from.size(); at += kStretchBytes) {
    const std::span<const std::byte> pieces[] = {
        from.subspan(at, std::min<std::size_t>(kStretchBytes, from.size() - at))};
    catalog::Put& p = context_.pending[job.put];
    memory::FillTask fill(
        context_.movers,
        {context_.slots.arena().slot(p.place) + p.part_offset(job.part.part) + at, pieces,
         std::span(p.crcs).subspan(p.first_segment(job.part.part) + at / record::kSegmentBytes,
                                   record::SegmentsOfPart(pieces[0].size()))});
    co_await fill;
  }
}

// R6: the bytes copied are the bytes that the writer filled in, or no part of the put becomes visible.
void Writer::Commit(const WriteCall& call, PartJob& job) {
  catalog::Put& p = context_.pending[job.put];
  const std::uint64_t bit = 1ull << job.part.part;
  p.writing &= ~bit;
  if (p.state != catalog::Put::State::kOpen) {
    puts_.FreeSlot(job.put);
    return;
  }
  if (job.part.checksums.empty() && context_.clock.Now() >= call.deadline.PlusUs(kStagingGraceUs)) {
    job.outcome.status =
        Status(Code::kTooLate, Text("block ", job.part.key.ToHex(), ": part ", job.part.part,
                                    " was copied from its writer's staging when that might be filled anew"));
    puts_.End(job.put, Code::kTooLate);
    return;
  }
  const std::uint32_t first = p.first_segment(job.part.part);
  for (std::size_t i = 0; i < job.part.checksums.size(); ++i) {
    if (p.crcs[first + i] == job.part.checksums[i]) continue;
    job.outcome.status = Status(
        Code::kInvalid, Text("block ", job.part.key.ToHex(), ": segment ", i, " of part ", job.part.part,
                             " has crc ", Hex(p.crcs[first + i]), " and was filled in with ",
                             Hex(job.part.checksums[i]), "; the bytes changed before they were copied"));
    puts_.End(job.put, Code::kInvalid);
    return;
  }
  p.written |= bit;
}

void Writer::Outcome(PartJob& job) {
  if (job.put == catalog::kNoId) return;
  const catalog::Put& p = context_.pending[job.put];
  if (!job.failed()) {
    switch (p.state) {
      case catalog::Put::State::kOpen: job.outcome.state = PartOutcome::State::kPending; break;
      case catalog::Put::State::kPublished: job.outcome.state = PartOutcome::State::kPublished; break;
      case catalog::Put::State::kEnded:
        if (p.end == Code::kOk) {
          job.outcome.state = PartOutcome::State::kPresent;
        } else {
          job.outcome.status = Status(
              p.end, Text("block ", job.part.key.ToHex(), ": its put ended: ",
                          p.end == Code::kBusy ? "there is no room, and nothing may go that is worth less"
                          : p.end == Code::kInvalid ? "its parent or its bytes are not those it was put with"
                                                    : "it was dropped or given up"));
        }
        break;
    }
  }
  puts_.Leave(job.put);
}

bool Writer::MayJoin(const WriteCall& call, PartJob& job) const {
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(call.tree);
  Status& status = job.outcome.status;
  if (entry == nullptr) {
    status = Status(Code::kMiss, "write: the namespace is not attached, or was dropped");
  } else if (status = CheckPart(*entry, job.part); !status.ok()) {
    return false;
  } else if (!switches_.on(Switch::kWrites, call.slot)) {
    const bool drains = switches_.closed(Switch::kWrites);
    status = Status(Code::kBusy, Text("block ", job.part.key.ToHex(),
                                      drains ? ": the node drains, so that it can be stopped"
                                             : ": writes are off, `cistern admin writes on` turns them on"));
  } else if (call.refused.contains(job.part.parent)) {
    status = Status(Code::kBusy, Text("block ", job.part.key.ToHex(), ": its parent was refused"));
  } else if (context_.clock.Now() >= call.deadline) {
    status = Status(Code::kTooLate, "write: the deadline passed before it was begun");
  }
  return status.ok();
}

Task<void> Writer::Finish(WriteCall& call, PartJob& job) {
  Commit(call, job);
  if (context_.pending[job.put].state == catalog::Put::State::kOpen &&
      call.refused.contains(job.part.parent)) {
    puts_.End(job.put, Code::kBusy);
  }
  while (TryPublish(job.put) == residency::Step::kSpent) co_await Yield();
  if (Unsure(job.put)) co_await PublishWhenSure(job.put);
  NoteRefused(call, job);
}

residency::Step Writer::TryPublish(catalog::PutIndex put) {
  if (context_.pending[put].state != catalog::Put::State::kOpen) return residency::Step::kDone;
  return publisher_.TryPublish(put);
}

Task<void> Writer::PublishWhenSure(catalog::PutIndex put) {
  const catalog::TreeId tree = context_.pending[put].name.tree;
  const catalog::KeyHash parent = catalog::KeyHashOf(tree, context_.pending[put].parent);
  co_await context_.catalog.LearnStanding(tree, parent);
  while (TryPublish(put) == residency::Step::kSpent) co_await Yield();
}

void Writer::NoteRefused(WriteCall& call, const PartJob& job) {
  const bool ended =
      job.put != catalog::kNoId && context_.pending[job.put].state == catalog::Put::State::kEnded;
  if (!job.failed() && (!ended || context_.pending[job.put].end == Code::kOk)) return;
  // Of a window beside a full group nothing below is in need.
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(call.tree);
  if (entry != nullptr && entry->first_full != catalog::kNoGroup && job.part.group < entry->groups.size() &&
      entry->groups[job.part.group].reach != Reach::kFull)
    return;
  call.refused.insert(job.part.key);
}

}  // namespace cistern::store
