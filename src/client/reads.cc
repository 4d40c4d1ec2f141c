// SPDX-License-Identifier: Apache-2.0
// What is read: from shared memory as far as it reaches, and the node for the rest.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "arena/match.h"
#include "base/policy.h"
#include "base/spin.h"
#include "client/block_reads.h"
#include "client/client.h"
#include "client/held_lease.h"
#include "client/lower_tier_reads.h"
#include "client/parts.h"
#include "wire/match_wire.h"

namespace cistern::client {

namespace {

Status CheckRead(const Namespace& ns, std::int64_t deadline_us, std::int64_t worth_us) {
  Status status = CheckNamespace(ns);
  if (status.ok()) status = CheckDeadline(deadline_us);
  if (status.ok() && worth_us < 0)
    status = Status(Code::kInvalid, Text("worth_us is ", worth_us, ": that is in the past, give 0 or more"));
  return status;
}

Status CheckLease(std::string_view what, std::int64_t lease_us) {
  if (lease_us >= 1 && lease_us <= kMaxLeaseUs) return Status();
  return Status(Code::kInvalid, Text(what, " is ", lease_us, ", a lease lasts 1 to ", kMaxLeaseUs, " us"));
}

// `matched` blocks of the index, then what the node says of the rest.
MatchResult MatchOf(std::uint32_t matched, std::span<const MatchRun> rest = {}) {
  MatchResult result;
  wire::AddRun(result.runs, {.blocks = matched});
  for (const MatchRun& run : rest) wire::AddRun(result.runs, run);
  for (const MatchRun& run : result.runs) result.blocks += run.blocks;
  return result;
}

// Of a hold, whose blocks are all the node's to name: without runs, as of a node that knows no tiers, they
// are in memory.
Result<MatchResult> HeldOf(const Call& answered, const wire::Completion& completion) {
  if (completion.a == 0) return MatchOf(0);
  const auto blocks = static_cast<std::uint32_t>(completion.b);
  const std::span<const std::byte> reply = answered.reply(completion);
  if (reply.empty()) return MatchOf(blocks);
  Result<std::vector<MatchRun>> runs = wire::ReadMatchReply(reply);
  if (!runs) return Error(std::move(runs.error()));
  MatchResult result = MatchOf(0, *runs);
  if (result.blocks != blocks)
    return Error(Code::kMismatch, Text("a hold of ", blocks, " blocks with runs of ", result.blocks));
  return result;
}

// Of an acquire that leased nothing.
Status WhyNone(std::span<const std::byte> views, std::size_t count) {
  std::uint64_t late = 0, busy = 0, first_us = UINT64_MAX;
  for (std::size_t at = 0; at + sizeof(wire::ViewItem) <= views.size(); at += sizeof(wire::ViewItem)) {
    const auto item = LoadAt<wire::ViewItem>(views.data(), at);
    busy += item.code == static_cast<std::uint32_t>(Code::kBusy);
    if (item.code != static_cast<std::uint32_t>(Code::kTooLate)) continue;
    ++late;
    first_us = std::min(first_us, item.bytes);
  }
  if (late == 0 && busy > 0)
    return Status(
        Code::kBusy,
        Text("none of ", count, " blocks is in memory, ", busy,
             " lie below it and there is no room to fetch them into: all that is there is leased or "
             "in use; release leases or try again later"));
  if (late == 0) return Status(Code::kMiss, Text("none of ", count, " blocks is here"));
  return Status(Code::kTooLate,
                Text("none of ", count, " blocks is in memory, ", late,
                     " lie below it and would not be ready in time: the first in ", first_us, " us"));
}

// What an acquire gives, from the node's answer: the lease and an item a block.
Result<Lease> Granted(const std::shared_ptr<Channel>& channel, bool strict, std::uint64_t lease,
                      std::int64_t ends_ns, std::span<const std::byte> items, std::size_t count) {
  if (lease == 0) return Error(WhyNone(items, count));
  auto held = std::make_shared<HeldLease>(channel, strict, lease, ends_ns);
  if (items.size() != count * sizeof(wire::ViewItem))
    return Error(Code::kMismatch, Text("a reply of ", items.size(), " bytes for ", count, " views"));
  held->Reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    held->Add(LoadAt<wire::ViewItem>(items.data(), i * sizeof(wire::ViewItem)));
  }
  return Lease(std::move(held));
}

// Where the node is in this process and all of the blocks are in memory: without its ring, on this thread.
std::optional<Result<Lease>> AcquireNear(const std::shared_ptr<Channel>& channel, const Namespace& ns,
                                         std::span<const BlockRef> blocks, std::int64_t lease_us,
                                         std::int64_t ends_ns) {
  const NearNode& near = channel->near();
  if (!near || blocks.size() > NearNode::kMostBlocks || !channel->Check().ok()) return std::nullopt;
  std::array<wire::ViewItem, NearNode::kMostBlocks> items;
  const std::optional<std::uint64_t> lease = near.acquire(channel->connection().welcome.session, ns.slot(),
                                                          ns.incarnation(), blocks, lease_us, items);
  if (!lease) return std::nullopt;
  const std::span given = std::span(items).first(blocks.size());
  return Granted(channel, ns.spec().strict, *lease, ends_ns, std::as_bytes(given), given.size());
}

// What this node can be told of the prompt.
PromptHints HintsFor(const Channel& channel, PromptHints hints) {
  if (channel.takes_hints()) return hints;
  if (hints.outlook == Outlook::kTool) hints.outlook = Outlook::kExtended;
  return {.outlook = hints.outlook};
}

std::uint16_t PromptFlags(const PromptHints& hints, bool partial) {
  const unsigned outlook = static_cast<unsigned>(hints.outlook) << wire::kOutlookShift;
  const unsigned importance = static_cast<unsigned>(hints.importance) << wire::kImportanceShift;
  return static_cast<std::uint16_t>(outlook | importance | (partial ? wire::kPartial : 0));
}

Ticket<MatchResult> AskToHold(const std::shared_ptr<Channel>& channel, const Namespace& ns,
                              std::span<const BlockKey> chain, std::uint32_t matched,
                              const MatchOptions& options) {
  if (Status status = CheckCount("keys to hold", chain.size(), wire::kMaxKeysPerCall); !status.ok())
    return Failed<MatchResult>(std::move(status));
  Result<Call> call = channel->Reserve(chain.size() * sizeof(wire::KeyItem));
  if (!call) return Failed<MatchResult>(std::move(call.error()));
  ItemWriter items(call->room());
  for (const BlockKey& key : chain) items.Put(ItemOf(key));
  Request request = RequestFor(wire::Op::kHold, ns, options.deadline_us);
  const PromptHints hints = HintsFor(*channel, options.hints);
  request.flags = PromptFlags(hints, options.partial);
  request.a = static_cast<std::uint64_t>(options.hold_us);
  request.b = std::uint64_t{hints.next_turn_ms} << wire::kNextTurnShift | matched;
  const std::int64_t ends_ns = DeadlineNs(options.hold_us);
  auto decode = [ends_ns, strict = ns.spec().strict](
                    const Call& answered, const wire::Completion& completion) -> Result<MatchResult> {
    std::shared_ptr<HeldLease> lease;
    if (completion.a != 0)
      lease = std::make_shared<HeldLease>(answered.channel(), strict, completion.a, ends_ns);
    Result<MatchResult> result = HeldOf(answered, completion);
    if (result && lease != nullptr) result->hold = Lease(std::move(lease));
    return result;
  };
  return Ask<MatchResult>(std::move(*call), request, items.used(), std::move(decode));
}

Ticket<MatchResult> AskForRest(const std::shared_ptr<Channel>& channel, const Namespace& ns,
                               std::span<const BlockKey> chain, std::uint32_t matched,
                               const MatchOptions& options) {
  const bool whole = channel->takes_chain() && chain.size() <= wire::kMaxKeysPerCall;
  const bool with_last = !whole && matched > 0 && channel->takes_last();
  std::span<const BlockKey> rest = chain.subspan(whole ? 0 : with_last ? matched - 1 : matched);
  // A hint may be cut short: a longer rest is matched as far as one call carries it.
  rest = rest.first(std::min<std::size_t>(rest.size(), wire::kMaxKeysPerCall));
  Result<Call> call = channel->Reserve(rest.size() * sizeof(wire::KeyItem));
  if (!call) return Failed<MatchResult>(std::move(call.error()));
  ItemWriter items(call->room());
  for (const BlockKey& key : rest) items.Put(ItemOf(key));
  Request request = RequestFor(wire::Op::kMatchRest, ns, options.deadline_us);
  const PromptHints hints = HintsFor(*channel, options.hints);
  request.flags =
      static_cast<std::uint16_t>(PromptFlags(hints, options.partial) | (with_last ? wire::kWithLast : 0) |
                                 (whole ? wire::kWholeChain : 0));
  request.a = matched;
  request.b = hints.next_turn_ms;
  auto decode = [matched](const Call& answered, const wire::Completion& completion) -> Result<MatchResult> {
    Result<std::vector<MatchRun>> runs = wire::ReadMatchReply(answered.reply(completion));
    if (!runs) return Error(std::move(runs.error()));
    return MatchOf(matched, *runs);
  };
  return Ask<MatchResult>(std::move(*call), request, items.used(), std::move(decode));
}

}  // namespace

Ticket<MatchResult> Client::Match(const Namespace& ns, std::span<const BlockKey> chain,
                                  const MatchOptions& options) {
  Channel& channel = *parts_->channel;
  Status status = channel.Check();
  if (status.ok()) status = CheckRead(ns, options.deadline_us, 0);
  if (status.ok() && options.hold_us != 0) status = CheckLease("hold_us", options.hold_us);
  if (status.ok()) status = CheckPolicy(options.hints);
  if (!status.ok()) return Failed<MatchResult>(std::move(status));
  const std::vector<GroupSpec>& groups = ns.spec().groups;
  std::array<arena::MatchGroup, kMaxGroups> asked;
  const std::size_t count = std::min(groups.size(), asked.size());
  for (std::size_t i = 0; i < count; ++i) {
    asked[i].group = static_cast<std::uint16_t>(i);
    if (groups[i].reach == Reach::kWindow)
      asked[i].reach_blocks = arena::WindowBlocks(groups[i].window_tokens, ns.spec().block_tokens);
  }
  const std::uint32_t matched =
      arena::MatchPrefix(channel.reader(), BeginRead(channel, ns), chain, std::span(asked).first(count));
  channel.NoteMatch(chain.size(), matched);
  if (options.hold_us > 0 && !chain.empty()) return AskToHold(parts_->channel, ns, chain, matched, options);
  if (matched == chain.size()) return Ticket<MatchResult>(Result<MatchResult>(MatchOf(matched)));
  return AskForRest(parts_->channel, ns, chain, matched, options);
}

// What the index does not have is a miss where memory is the only tier, so every read ends here and now
// there.
Ticket<ReadResult> Client::Read(const Namespace& ns, std::span<const BlockRead> blocks,
                                const ReadOptions& options) {
  Status status = parts_->channel->Check();
  if (status.ok()) status = CheckRead(ns, options.deadline_us, options.worth_us);
  if (!status.ok()) return Failed<ReadResult>(std::move(status));
  const bool has_lower = parts_->channel->has_lower();
  // Nothing is copied before the one block of a read is asked for.
  std::int64_t began_ns = has_lower && blocks.size() > 1 ? NowNs() : 0;
  ReadResult result = BlockReads(*parts_->channel, ns, options.touch).All(blocks);
  if (result.leading_hits == blocks.size() || !has_lower ||
      std::ranges::find(result.outcomes, Code::kMiss) == result.outcomes.end())
    return Ticket<ReadResult>(Result<ReadResult>(std::move(result)));
  if (began_ns == 0) began_ns = NowNs();
  return LowerTierReads::Begin(parts_->channel, ns, blocks, options, began_ns, std::move(result));
}

bool Client::has_lower() const { return parts_->channel->has_lower(); }

Result<std::uint64_t> Client::FirstPartBytes(const Namespace& ns, const BlockKey& key, std::uint16_t group) {
  Status status = parts_->channel->Check();
  if (status.ok()) status = CheckNamespace(ns);
  if (!status.ok()) return Error(std::move(status));
  const std::vector<GroupSpec>& groups = ns.spec().groups;
  if (group >= groups.size())
    return Error(Code::kInvalid, Text("block ", key.ToHex(), ": group ", group, " of ", groups.size()));
  // The index is a hint; the length that counts is the seal's.
  const Channel& channel = *parts_->channel;
  const std::size_t parts = std::max<std::size_t>(groups[group].part_bytes.size(), 1);
  const arena::AskedBlock asked{key, group, static_cast<std::uint16_t>(parts)};
  auto record = std::make_unique<arena::OpenRecord>();
  const arena::ReadOutcome outcome = channel.reader().Open(BeginRead(channel, ns), asked, nullptr, *record);
  if (outcome == arena::ReadOutcome::kHit) return record->seal.part_bytes(0);
  if (outcome == arena::ReadOutcome::kBad)
    parts_->channel->ReportBad(ns.slot(), ns.incarnation(), key, group);
  return Error(Code::kMiss, Text("block ", key.ToHex(), " of group ", group, " is not here"));
}

Ticket<Lease> Client::Acquire(const Namespace& ns, std::span<const BlockRef> blocks,
                              const AcquireOptions& options) {
  Status status = CheckRead(ns, options.deadline_us, options.worth_us);
  if (status.ok()) status = CheckLease("lease_us", options.lease_us);
  if (status.ok()) status = CheckCount("blocks", blocks.size(), wire::kMaxKeysPerCall);
  if (!status.ok()) return Failed<Lease>(std::move(status));
  const std::int64_t ends_ns = DeadlineNs(options.lease_us);
  if (auto near = AcquireNear(parts_->channel, ns, blocks, options.lease_us, ends_ns))
    return Ticket<Lease>(std::move(*near));
  parts_->channel->AnnounceToSleeper();
  Result<Call> call = parts_->channel->Reserve(blocks.size() * sizeof(wire::BlockItem));
  if (!call) return Failed<Lease>(std::move(call.error()));
  ItemWriter items(call->room());
  for (const BlockRef& block : blocks)
    items.Put(wire::BlockItem{.key = ItemOf(block.key), .group = block.group});
  Request request = RequestFor(wire::Op::kAcquire, ns, options.deadline_us);
  request.a = static_cast<std::uint64_t>(options.lease_us);
  request.b = static_cast<std::uint64_t>(options.worth_us);
  request.answered_late = parts_->channel->has_lower();
  auto decode = [ends_ns, strict = ns.spec().strict, count = blocks.size()](
                    const Call& answered, const wire::Completion& completion) -> Result<Lease> {
    const std::span<const std::byte> views = answered.reply(completion);
    PrefetchLines(views.data(), views.size(), false);
    const std::int64_t told_ns = static_cast<std::int64_t>(completion.b);
    return Granted(answered.channel(), strict, completion.a, told_ns > 0 ? told_ns : ends_ns, views, count);
  };
  return Ask<Lease>(std::move(*call), request, items.used(), std::move(decode));
}

}  // namespace cistern::client
