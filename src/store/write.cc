// SPDX-License-Identifier: Apache-2.0
// Puts on their way: parts join a put, get a slot, are copied with checksums, and are committed.
#include <algorithm>
#include <unordered_set>

#include "base/format.h"
#include "record/seal.h"
#include "store/impl.h"

namespace cistern {

struct BlockStore::Impl::PartJob {
  PartWrite part;
  PutSlot put = kNoId;  // counted as its user
  bool copies = false;  // its bytes are being copied, or are to be committed
  Task<void> copying;
  PartOutcome outcome;

  bool failed() const { return !outcome.status.ok(); }
};

// One call's parts have this in common.
struct BlockStore::Impl::WriteCall {
  RealmId realm;
  Instant deadline;
  // A child of what this call could not write will not be reachable: it is refused with it, not kept waiting.
  std::unordered_set<BlockKey> refused;
};

Status BlockStore::Impl::CheckPart(const NamespaceEntry& entry, const PartWrite& part) const {
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
  const Group& group = entry.groups[part.group];
  if (part.part >= group.parts()) {
    return invalid(Text("part ", part.part, " is not in group ", group.name, ", which has ", group.parts()));
  }
  if (part.from.empty()) return invalid(Text("part ", part.part, " has no bytes"));
  if (!group.part_bytes.empty() && part.from.size() != group.part_bytes[part.part]) {
    return invalid(Text("part ", part.part, " has ", part.from.size(), " bytes and in group ", group.name,
                        " it has ", group.part_bytes[part.part]));
  }
  if (!part.checksums.empty() && part.checksums.size() != SegmentsOfPart(part.from.size())) {
    return invalid(Text("part ", part.part, " comes with ", part.checksums.size(), " checksums and has ",
                        SegmentsOfPart(part.from.size()), " segments"));
  }
  return slots_.CheckBody(group.part_bytes.empty() ? part.from.size() : group.body_bytes);
}

BlockStore::Impl::Step BlockStore::Impl::JoinPut(const Caller& caller, RealmId realm, PartJob& job) {
  const PartWrite& part = job.part;
  const NamespaceEntry* entry = EntryOf(realm);
  if (entry == nullptr) {
    job.outcome.status = Status(Code::kMiss, "write: the namespace was dropped meanwhile");
    return Step::kDone;
  }
  bool unsure = false;
  const BlockId block = Find(realm, part.key, &unsure);
  if (unsure) return Step::kWaits;
  const std::uint64_t now_s = NowS();
  if (block != kNoId) {
    const auto copy = tree_.See(block, part.group);
    if (copy && Expired(copy->expiry, now_s)) {
      Cut(block, Reason::kExpired);
    } else if (copy) {
      counters_.present.Add();
      if (tier_ != nullptr) UseBlock(block);
      if (part.conversation != 0) conversations_.Uses(realm, part.key, part.conversation);
      job.outcome.state = PartOutcome::State::kPresent;
      return Step::kDone;
    }
  }
  const PutName name{caller.owner, realm, part.group, part.key, part.put_id};
  Count();
  PutSlot put = pending_.Find(name);
  const Group& group = entry->groups[part.group];
  if (put == kNoId) {
    if (pending_.full()) {
      counters_.busy.Add();
      job.outcome.status =
          Status(Code::kBusy, Text("write: ", options_.max_pending, " puts are pending, which is the limit"));
      return Step::kDone;
    }
    put = pending_.Add(name, part.parent, clock_.Now().PlusUs(options_.pending_us));
    Put& p = pending_[put];
    p.part_bytes = group.part_bytes;
    if (p.part_bytes.empty()) p.part_bytes = {static_cast<std::uint32_t>(part.from.size())};
    p.body_bytes = group.part_bytes.empty() ? part.from.size() : group.body_bytes;
    p.crcs.resize(SegmentCount(p.part_bytes));
    p.expiry = part.ttl_s == 0
                   ? 0
                   : static_cast<std::uint32_t>(std::min<std::uint64_t>(now_s + part.ttl_s, UINT32_MAX));
    p.held = part.held;
    p.conversation = part.conversation;
    p.made = ++last_made_;
    p.after_drop = tree_.realm(realm)->last_drop;
    Count(2);
  }
  Put& p = pending_[put];
  if (p.parent != part.parent || p.part_bytes[part.part] != part.from.size()) {
    job.outcome.status =
        Status(Code::kInvalid, Text("block ", part.key.ToHex(), ": part ", part.part,
                                    " has another parent or length than the parts before it"));
    return Step::kDone;
  }
  job.put = put;
  ++p.users;
  return Step::kDone;
}

Task<void> BlockStore::Impl::JoinWhenSure(Caller caller, RealmId realm, PartJob& job, Instant deadline) {
  do {
    if (Status waited = co_await collected_.Wait(deadline); !waited.ok()) {
      job.outcome.status = std::move(waited);
      co_return;
    }
  } while (JoinPut(caller, realm, job) == Step::kWaits);
}

std::uint64_t BlockStore::Impl::RecordBytesOf(const Put& put) const {
  return RecordBytes(put.body_bytes, static_cast<std::uint32_t>(put.crcs.size()),
                     static_cast<std::uint32_t>(put.part_bytes.size()), slots_.arena().geometry().alignment);
}

void BlockStore::Impl::GiveSlot(PutSlot put, Place place) {
  Put& p = pending_[put];
  if (p.state != Put::State::kOpen || p.has_slot) {
    slots_.Free(place);
    return;
  }
  slots_.Pin(place);
  p.place = place;
  p.generation = BeginFill(words_, slots_.arena(), place);
  p.has_slot = true;
  Count(2);
}

Task<void> BlockStore::Impl::FindSlot(PartJob& job, Instant deadline) {
  const auto place = co_await MakeRoom(RecordBytesOf(pending_[job.put]), deadline);
  if (place) {
    GiveSlot(job.put, *place);
    co_return;
  }
  // Another call's part may have found one meanwhile, or ended the put.
  const Put& p = pending_[job.put];
  if (p.state != Put::State::kOpen || p.has_slot) co_return;
  job.outcome.status = place.error();
  EndPut(job.put, place.error().code());
}

bool BlockStore::Impl::BeginCopy(PartJob& job) {
  Put& p = pending_[job.put];
  const std::uint64_t bit = 1ull << job.part.part;
  if (p.state != Put::State::kOpen || !p.has_slot || ((p.written | p.writing) & bit) != 0) return false;
  p.writing |= bit;
  job.copies = true;
  return true;
}

Task<void> BlockStore::Impl::CopyByCore(PartJob& job) {
  const std::span<const std::byte> from = job.part.from;
  for (std::size_t at = 0; at < from.size(); at += kSegmentBytes) {
    const auto piece = from.subspan(at, std::min<std::size_t>(kSegmentBytes, from.size() - at));
    Count(0);
    if (copied_ > 0 && copied_ + piece.size() > kStepBytes) co_await Yield();
    Count(0);
    copied_ += piece.size();
    Put& p = pending_[job.put];
    const std::span<const std::byte> pieces[] = {piece};
    RunFill(words_, {slots_.arena().slot(p.place) + p.part_offset(job.part.part) + at, pieces,
                     std::span(p.crcs).subspan(p.first_segment(job.part.part) + at / kSegmentBytes, 1)});
  }
}

Task<void> BlockStore::Impl::CopyByMover(PartJob& job) {
  const std::span<const std::byte> from = job.part.from;
  for (std::size_t at = 0; at < from.size(); at += kStretchBytes) {
    const std::span<const std::byte> pieces[] = {
        from.subspan(at, std::min<std::size_t>(kStretchBytes, from.size() - at))};
    Put& p = pending_[job.put];
    FillTask fill(movers_, {slots_.arena().slot(p.place) + p.part_offset(job.part.part) + at, pieces,
                            std::span(p.crcs).subspan(p.first_segment(job.part.part) + at / kSegmentBytes,
                                                      SegmentsOfPart(pieces[0].size()))});
    co_await fill;
  }
}

// R6: what was copied is what the writer filled in, or nothing of the put becomes visible.
void BlockStore::Impl::Commit(PartJob& job) {
  Put& p = pending_[job.put];
  const std::uint64_t bit = 1ull << job.part.part;
  p.writing &= ~bit;
  if (p.state != Put::State::kOpen) {
    LetGoOfSlot(job.put);
    return;
  }
  const std::uint32_t first = p.first_segment(job.part.part);
  for (std::size_t i = 0; i < job.part.checksums.size(); ++i) {
    if (p.crcs[first + i] == job.part.checksums[i]) continue;
    job.outcome.status = Status(
        Code::kInvalid, Text("block ", job.part.key.ToHex(), ": segment ", i, " of part ", job.part.part,
                             " has crc ", Hex(p.crcs[first + i]), " and was filled in with ",
                             Hex(job.part.checksums[i]), "; the bytes changed before they were copied"));
    EndPut(job.put, Code::kInvalid);
    return;
  }
  p.written |= bit;
}

void BlockStore::Impl::LetGoOfSlot(PutSlot put) {
  Put& p = pending_[put];
  if (!p.has_slot || p.writing != 0) return;
  p.has_slot = false;
  slots_.Unpin(p.place);
  slots_.Free(p.place);
}

void BlockStore::Impl::EndPut(PutSlot put, Code why) {
  Put& p = pending_[put];
  Count(2);
  p.state = Put::State::kEnded;
  p.end = why;
  if (why == Code::kOk) counters_.present.Add();
  if (why == Code::kBusy) counters_.busy.Add();
  pending_.Close(put);
  LetGoOfSlot(put);
  // It kept its parent; that may go again.
  if (const BlockId parent = tree_.Find(p.name.realm, p.parent); parent != kNoId) Unpark(parent);
  if (p.users == 0) pending_.Free(put);
}

void BlockStore::Impl::Leave(PutSlot put) {
  Put& p = pending_[put];
  if (--p.users == 0 && p.state != Put::State::kOpen) pending_.Free(put);
}

void BlockStore::Impl::Settled(PartJob& job) {
  if (job.put == kNoId) return;
  const Put& p = pending_[job.put];
  if (!job.failed()) {
    switch (p.state) {
      case Put::State::kOpen: job.outcome.state = PartOutcome::State::kPending; break;
      case Put::State::kPublished: job.outcome.state = PartOutcome::State::kPublished; break;
      case Put::State::kEnded:
        if (p.end == Code::kOk) {
          job.outcome.state = PartOutcome::State::kPresent;
        } else {
          job.outcome.status = Status(
              p.end, Text("block ", job.part.key.ToHex(), ": its put ended: ",
                          p.end == Code::kBusy      ? "there is no room and nothing may go"
                          : p.end == Code::kInvalid ? "its parent or its bytes are not those it was put with"
                                                    : "it was dropped or given up"));
        }
        break;
    }
  }
  Leave(job.put);
}

bool BlockStore::Impl::Admit(const WriteCall& call, PartJob& job) const {
  const NamespaceEntry* entry = EntryOf(call.realm);
  Status& status = job.outcome.status;
  if (entry == nullptr) {
    status = Status(Code::kMiss, "write: the namespace is not attached, or was dropped");
  } else if (status = CheckPart(*entry, job.part); !status.ok()) {
    return false;
  } else if (call.refused.contains(job.part.parent)) {
    status = Status(Code::kBusy, Text("block ", job.part.key.ToHex(), ": its parent was refused"));
  } else if (clock_.Now() >= call.deadline) {
    status = Status(Code::kTooLate, "write: the deadline passed before it was begun");
  }
  return status.ok();
}

Task<void> BlockStore::Impl::Finish(WriteCall& call, PartJob& job) {
  Commit(job);
  if (pending_[job.put].state == Put::State::kOpen && call.refused.contains(job.part.parent)) {
    EndPut(job.put, Code::kBusy);
  }
  while (pending_[job.put].state == Put::State::kOpen && TryPublish(job.put) == Step::kSpent)
    co_await Yield();
  NoteRefused(call, job);
}

void BlockStore::Impl::NoteRefused(WriteCall& call, const PartJob& job) {
  const bool ended = job.put != kNoId && pending_[job.put].state == Put::State::kEnded;
  if (job.failed() || (ended && pending_[job.put].end != Code::kOk)) call.refused.insert(job.part.key);
}

Task<std::vector<PartOutcome>> BlockStore::Impl::Write(Caller caller, std::uint32_t slot,
                                                       std::vector<PartWrite> parts, Instant deadline) {
  std::vector<PartJob> jobs;
  jobs.reserve(parts.size());  // what copies a part keeps its job's address
  WriteCall call{RealmOf(slot), deadline, {}};
  std::uint64_t bytes = 0;
  for (const PartWrite& part : parts) {
    Count();
    if (Spent()) co_await Yield();
    bytes += part.from.size();
  }
  const bool by_core = bytes <= options_.core_copy_bytes;
  if (LowOnSequences()) co_await ReserveSequences();
  for (PartWrite& part : parts) {
    PartJob& job = jobs.emplace_back();
    job.part = std::move(part);
    if (Spent()) co_await Yield();
    if (Admit(call, job) && JoinPut(caller, call.realm, job) == Step::kWaits) {
      co_await JoinWhenSure(caller, call.realm, job, deadline);
    }
    if (job.put != kNoId && !pending_[job.put].has_slot && pending_[job.put].state == Put::State::kOpen) {
      const auto place = slots_.Allocate(RecordBytesOf(pending_[job.put]));
      if (place) {
        GiveSlot(job.put, *place);
      } else {
        co_await FindSlot(job, deadline);
      }
    }
    if (job.put == kNoId || !BeginCopy(job)) {
      NoteRefused(call, job);
    } else if (by_core) {
      co_await CopyByCore(job);
      co_await Finish(call, job);
    } else {
      job.copying = CopyByMover(job);
    }
  }
  for (PartJob& job : jobs) {
    if (by_core) break;
    Count();
    if (Spent()) co_await Yield();
    if (!job.copies) continue;
    co_await job.copying;
    co_await Finish(call, job);
  }
  if (CascadeWaits()) co_await Cascade();
  std::vector<PartOutcome> outcomes;
  outcomes.reserve(jobs.size());
  for (PartJob& job : jobs) {
    Count();
    if (Spent()) co_await Yield();
    Settled(job);
    outcomes.push_back(std::move(job.outcome));
  }
  co_return outcomes;
}

Task<Result<std::uint32_t>> BlockStore::Impl::EndHeld(Caller caller, std::uint32_t slot,
                                                      std::span<const PutId> puts, bool publish) {
  const RealmId realm = RealmOf(slot);
  std::uint32_t ended = 0;
  bool mine = false, foreign = false;
  std::vector<PutSlot> found;
  for (const PutId& id : puts) {
    found.clear();
    for (;;) {
      if (Spent()) co_await Yield();
      Count();
      // On from the last one found that is still in the order.
      std::size_t last = found.size();
      while (last > 0 && pending_[found[last - 1]].state != Put::State::kOpen) --last;
      const PutSlot put = pending_.NextNumbered(realm, id, last > 0 ? found[last - 1] : kNoId);
      if (put == kNoId) break;
      ++pending_[put].users;
      found.push_back(put);
    }
    for (PutSlot put : found) {
      if (Spent()) co_await Yield();
      const bool open = pending_[put].state == Put::State::kOpen;
      if (pending_[put].name.owner != caller.owner) {
        foreign = true;
      } else if (mine = true; open && !publish) {
        EndPut(put, Code::kGone);
        ++ended;
      } else if (open) {
        pending_[put].held = false;
        while (pending_[put].state == Put::State::kOpen && TryPublish(put) == Step::kSpent) co_await Yield();
        const Put& p = pending_[put];
        ended += p.state != Put::State::kEnded || p.end == Code::kOk;
      }
      Leave(put);
    }
  }
  if (CascadeWaits()) co_await Cascade();
  if (!mine && foreign) {
    co_return Error(Code::kDenied,
                    "put: is another owner's; only sessions of its owner publish or abandon it");
  }
  co_return ended;
}

}  // namespace cistern
