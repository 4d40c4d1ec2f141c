// SPDX-License-Identifier: Apache-2.0
#include "server/calls.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/call_stations.h"
#include "base/format.h"
#include "base/policy.h"
#include "record/seal.h"
#include "server/operations.h"
#include "store/remote_blocks.h"
#include "wire/match_wire.h"
#include "wire/spec_wire.h"

namespace cistern::server {
namespace {

// What is done in the time of a touch, nearly (Executor::AddWork): items of a list taken, bytes of the status
// written.
constexpr std::size_t kItemsPerTouch = 4;
constexpr std::size_t kTextPerTouch = 16;
constexpr std::uint16_t kPromptFlags = wire::kPartial | wire::kOutlookMask | wire::kImportanceMask;

// A prompt of which the client tells with its call, without its blocks.
Result<store::MatchedPrompt> PromptOf(const wire::Submission& call, std::uint16_t known,
                                      std::uint64_t next_turn_ms) {
  if ((call.flags & ~known) != 0)
    return Error(Code::kInvalid, Text("a match has the flags ", call.flags, ", this node knows ", known));
  store::MatchedPrompt prompt;
  prompt.hints.outlook = static_cast<Outlook>((call.flags & wire::kOutlookMask) >> wire::kOutlookShift);
  prompt.hints.importance =
      static_cast<Importance>((call.flags & wire::kImportanceMask) >> wire::kImportanceShift);
  prompt.hints.next_turn_ms = static_cast<std::uint32_t>(std::min<std::uint64_t>(next_turn_ms, UINT32_MAX));
  prompt.partial = (call.flags & wire::kPartial) != 0;
  if (Status status = CheckPolicy(prompt.hints); !status.ok()) return Error(status);
  return prompt;
}

// `keys` begin with the last that matched, if `first_new` is not 0, or are all of the chain's.
void SetBlocks(store::MatchedPrompt& prompt, std::vector<BlockKey> keys, std::size_t first_asked,
               std::size_t first_new, std::uint64_t matched) {
  prompt.keys = std::move(keys);
  prompt.first_asked = first_asked;
  prompt.first_new = first_new;
  prompt.matched = matched;
}

Status CheckLease(std::uint64_t lease_us) {
  if (lease_us >= 1 && lease_us <= static_cast<std::uint64_t>(kMaxLeaseUs)) return Status();
  return Status(Code::kInvalid, Text("a lease of ", lease_us, " us: leases last 1 to ", kMaxLeaseUs, " us"));
}

}  // namespace

bool Calls::InArea(const wire::Submission& call) {
  auto inside = [](std::uint64_t offset, std::uint64_t bytes) {
    return offset + bytes <= wire::kArgumentBytes;
  };
  return inside(call.args_offset, call.args_bytes) && inside(call.reply_offset, call.reply_bytes);
}

Task<Result<Answer>> Calls::Do(Session& session, const wire::Submission& call, CallStations& stations) {
  // A client's number may be any: none before the clock's begin, which would be too far off to count from.
  const Instant deadline{std::max<std::int64_t>(call.deadline_ns, 0)};
  const std::int64_t late_us = executor().Now().UsSince(deadline);
  if (late_us >= 0) {
    co_return Error(Code::kTooLate, Text("the node took the call ", late_us, " us after its deadline"));
  }
  if (OperationOf(call.op).steers && !session.own_user) {
    co_return Error(Code::kDenied, "steering a node is its own user's: run this command as the node's user");
  }
  switch (call.op) {
    case wire::Op::kAttach: co_return co_await Attach(session, call, stations);
    case wire::Op::kMatchRest: co_return co_await MatchRest(session, call, stations);
    case wire::Op::kHold: co_return co_await Hold(session, call);
    case wire::Op::kAcquire: co_return co_await Acquire(session, call, stations);
    case wire::Op::kRelease: co_return Release(session, call);
    case wire::Op::kWrite: co_return co_await Write(session, call, stations);
    case wire::Op::kPublish:
    case wire::Op::kAbandon: co_return co_await EndPuts(session, call);
    case wire::Op::kTouch: co_return co_await Touch(session, call);
    case wire::Op::kDrop: co_return co_await Drop(session, call, stations);
    case wire::Op::kDropNamespace: co_return co_await DropNamespace(session, call, stations);
    case wire::Op::kEndConversation: co_return co_await EndConversation(session, call, stations);
    case wire::Op::kReportBad: co_return co_await ReportBad(session, call);
    case wire::Op::kStatus: co_return co_await ReportStatus(session, call);
    case wire::Op::kDevice: co_return co_await steering_.ChangeDevice(session, call);
    case wire::Op::kSwitch: co_return co_await steering_.Turn(session, call);
    case wire::Op::kMemory: co_return co_await steering_.Resize(call);
    case wire::Op::kDropNamed: co_return co_await DropNamed(session, call, stations);
    case wire::Op::kDrain: co_return co_await steering_.Drain(call);
    case wire::Op::kIntroduce: co_return Introduce(session, call);
    case wire::Op::kNone: break;
  }
  const auto number = static_cast<std::uint16_t>(call.op);
  co_return Error(number > wire::kLastOp ? Code::kMismatch : Code::kInvalid,
                  Text("operation ", number, " is not known, the last one is ", wire::kLastOp,
                       ": a later one is of a later release, bring the node up to that"));
}

// ---- lists of arguments ---------------------------------------------------------------------------------

namespace {

// Each in its place: a value that is handed on is copied three times.
Status Take(const wire::KeyItem& item, BlockKey& key) { return TakeKey(item, key); }

Status Take(const wire::BlockItem& item, catalog::BlockName& block) {
  block.group = item.group;
  block.asked = {item.first_segment, item.segments};
  return TakeKey(item.key, block.key);
}

Status Take(const wire::PutIdItem& item, PutId& id) {
  id = {.high = item.high, .low = item.low};
  return Status();
}

// The rest of a call's arguments, which is a list of `what`, a slice a step.
template <class Item, class T>
Task<Status> TakeList(Executor& executor, Arguments& arguments, std::string_view what, std::vector<T>& list) {
  Result<std::size_t> count = arguments.Count<Item>(what, wire::kMaxKeysPerCall);
  if (!count) co_return std::move(count.error());
  list.reserve(*count);
  std::vector<Item> slice;
  while (arguments.left() > 0) {
    arguments.TakeSlice(slice);
    for (const Item& item : slice) {
      if (Status status = Take(item, list.emplace_back()); !status.ok()) co_return status;
    }
    executor.AddWork(slice.size() / kItemsPerTouch);
    if (arguments.left() > 0) co_await Yield();
  }
  co_return Status();
}

Status CheckWriteCount(const wire::Submission& call) {
  if (call.a >= 1 && call.a <= wire::kMaxWritesPerCall && call.a * sizeof(wire::WriteItem) <= call.args_bytes)
    return Status();
  return Status(Code::kInvalid, Text("a write of ", call.a, " parts in ", call.args_bytes,
                                     " bytes of arguments: a part takes ", sizeof(wire::WriteItem),
                                     " and a call at most ", wire::kMaxWritesPerCall, " parts"));
}

// One part as the store takes it: its bytes in the session's staging, its checksums out of the arguments.
// `rest` is what follows `taken` bytes of the arguments.
Result<store::PartWrite> PartOf(std::span<const std::shared_ptr<memory::StagingArea>> staging,
                                const wire::WriteItem& item, const Arguments& rest, std::size_t taken) {
  store::PartWrite part;
  if (item.bytes > kMaxBodyBytes)
    return Error(Code::kInvalid,
                 Text("a part of ", item.bytes, " bytes: a body has at most ", kMaxBodyBytes));
  Result<BlockKey> key = KeyOf(item.key);
  if (!key) return Error(std::move(key.error()));
  Result<BlockKey> parent = KeyOf(item.parent, /*none_allowed=*/true);
  if (!parent) return Error(std::move(parent.error()));
  part.key = *key;
  part.parent = *parent;
  part.group = item.group;
  part.part = item.part;
  part.put_id = PutId{.high = item.put_high, .low = item.put_low};
  part.ttl_s = item.ttl_s;
  part.held = item.held != 0;
  if (item.staging_area < staging.size() && staging[item.staging_area] != nullptr)
    part.from = staging[item.staging_area]->Range(item.staging_offset, item.bytes);
  if (part.from.empty())
    return Error(Code::kInvalid, Text(item.bytes, " bytes at ", item.staging_offset, " of staging area ",
                                      item.staging_area, " are not in this session's staging"));
  if (item.checksums_offset == 0) return part;
  std::uint64_t segments = (item.bytes + record::kSegmentBytes - 1) / record::kSegmentBytes;
  std::uint64_t end = item.checksums_offset + segments * sizeof(std::uint32_t);
  if (item.checksums_offset < taken || end > taken + rest.left())
    return Error(Code::kInvalid, Text("checksums of ", segments, " segments at ", item.checksums_offset,
                                      " are not in the call's arguments"));
  part.checksums.resize(segments);
  rest.CopyAt(item.checksums_offset - taken, std::as_writable_bytes(std::span(part.checksums)));
  return part;
}

}  // namespace

Task<Status> Calls::TakeWrites(Session& session, std::vector<std::shared_ptr<memory::StagingArea>>& read,
                               const wire::Submission& call, Arguments& arguments,
                               std::vector<store::PartWrite>& parts) {
  Status fits = CheckWriteCount(call);
  if (!fits.ok()) co_return fits;
  const std::size_t item_bytes = call.a * sizeof(wire::WriteItem);
  std::span<const std::byte> all = ArgumentBytes(session, call);
  Arguments items(all.first(item_bytes));
  arguments = Arguments(all.subspan(item_bytes));
  parts.reserve(call.a);
  std::vector<wire::WriteItem> slice;
  while (items.left() > 0) {
    items.TakeSlice(slice);
    std::size_t copied = 0;
    for (const wire::WriteItem& item : slice) {
      // The checksums of many parts may be the same bytes: the area does not bound them.
      if (copied > kSliceBytes) {
        co_await Yield();
        copied = 0;
      }
      Result<store::PartWrite> part = PartOf(session.staging, item, arguments, item_bytes);
      if (!part) co_return std::move(part.error());
      const std::shared_ptr<memory::StagingArea>& area = session.staging[item.staging_area];
      if (std::ranges::find(read, area) == read.end()) read.push_back(area);
      part->conversation = call.b;
      copied += sizeof(*part) + part->checksums.size() * sizeof(std::uint32_t);
      parts.push_back(std::move(*part));
    }
    if (items.left() > 0) co_await Yield();
  }
  co_return Status();
}

// ---- operations -----------------------------------------------------------------------------------------

namespace {

// The store's runs after those before; their blocks.
Task<std::uint32_t> AddRuns(Executor&, std::vector<MatchRun>& runs, std::span<const MatchRun> more) {
  std::uint32_t blocks = 0;
  for (std::size_t i = 0; i < more.size(); ++i) {
    if (i > 0 && i % kItemsPerStep == 0) co_await Yield();
    wire::AddRun(runs, more[i]);
    blocks += more[i].blocks;
  }
  co_return blocks;
}

wire::ViewItem ItemOf(const store::ViewGrant& view) {
  const bool late = view.code == Code::kTooLate;
  return {
      .place = view.place,
      .code = static_cast<std::uint32_t>(view.code),
      .bytes = late ? static_cast<std::uint64_t>(std::max<std::int64_t>(view.ready_in_us, 0)) : view.bytes,
      .generation = view.generation};
}

}  // namespace

Task<Result<Answer>> Calls::Attach(Session& session, const wire::Submission& call, CallStations& stations) {
  Arguments arguments(ArgumentBytes(session, call));
  wire::AttachArgs head;
  if (arguments.left() < sizeof(head) || arguments.left() > sizeof(head) + wire::kMaxSpecBytes) {
    co_return Error(Code::kInvalid, Text("a namespace list of ", arguments.left(), " bytes, the limit is ",
                                         wire::kMaxSpecBytes));
  }
  arguments.Take(std::as_writable_bytes(std::span(&head, 1)));
  std::vector<std::byte> bytes(arguments.left());
  arguments.Take(bytes);
  if (head.spec_bytes != bytes.size()) {
    co_return Error(Code::kInvalid,
                    Text("a namespace list of ", head.spec_bytes, " bytes comes with ", bytes.size()));
  }
  if ((head.flags & ~wire::kAttachKnown) != 0) {
    co_return Error(Code::kInvalid,
                    Text("an attach has the flags ", head.flags, ", this node knows ", wire::kAttachKnown));
  }
  Result<NamespaceSpec> spec = wire::DecodeSpec(bytes);
  if (!spec) co_return Error(spec.error());
  // Who only asks for what is known claims no name of the cell, and neither does who is refused here.
  const bool agrees = parts_.agree != nullptr && !spec->name.empty() && head.flags != wire::kAttachKnown;
  if (agrees) {
    const Status refused = co_await parts_.store.namespaces().CheckAttach(*spec, session.caller);
    if (!refused.ok()) co_return Error(refused);
    const Status agreed = co_await parts_.agree(*spec, DeadlineOf(executor(), call));
    if (!agreed.ok()) co_return Error(agreed);
  }
  const auto if_new = head.flags == wire::kAttachKnown ? store::IfNew::kRefuse : store::IfNew::kMake;
  Task<Result<store::Attached>> attaching =
      parts_.store.Attach(*spec, session.caller, if_new, DeadlineOf(executor(), call));
  Result<store::Attached> attached = Error(Code::kMiss, "");
  {
    const AtStation at(attaching.done() ? nullptr : &stations, Station::kJournal);
    attached = co_await attaching;
  }
  if (agrees) co_await parts_.agreed(*spec, attached.has_value(), DeadlineOf(executor(), call));
  if (!attached) co_return Error(attached.error());
  wire::AttachReply reply{.slot = attached->slot, .incarnation = attached->incarnation};
  co_return Reply(session, call, std::as_bytes(std::span(&reply, 1)), Answer());
}

Status Calls::UseNamespace(Session& session, std::uint32_t slot, std::uint64_t incarnation) {
  Status status = parts_.store.CheckNamespace(slot, incarnation);
  if (!status.ok() || session.namespaces.test(slot)) return status;
  session.namespaces.set(slot);
  parts_.store.namespaces().Use(session.caller.owner, slot);
  return status;
}

Task<Result<Answer>> Calls::MatchRest(Session& session, const wire::Submission& call,
                                      CallStations& stations) {
  Arguments arguments(ArgumentBytes(session, call));
  std::vector<BlockKey> keys;  // with the last that the index had, if the client sent it
  Result<store::MatchedPrompt> prompt =
      PromptOf(call, kPromptFlags | wire::kWithLast | wire::kWholeChain, call.b);
  Status status = prompt ? Status() : prompt.error();
  if (status.ok()) status = co_await TakeList<wire::KeyItem>(executor(), arguments, "keys", keys);
  if (status.ok()) status = UseNamespace(session, call.namespace_slot, call.incarnation);
  const bool whole = (call.flags & wire::kWholeChain) != 0;
  const std::size_t known = whole ? call.a : (call.flags & wire::kWithLast) != 0 ? 1 : 0;
  if (status.ok() && (known > keys.size() || known > call.a))
    status = Status(Code::kInvalid, Text("a match of ", call.a, " blocks and ", keys.size(),
                                         " keys has no last key that matched"));
  if (!status.ok()) co_return Error(status);
  const std::span<const BlockKey> rest = std::span(keys).subspan(known);
  if (call.a > UINT32_MAX - rest.size()) {
    co_return Error(Code::kInvalid, Text("a chain of more than ", UINT32_MAX, " blocks"));
  }
  const auto matched = static_cast<std::uint32_t>(call.a);
  store::Unmatched unmatched;
  Result<std::vector<MatchRun>> further =
      co_await FindRest(session, call.namespace_slot, matched, rest, &unmatched);
  if (!further) co_return Error(further.error());
  std::vector<MatchRun> runs;
  std::uint32_t more = co_await AddRuns(executor(), runs, *further);
  // Members are asked by the whole chain: what was dropped of it decides whether a block of theirs is taken.
  if (parts_.remote != nullptr && session.on(store::Switch::kReads) && known == matched &&
      more < rest.size() && parts_.remote->MayHaveMore(call.namespace_slot, keys, known + more)) {
    const AtStation at(&stations, Station::kPeer);
    more += co_await MatchRemote(call.namespace_slot, keys, known + more, DeadlineOf(executor(), call), runs);
  }
  parts_.store.NoteMisses(call.namespace_slot, rest, more, unmatched);
  SetBlocks(*prompt, std::move(keys), known, known + more, std::uint64_t{matched} + more);
  parts_.store.NotePrompt(call.namespace_slot, std::move(*prompt));
  if (call.reply_bytes < sizeof(wire::MatchReply) + sizeof(wire::MatchRunItem)) {
    co_return Error(Code::kInvalid, Text("a match's reply does not fit ", call.reply_bytes, " bytes"));
  }
  co_return co_await ReplyRuns(session, call, std::move(runs), Answer());
}

Task<Result<std::vector<MatchRun>>> Calls::FindRest(const Session& session, std::uint32_t slot,
                                                    std::uint32_t matched, std::span<const BlockKey> rest,
                                                    store::Unmatched* unmatched) {
  if (session.on(store::Switch::kReads))
    co_return co_await parts_.store.MatchRest(slot, matched, rest, unmatched);
  parts_.store.NoteSwitchedOff(rest.size());
  co_return std::vector<MatchRun>();
}

Task<std::uint32_t> Calls::MatchRemote(std::uint32_t slot, std::span<const BlockKey> keys, std::size_t local,
                                       Instant deadline, std::vector<MatchRun>& runs) {
  if (!parts_.store.Serves(slot)) co_return 0;
  const std::vector<MatchRun> remote = co_await parts_.remote->Match(slot, keys, local, deadline);
  co_return co_await AddRuns(executor(), runs, remote);
}

Task<Answer> Calls::ReplyRuns(Session& session, const wire::Submission& call, std::vector<MatchRun> runs,
                              Answer answer) {
  if (call.reply_bytes < sizeof(wire::MatchReply) + sizeof(wire::MatchRunItem)) co_return answer;
  wire::FoldRuns(runs, (call.reply_bytes - sizeof(wire::MatchReply)) / sizeof(wire::MatchRunItem));
  std::span<std::byte> room = ReplyRoom(session, call);
  wire::MatchReply head{.runs = static_cast<std::uint32_t>(runs.size())};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i > 0 && i % kItemsPerStep == 0) co_await Yield();
    head.blocks += runs[i].blocks;
    const wire::MatchRunItem item = wire::ItemOf(runs[i]);
    std::memcpy(room.data() + sizeof(head) + i * sizeof(item), &item, sizeof(item));
  }
  std::memcpy(room.data(), &head, sizeof(head));
  answer.reply_bytes = static_cast<std::uint32_t>(sizeof(head) + runs.size() * sizeof(wire::MatchRunItem));
  co_return answer;
}

Task<Result<Answer>> Calls::Hold(Session& session, const wire::Submission& call) {
  Arguments arguments(ArgumentBytes(session, call));
  std::vector<BlockKey> chain;
  Status status = CheckLease(call.a);
  Result<store::MatchedPrompt> prompt = PromptOf(call, kPromptFlags, call.b >> wire::kNextTurnShift);
  if (status.ok() && !prompt) status = prompt.error();
  if (status.ok()) status = co_await TakeList<wire::KeyItem>(executor(), arguments, "keys", chain);
  if (status.ok()) status = UseNamespace(session, call.namespace_slot, call.incarnation);
  if (!status.ok()) co_return Error(status);
  const auto hold_us = static_cast<std::int64_t>(call.a);
  // What the client saw in the index may be gone by now: then the whole chain is matched here and held.
  auto matched = static_cast<std::uint32_t>(std::min<std::uint64_t>(call.b & UINT32_MAX, chain.size()));
  if (!session.on(store::Switch::kReads)) matched = 0;  // whatever it saw before they were off
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::vector<MatchRun> runs;
    wire::AddRun(runs, {.blocks = matched});
    const std::size_t in_index = matched;
    if (matched < chain.size()) {
      std::span<const BlockKey> rest = std::span(chain).subspan(matched);
      store::Unmatched unmatched;
      Result<std::vector<MatchRun>> further =
          co_await FindRest(session, call.namespace_slot, matched, rest, &unmatched);
      if (!further) co_return Error(further.error());
      const std::uint32_t more = co_await AddRuns(executor(), runs, *further);
      parts_.store.NoteMisses(call.namespace_slot, rest, more, unmatched);
      matched += more;
    }
    Result<catalog::LeaseId> lease = 0;
    if (matched > 0)
      lease = co_await parts_.store.Hold(session.caller, call.namespace_slot, std::span(chain).first(matched),
                                         hold_us);
    if (lease) {
      SetBlocks(*prompt, std::move(chain), in_index, matched, matched);
      parts_.store.NotePrompt(call.namespace_slot, std::move(*prompt));
      if (matched == 0) co_return Answer();
      co_return co_await ReplyRuns(session, call, std::move(runs), Answer{.a = *lease, .b = matched});
    }
    if (lease.error().code() != Code::kMiss) co_return Error(lease.error());
    matched = 0;
  }
  co_return Answer();
}

Task<Result<Answer>> Calls::Acquire(Session& session, const wire::Submission& call, CallStations& stations) {
  Arguments arguments(ArgumentBytes(session, call));
  std::vector<catalog::BlockName> blocks;
  Status status = CheckLease(call.a);
  if (status.ok()) status = co_await TakeList<wire::BlockItem>(executor(), arguments, "blocks", blocks);
  if (status.ok()) status = UseNamespace(session, call.namespace_slot, call.incarnation);
  if (status.ok() && blocks.size() * sizeof(wire::ViewItem) > call.reply_bytes)
    status = Status(Code::kInvalid, Text("views of ", blocks.size(), " blocks do not fit the reply's ",
                                         call.reply_bytes, " bytes"));
  if (!status.ok()) co_return Error(status);
  if (!session.on(store::Switch::kReads)) {
    const std::vector<wire::ViewItem> none(blocks.size(), ItemOf(store::ViewGrant()));
    co_return Reply(session, call, std::as_bytes(std::span(none)), Answer());
  }
  const auto lease_us = static_cast<std::int64_t>(call.a);
  const auto worth_us = static_cast<std::int64_t>(std::min<std::uint64_t>(call.b, kNoWorthLimit));
  const Instant deadline = DeadlineOf(executor(), call);
  std::int64_t left_us = worth_us;  // for what others have, and then for what the lower tier has
  std::vector<store::RemoteMiss> misses;
  if (parts_.remote != nullptr && parts_.store.Serves(call.namespace_slot)) {
    const Instant worth =
        worth_us == kNoWorthLimit ? deadline : std::min(deadline, executor().Now().PlusUs(worth_us));
    const AtStation at(&stations, Station::kPeer);
    misses = co_await parts_.remote->Bring(call.namespace_slot, blocks, worth);
    left_us = std::max<std::int64_t>(worth.UsSince(executor().Now()), 0);
  }
  Result<store::AcquireGrant> grant = co_await parts_.store.Acquire(
      session.caller, call.namespace_slot, blocks, lease_us, deadline, left_us, &stations);
  if (!grant) co_return Error(grant.error());
  for (const store::RemoteMiss& miss : misses) {
    store::ViewGrant& view = grant->views[miss.at];
    if (view.code == Code::kMiss) view = {.code = miss.code, .ready_in_us = miss.ready_in_us};
  }
  std::span<std::byte> room = ReplyRoom(session, call);
  const std::size_t reply_bytes = grant->views.size() * sizeof(wire::ViewItem);
  for (std::size_t i = 0; i < grant->views.size(); ++i) {
    if (i > 0 && i % kItemsPerStep == 0) co_await Yield();
    const wire::ViewItem item = ItemOf(grant->views[i]);
    std::memcpy(room.data() + i * sizeof(item), &item, sizeof(item));
  }
  co_return Answer{.reply_bytes = static_cast<std::uint32_t>(reply_bytes),
                   .a = grant->lease,
                   .b = static_cast<std::uint64_t>(grant->ends.ns)};
}

std::optional<catalog::LeaseId> Calls::AcquireAtOnce(Session& session, std::uint32_t slot,
                                                     std::uint64_t incarnation,
                                                     std::span<const BlockRef> blocks, std::int64_t lease_us,
                                                     std::span<wire::ViewItem> views) {
  if (blocks.size() > store::kAtOnce) return std::nullopt;
  std::array<catalog::BlockName, store::kAtOnce> names;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockKey& key = blocks[i].key;
    if (key.length < BlockKey::kMinBytes || key.length > BlockKey::kMaxBytes) return std::nullopt;
    names[i] = {key, blocks[i].group, {}};
  }
  return AcquireAtOnce(session, slot, incarnation, std::span(names).first(blocks.size()), lease_us, views);
}

std::optional<catalog::LeaseId> Calls::AcquireAtOnce(Session& session, std::uint32_t slot,
                                                     std::uint64_t incarnation,
                                                     std::span<const catalog::BlockName> blocks,
                                                     std::int64_t lease_us, std::span<wire::ViewItem> views) {
  if (!CheckLease(static_cast<std::uint64_t>(lease_us)).ok() || !session.on(store::Switch::kReads) ||
      !UseNamespace(session, slot, incarnation).ok())
    return std::nullopt;
  std::array<store::ViewGrant, store::kAtOnce> grants;
  const auto lease = parts_.store.AcquireAtOnce(session.caller, slot, blocks, lease_us, grants);
  if (!lease) return std::nullopt;
  const auto missed = [](const store::ViewGrant& grant) { return grant.code == Code::kMiss; };
  // Some of these may have been found elsewhere lately.
  if (parts_.remote != nullptr && std::ranges::any_of(std::span(grants).first(blocks.size()), missed) &&
      parts_.store.Serves(slot) && parts_.remote->Found(slot, blocks)) {
    if (*lease != 0) ReleaseAtOnce(session.caller, *lease);
    return std::nullopt;
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) views[i] = ItemOf(grants[i]);
  return lease;
}

// One that has ended already is nobody's loss.
void Calls::ReleaseAtOnce(const catalog::Caller& caller, catalog::LeaseId lease) {
  static_cast<void>(parts_.store.ReleaseAtOnce(caller, lease));
}

std::optional<Answer> Calls::AcquireInStep(Session& session, const wire::Submission& call) {
  Arguments arguments(ArgumentBytes(session, call));
  const std::size_t count = arguments.left() / sizeof(wire::BlockItem);
  if (count > store::kAtOnce || arguments.left() != count * sizeof(wire::BlockItem) ||
      call.reply_bytes < count * sizeof(wire::ViewItem) || Instant{call.deadline_ns} <= executor().Now())
    return std::nullopt;
  std::array<catalog::BlockName, store::kAtOnce> names;
  for (std::size_t i = 0; i < count; ++i) {
    wire::BlockItem item;
    arguments.Take(std::as_writable_bytes(std::span(&item, 1)));
    if (!Take(item, names[i]).ok()) return std::nullopt;
  }
  std::array<wire::ViewItem, store::kAtOnce> views;
  const Instant ends = executor().Now().PlusUs(static_cast<std::int64_t>(call.a));
  const auto lease = AcquireAtOnce(session, call.namespace_slot, call.incarnation,
                                   std::span(names).first(count), static_cast<std::int64_t>(call.a), views);
  if (!lease) return std::nullopt;
  return Reply(session, call, std::as_bytes(std::span(views).first(count)),
               Answer{.a = *lease, .b = static_cast<std::uint64_t>(ends.ns)});
}

Result<Answer> Calls::Release(const Session& session, const wire::Submission& call) {
  return Done(parts_.store.Release(session.caller, call.a));
}

Task<Result<Answer>> Calls::Write(Session& session, const wire::Submission& call, CallStations& stations) {
  Arguments checksums{{}};
  std::vector<store::PartWrite> parts;
  // Kept until the write has let go of the bytes, though the session gives an area back meanwhile.
  std::vector<std::shared_ptr<memory::StagingArea>> read;
  Status status = co_await TakeWrites(session, read, call, checksums, parts);
  if (status.ok()) status = UseNamespace(session, call.namespace_slot, call.incarnation);
  if (!status.ok()) co_return Error(status);
  std::vector<store::PartOutcome> outcomes;
  if (session.on(store::Switch::kWrites)) {
    outcomes = co_await parts_.store.Write(session.caller, call.namespace_slot, std::move(parts),
                                           DeadlineOf(executor(), call), &stations);
  } else {
    const Status off(Code::kBusy, Text("writes of engine ", session.engine->name,
                                       " are off, `cistern admin writes on --engine` turns them on"));
    outcomes.assign(parts.size(), store::PartOutcome{.status = off});
  }
  std::string message;
  std::vector<std::byte> reply(outcomes.size() * sizeof(wire::WriteReplyItem));
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    wire::WriteReplyItem item{.code = static_cast<std::uint16_t>(outcomes[i].status.code()),
                              .state = static_cast<std::uint16_t>(outcomes[i].state)};
    std::memcpy(reply.data() + i * sizeof(item), &item, sizeof(item));
    if (!outcomes[i].status.ok() && message.empty()) message = outcomes[i].status.message();
  }
  message.resize(std::min<std::size_t>(message.size(), wire::kMaxReplyMessage));
  // What does not fit of the message is left out; the outcomes have to fit.
  if (call.reply_bytes > reply.size())
    message.resize(std::min(message.size(), call.reply_bytes - reply.size()));
  else
    message.clear();
  const auto* text = reinterpret_cast<const std::byte*>(message.data());
  reply.insert(reply.end(), text, text + message.size());
  co_return Reply(session, call, reply, Answer{.a = outcomes.size()});
}

Task<Result<Answer>> Calls::EndPuts(Session& session, const wire::Submission& call) {
  Arguments arguments(ArgumentBytes(session, call));
  std::vector<PutId> puts;
  Status status = co_await TakeList<wire::PutIdItem>(executor(), arguments, "put ids", puts);
  if (status.ok()) status = UseNamespace(session, call.namespace_slot, call.incarnation);
  if (!status.ok()) co_return Error(status);
  Task<Result<std::uint32_t>> ending = call.op == wire::Op::kPublish
                                           ? parts_.store.Publish(session.caller, call.namespace_slot, puts)
                                           : parts_.store.Abandon(session.caller, call.namespace_slot, puts);
  Result<std::uint32_t> count = co_await ending;
  if (!count) co_return Error(count.error());
  co_return Answer{.a = *count};
}

Task<Result<Answer>> Calls::Touch(Session& session, const wire::Submission& call) {
  Arguments arguments(ArgumentBytes(session, call));
  std::vector<BlockKey> keys;
  Status status = co_await TakeList<wire::KeyItem>(executor(), arguments, "keys", keys);
  if (status.ok()) status = UseNamespace(session, call.namespace_slot, call.incarnation);
  if (!status.ok()) co_return Error(status);
  std::uint32_t touched = co_await parts_.store.Touch(call.namespace_slot, keys, call.b);
  co_return Answer{.a = touched};
}

Task<Result<Answer>> Calls::Drop(Session& session, const wire::Submission& call, CallStations& stations) {
  Arguments arguments(ArgumentBytes(session, call));
  std::vector<BlockKey> keys;
  Status status = co_await TakeList<wire::KeyItem>(executor(), arguments, "keys", keys);
  if (status.ok()) status = UseNamespace(session, call.namespace_slot, call.incarnation);
  if (!status.ok()) co_return Error(status);
  const Result<Dropped> dropped = co_await Drop({.what = DropRequest::What::kKeys,
                                                 .slot = call.namespace_slot,
                                                 .keys = keys,
                                                 .deadline = DeadlineOf(executor(), call),
                                                 .stations = &stations});
  if (!dropped) co_return Error(dropped.error());
  co_return Answer{.a = dropped->blocks};
}

Task<Result<Dropped>> Calls::Drop(DropRequest request) {
  if (parts_.drop != nullptr) {
    const AtStation at(request.stations, Station::kPeer);
    co_return co_await parts_.drop(request);
  }
  if (request.what == DropRequest::What::kNamespace) {
    const AtStation at(request.stations, Station::kRemoval);
    const auto dropped = co_await parts_.store.DropNamespace(request.slot);
    if (!dropped) co_return std::unexpected(dropped.error());
    co_return Dropped{dropped->first, dropped->second};
  }
  Task<Result<std::uint64_t>> dropping =
      request.what == DropRequest::What::kKeys
          ? parts_.store.Drop(request.slot, request.keys, request.stations)
          : parts_.store.EndConversation(request.slot, request.conversation, request.stations);
  const Result<std::uint64_t> dropped = co_await dropping;
  if (!dropped) co_return std::unexpected(dropped.error());
  co_return Dropped{.blocks = *dropped};
}

Task<Result<Answer>> Calls::DropNamespace(Session& session, const wire::Submission& call,
                                          CallStations& stations) {
  Status status = UseNamespace(session, call.namespace_slot, call.incarnation);
  if (!status.ok()) co_return Error(status);
  const Result<Dropped> dropped = co_await Drop({.what = DropRequest::What::kNamespace,
                                                 .slot = call.namespace_slot,
                                                 .deadline = DeadlineOf(executor(), call),
                                                 .stations = &stations});
  if (!dropped) co_return Error(dropped.error());
  co_return Answer{.a = dropped->blocks, .b = dropped->incarnation};
}

Task<Result<Answer>> Calls::EndConversation(Session& session, const wire::Submission& call,
                                            CallStations& stations) {
  Status status = UseNamespace(session, call.namespace_slot, call.incarnation);
  if (status.ok() && call.b == 0) status = Status(Code::kInvalid, "conversation 0: that stands for none");
  if (!status.ok()) co_return Error(status);
  const Result<Dropped> dropped = co_await Drop({.what = DropRequest::What::kConversation,
                                                 .slot = call.namespace_slot,
                                                 .conversation = call.b,
                                                 .deadline = DeadlineOf(executor(), call),
                                                 .stations = &stations});
  if (!dropped) co_return Error(dropped.error());
  co_return Answer{.a = dropped->blocks};
}

Task<Result<Answer>> Calls::ReportBad(Session& session, const wire::Submission& call) {
  Arguments arguments(ArgumentBytes(session, call));
  std::vector<catalog::BlockName> blocks;
  Status status = co_await TakeList<wire::BlockItem>(executor(), arguments, "blocks", blocks);
  if (status.ok()) status = UseNamespace(session, call.namespace_slot, call.incarnation);
  if (status.ok()) status = co_await parts_.store.ReportBad(call.namespace_slot, blocks);
  co_return Done(status);
}

Task<Result<Answer>> Calls::ReportStatus(Session& session, const wire::Submission& call) {
  if (call.a == wire::kNodeStatus) {
    const std::string text = co_await parts_.status();
    executor().AddWork(text.size() / kTextPerTouch);
    co_return Reply(session, call, std::as_bytes(std::span(text)), Answer());
  }
  if (call.a == wire::kHolders || call.a == wire::kExplanation) co_return co_await Inquire(session, call);
  if (parts_.report == nullptr || call.a > wire::kCellList) {
    co_return Error(
        Code::kMismatch,
        Text("status: ", call.a,
             " is no text that this node has: where a later release knows it, bring the node up to "
             "that"));
  }
  const Result<ReportPage> page = co_await parts_.report(call.a, call.b, call.reply_bytes);
  if (!page) co_return Error(page.error());
  co_return Reply(session, call, std::as_bytes(std::span(page->text)), Answer{.b = page->next});
}

Task<Result<Answer>> Calls::Inquire(Session& session, const wire::Submission& call) {
  Arguments arguments(ArgumentBytes(session, call));
  std::vector<BlockKey> keys;
  Status status = co_await TakeList<wire::KeyItem>(executor(), arguments, "keys", keys);
  if (status.ok()) status = UseNamespace(session, call.namespace_slot, call.incarnation);
  if (status.ok() && parts_.inquire == nullptr)
    status = Status(Code::kMiss, "cell: this node is in none; start it with --cell (docs/cell.md)");
  if (status.ok() && keys.empty()) status = Status(Code::kInvalid, "a chain of no keys");
  if (!status.ok()) co_return Error(status);
  const Result<std::string> text = co_await parts_.inquire({.explain = call.a == wire::kExplanation,
                                                            .slot = call.namespace_slot,
                                                            .chain = keys,
                                                            .deadline = DeadlineOf(executor(), call)});
  if (!text) co_return Error(text.error());
  co_return Reply(session, call, std::as_bytes(std::span(*text)), Answer{.b = wire::kReportEnds});
}

Result<Answer> Calls::Introduce(Session& session, const wire::Submission& call) {
  Arguments arguments(ArgumentBytes(session, call));
  return Done(engines_.Introduce(session, arguments.TakeText(wire::kMaxTargetBytes)));
}

Task<Result<Answer>> Calls::DropNamed(Session& session, const wire::Submission& call,
                                      CallStations& stations) {
  Arguments arguments(ArgumentBytes(session, call));
  if (arguments.left() < 1 || arguments.left() > wire::kMaxTargetBytes) {
    co_return Error(Code::kInvalid, Text("drop: a namespace's name of ", arguments.left(),
                                         " bytes: names have 1 to ", wire::kMaxTargetBytes));
  }
  const Result<std::uint32_t> slot = co_await parts_.store.namespaces().Find(arguments.TakeText());
  if (!slot) co_return Error(slot.error());
  const Result<Dropped> dropped = co_await Drop({.what = DropRequest::What::kNamespace,
                                                 .slot = *slot,
                                                 .deadline = DeadlineOf(executor(), call),
                                                 .stations = &stations});
  if (!dropped) co_return Error(dropped.error());
  co_return Answer{.a = dropped->blocks};
}

}  // namespace cistern::server
