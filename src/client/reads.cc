// SPDX-License-Identifier: Apache-2.0
// What is read: from shared memory as far as it reaches, and the node for the rest.
#include <algorithm>
#include <array>
#include <ctime>
#include <memory>
#include <vector>

#include "arena/match.h"
#include "base/spin.h"
#include "client/client.h"
#include "client/held_lease.h"
#include "client/parts.h"

namespace cistern {

using client::Ask;
using client::Call;
using client::Channel;
using client::Failed;
using client::HeldLease;
using client::ItemWriter;
using client::Request;
using client::RequestFor;

namespace {

Status CheckRead(const Namespace& ns, std::int64_t deadline_us, std::int64_t worth_us) {
  Status status = client::CheckNamespace(ns);
  if (status.ok()) status = client::CheckDeadline(deadline_us);
  if (status.ok() && worth_us < 0)
    status = Status(Code::kInvalid, Text("worth_us is ", worth_us, ": that is in the past, give 0 or more"));
  return status;
}

Status CheckLease(std::string_view what, std::int64_t lease_us) {
  if (lease_us >= 1 && lease_us <= kMaxLeaseUs) return Status();
  return Status(Code::kInvalid, Text(what, " is ", lease_us, ", a lease lasts 1 to ", kMaxLeaseUs, " us"));
}

// What of the namespace can be read now: nothing under another incarnation than the one that was attached.
ReadCall BeginRead(const Channel& channel, const Namespace& ns) {
  ReadCall call = channel.reader().Begin(ns.slot(), static_cast<std::uint64_t>(time(nullptr)));
  if (call.incarnation != ns.incarnation()) call.incarnation = 0;
  return call;
}

MatchResult MatchOf(std::uint32_t blocks) {
  MatchResult result;
  result.blocks = blocks;
  if (blocks > 0) result.runs.push_back(MatchRun{.blocks = blocks});
  return result;
}

std::uint64_t SizeOf(std::span<const std::span<std::byte>> pieces) {
  std::uint64_t bytes = 0;
  for (const std::span<std::byte>& piece : pieces) bytes += piece.size();
  return bytes;
}

// Ranges of one read as the reader takes them, without an allocation for the usual few.
class Ranges final {
 public:
  // False: a range that no part can have.
  bool Set(std::span<const ReadRange> ranges) {
    if (ranges.size() > few_.size()) {
      many_.resize(ranges.size());
      many_targets_.resize(ranges.size());
    }
    std::span<RangeCopy> copies = ranges.size() > few_.size() ? std::span(many_) : std::span(few_);
    std::span<std::span<std::byte>> targets =
        ranges.size() > few_.size() ? std::span(many_targets_) : std::span(few_targets_);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const ReadRange& range = ranges[i];
      if (range.bytes > kMaxBodyBytes || range.offset > kMaxBodyBytes) return false;
      copies[i].range = {.part = range.part, .offset = range.offset, .bytes = range.bytes};
      if (range.pieces.empty()) {
        targets[i] = std::span(static_cast<std::byte*>(range.to), range.bytes);
        copies[i].pieces = targets.subspan(i, 1);
      } else {
        if (SizeOf(range.pieces) != range.bytes) return false;
        copies[i].pieces = range.pieces;
      }
    }
    set_ = copies.first(ranges.size());
    return true;
  }
  std::span<const RangeCopy> get() const { return set_; }

 private:
  std::array<RangeCopy, 8> few_;
  std::array<std::span<std::byte>, 8> few_targets_;
  std::vector<RangeCopy> many_;
  std::vector<std::span<std::byte>> many_targets_;
  std::span<const RangeCopy> set_;
};

class BlockReads final {
 public:
  BlockReads(Channel& channel, const Namespace& ns, std::span<const BlockRead> blocks, bool touch)
      : channel_(channel), ns_(ns), blocks_(blocks), touch_(touch), call_(BeginRead(channel, ns)) {}

  ReadResult All() {
    ReadResult result;
    result.outcomes.resize(blocks_.size());
    bool leading = true;
    std::optional<Found> found = Find(0);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      // The next one's head and seal are on their way while this one is copied.
      std::optional<Found> next = Find(i + 1);
      if (next) channel_.reader().Prefetch(*next);
      result.outcomes[i] = One(blocks_[i], found);
      leading = leading && result.outcomes[i] == Code::kOk;
      if (leading) result.leading_hits++;
      found = next;
    }
    return result;
  }

 private:
  std::optional<Found> Find(std::size_t at) const {
    if (at >= blocks_.size()) return std::nullopt;
    return channel_.reader().Find(call_, blocks_[at].group, blocks_[at].key);
  }

  Code One(const BlockRead& block, const std::optional<Found>& found) {
    const std::vector<GroupSpec>& groups = ns_.spec().groups;
    if (block.group >= groups.size()) return Code::kInvalid;
    if (!ranges_.Set(block.ranges)) return Code::kInvalid;
    if (!found) return Code::kMiss;
    const std::size_t parts = groups[block.group].part_bytes.size();
    AskedBlock asked{block.key, block.group, static_cast<std::uint16_t>(parts > 0 ? parts : 1)};
    switch (channel_.reader().Read(call_, asked, &*found, ranges_.get(), record_)) {
      case ReadOutcome::kHit:
        if (touch_) channel_.Touch(record_.place, record_.generation);
        return Code::kOk;
      case ReadOutcome::kMiss: return Code::kMiss;
      case ReadOutcome::kOutOfRange: return Code::kInvalid;
      case ReadOutcome::kBad:
        channel_.ReportBad(ns_.slot(), ns_.incarnation(), block.key, block.group);
        return Code::kMiss;
    }
    return Code::kMiss;
  }

  Channel& channel_;
  const Namespace& ns_;
  const std::span<const BlockRead> blocks_;
  const bool touch_;
  const ReadCall call_;
  Ranges ranges_;
  OpenRecord record_;
};

Ticket<MatchResult> AskToHold(const std::shared_ptr<Channel>& channel, const Namespace& ns,
                              std::span<const BlockKey> chain, std::uint32_t matched,
                              const MatchOptions& options) {
  if (Status status = client::CheckCount("keys to hold", chain.size(), door::kMaxKeysPerCall); !status.ok())
    return Failed<MatchResult>(std::move(status));
  Result<Call> call = channel->Reserve(chain.size() * sizeof(door::KeyItem));
  if (!call) return Failed<MatchResult>(std::move(call.error()));
  ItemWriter items(call->room());
  for (const BlockKey& key : chain) items.Put(client::ItemOf(key));
  Request request = RequestFor(door::Op::kHold, ns, options.deadline_us);
  request.a = static_cast<std::uint64_t>(options.hold_us);
  request.b = matched;
  const std::int64_t ends_ns = client::DeadlineNs(options.hold_us);
  auto decode = [ends_ns](const Call& answered, const door::Completion& completion) -> Result<MatchResult> {
    MatchResult result = MatchOf(completion.a != 0 ? static_cast<std::uint32_t>(completion.b) : 0);
    if (completion.a != 0)
      result.hold = Lease(std::make_shared<HeldLease>(answered.channel(), completion.a, ends_ns));
    return result;
  };
  return Ask<MatchResult>(std::move(*call), request, items.used(), std::move(decode));
}

Ticket<MatchResult> AskForRest(const std::shared_ptr<Channel>& channel, const Namespace& ns,
                               std::span<const BlockKey> rest, std::uint32_t matched,
                               const MatchOptions& options) {
  // A hint may be cut short: a longer rest is matched as far as one call carries it.
  rest = rest.first(std::min<std::size_t>(rest.size(), door::kMaxKeysPerCall));
  Result<Call> call = channel->Reserve(rest.size() * sizeof(door::KeyItem));
  if (!call) return Failed<MatchResult>(std::move(call.error()));
  ItemWriter items(call->room());
  for (const BlockKey& key : rest) items.Put(client::ItemOf(key));
  Request request = RequestFor(door::Op::kMatchRest, ns, options.deadline_us);
  request.a = matched;
  auto decode = [matched](const Call& answered, const door::Completion& completion) -> Result<MatchResult> {
    door::MatchReply head;
    std::span<const std::byte> bytes = answered.reply(completion);
    if (bytes.size() < sizeof(head))
      return Error(Code::kMismatch, Text("a match reply of ", bytes.size(), " bytes"));
    std::memcpy(&head, bytes.data(), sizeof(head));
    return MatchOf(matched + head.blocks);
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
  if (!status.ok()) return Failed<MatchResult>(std::move(status));
  const std::vector<GroupSpec>& groups = ns.spec().groups;
  std::array<MatchGroup, kMaxMatchGroups> asked;
  const std::size_t count = std::min(groups.size(), asked.size());
  for (std::size_t i = 0; i < count; ++i) {
    asked[i].group = static_cast<std::uint16_t>(i);
    if (groups[i].reach == Reach::kWindow)
      asked[i].reach_blocks = WindowBlocks(groups[i].window_tokens, ns.spec().block_tokens);
  }
  const std::uint32_t matched =
      MatchPrefix(channel.reader(), BeginRead(channel, ns), chain, std::span(asked).first(count));
  if (options.hold_us > 0 && !chain.empty()) return AskToHold(parts_->channel, ns, chain, matched, options);
  if (matched == chain.size()) return Ticket<MatchResult>(Result<MatchResult>(MatchOf(matched)));
  return AskForRest(parts_->channel, ns, chain.subspan(matched), matched, options);
}

// Memory is the only tier: what the index does not have is a miss, so every read ends here and now.
Ticket<ReadResult> Client::Read(const Namespace& ns, std::span<const BlockRead> blocks,
                                const ReadOptions& options) {
  Status status = parts_->channel->Check();
  if (status.ok()) status = CheckRead(ns, options.deadline_us, options.worth_us);
  if (!status.ok()) return Failed<ReadResult>(std::move(status));
  return Ticket<ReadResult>(
      Result<ReadResult>(BlockReads(*parts_->channel, ns, blocks, options.touch).All()));
}

Result<std::uint64_t> Client::FirstPartBytes(const Namespace& ns, const BlockKey& key, std::uint16_t group) {
  Status status = parts_->channel->Check();
  if (status.ok()) status = client::CheckNamespace(ns);
  if (!status.ok()) return Error(std::move(status));
  const std::vector<GroupSpec>& groups = ns.spec().groups;
  if (group >= groups.size())
    return Error(Code::kInvalid, Text("block ", key.ToHex(), ": group ", group, " of ", groups.size()));
  // The index is a hint; the length that counts is the seal's.
  const Channel& channel = *parts_->channel;
  const std::size_t parts = std::max<std::size_t>(groups[group].part_bytes.size(), 1);
  const AskedBlock asked{key, group, static_cast<std::uint16_t>(parts)};
  auto record = std::make_unique<OpenRecord>();
  const ReadOutcome outcome = channel.reader().Open(BeginRead(channel, ns), asked, nullptr, *record);
  if (outcome == ReadOutcome::kHit) return record->seal.part_bytes(0);
  if (outcome == ReadOutcome::kBad) parts_->channel->ReportBad(ns.slot(), ns.incarnation(), key, group);
  return Error(Code::kMiss, Text("block ", key.ToHex(), " of group ", group, " is not here"));
}

Ticket<Lease> Client::Acquire(const Namespace& ns, std::span<const BlockRef> blocks,
                              const AcquireOptions& options) {
  Status status = CheckRead(ns, options.deadline_us, options.worth_us);
  if (status.ok()) status = CheckLease("lease_us", options.lease_us);
  if (status.ok()) status = client::CheckCount("blocks", blocks.size(), door::kMaxKeysPerCall);
  if (!status.ok()) return Failed<Lease>(std::move(status));
  Result<Call> call = parts_->channel->Reserve(blocks.size() * sizeof(door::BlockItem));
  if (!call) return Failed<Lease>(std::move(call.error()));
  ItemWriter items(call->room());
  for (const BlockRef& block : blocks)
    items.Put(door::BlockItem{.key = client::ItemOf(block.key), .group = block.group});
  Request request = RequestFor(door::Op::kAcquire, ns, options.deadline_us);
  request.a = static_cast<std::uint64_t>(options.lease_us);
  request.b = static_cast<std::uint64_t>(options.worth_us);
  const std::int64_t ends_ns = client::DeadlineNs(options.lease_us);
  auto decode = [ends_ns, count = blocks.size()](const Call& answered,
                                                 const door::Completion& completion) -> Result<Lease> {
    if (completion.a == 0) return Error(Code::kMiss, Text("none of ", count, " blocks is here"));
    std::span<const std::byte> bytes = answered.reply(completion);
    PrefetchLines(bytes.data(), bytes.size(), false);
    auto lease = std::make_shared<HeldLease>(answered.channel(), completion.a, ends_ns);
    if (bytes.size() != count * sizeof(door::ViewItem))
      return Error(Code::kMismatch, Text("a reply of ", bytes.size(), " bytes for ", count, " views"));
    lease->Reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      door::ViewItem item;
      std::memcpy(&item, bytes.data() + i * sizeof(item), sizeof(item));
      lease->Add(item);
    }
    return Lease(std::move(lease));
  };
  return Ask<Lease>(std::move(*call), request, items.used(), std::move(decode));
}

}  // namespace cistern
