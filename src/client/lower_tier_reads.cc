// SPDX-License-Identifier: Apache-2.0
#include "client/lower_tier_reads.h"

#include <algorithm>
#include <cstring>

#include "base/spin.h"
#include "client/held_lease.h"
#include "client/parts.h"

namespace cistern::client {
namespace {

// Long enough for who looks late for an answer; it ends when its window was copied.
constexpr std::int64_t kWindowLeaseUs = 2'000'000;
// Windows under way of one read have at most an eighth of the memory.
constexpr std::uint64_t kMemoryShare = 16;

// The block, and from the first to the last segment that its ranges touch.
wire::BlockItem AskedOf(const GroupSpec& group, const BlockRead& read) {
  wire::BlockItem item{.key = ItemOf(read.key), .group = read.group};
  std::uint64_t first = UINT64_MAX, end = 0;
  for (const ReadRange& range : read.ranges) {
    if (range.bytes == 0) continue;
    std::uint64_t before = 0;  // segments, of the parts before
    for (std::size_t part = 0; part < range.part && part < group.part_bytes.size(); ++part) {
      before += record::SegmentsOfPart(group.part_bytes[part]);
    }
    first = std::min(first, before + range.offset / record::kSegmentBytes);
    end = std::max(end, before + (range.offset + range.bytes - 1) / record::kSegmentBytes + 1);
  }
  if (first < end && end <= UINT16_MAX) {
    item.first_segment = static_cast<std::uint16_t>(first);
    item.segments = static_cast<std::uint16_t>(end - first);
  }
  return item;
}

}  // namespace

Ticket<ReadResult> LowerTierReads::Begin(std::shared_ptr<Channel> channel, const Namespace& ns,
                                         std::span<const BlockRead> blocks, const ReadOptions& options,
                                         std::int64_t began_ns, ReadResult so_far) {
  auto reads =
      std::make_shared<LowerTierReads>(std::move(channel), ns, blocks, options, began_ns, std::move(so_far));
  if (Status status = reads->AskAhead(); !status.ok()) return Failed<ReadResult>(std::move(status));
  if (reads->asked_.empty()) return Ticket<ReadResult>(Result<ReadResult>(std::move(reads->result_)));
  reads->id_ = reads->asked_.front().call.id();
  return Ticket<ReadResult>(std::move(reads));
}

LowerTierReads::LowerTierReads(std::shared_ptr<Channel> channel, const Namespace& ns,
                               std::span<const BlockRead> blocks, const ReadOptions& options,
                               std::int64_t began_ns, ReadResult so_far)
    : channel_(std::move(channel)),
      ns_(ns),
      deadline_ns_(DeadlineNs(options.deadline_us, began_ns)),
      worth_ns_(DeadlineNs(options.worth_us, began_ns)),
      window_bytes_(std::min(kWindowBytes, channel_->reader().memory_bytes() / kMemoryShare)),
      touch_(options.touch),
      result_(std::move(so_far)) {
  std::size_t ranges = 0, pieces = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (result_.outcomes[i] != Code::kMiss) continue;
    missing_.push_back(i);
    ranges += blocks[i].ranges.size();
    for (const ReadRange& range : blocks[i].ranges) pieces += range.pieces.size();
  }
  // Reserved whole: what points into them stays right.
  reads_.reserve(missing_.size());
  ranges_.reserve(ranges);
  pieces_.reserve(pieces);
  for (const std::size_t at : missing_) {
    const std::size_t first = ranges_.size();
    for (ReadRange range : blocks[at].ranges) {
      const std::size_t first_piece = pieces_.size();
      pieces_.insert(pieces_.end(), range.pieces.begin(), range.pieces.end());
      range.pieces = std::span(pieces_).subspan(first_piece);
      ranges_.push_back(range);
    }
    BlockRead read = blocks[at];
    read.ranges = std::span(ranges_).subspan(first);
    reads_.push_back(read);
  }
}

// Of the group as it was attached, or at least what is asked for.
std::uint64_t LowerTierReads::BytesOf(const BlockRead& block) const {
  std::uint64_t bytes = 0;
  for (const std::uint64_t part : ns_.spec().groups[block.group].part_bytes) bytes += part;
  if (bytes > 0) return bytes;
  for (const ReadRange& range : block.ranges) bytes = std::max(bytes, range.offset + range.bytes);
  return bytes;
}

std::size_t LowerTierReads::WindowFrom(std::size_t first) const {
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  while (first + count < missing_.size() && count < kWindowBlocks) {
    bytes += BytesOf(reads_[first + count]);
    if (count > 0 && bytes > window_bytes_) break;
    ++count;
  }
  return count;
}

Status LowerTierReads::AskAhead() {
  while (next_ < missing_.size() && asked_.size() < kWindowsAhead) {
    Status status = Ask(WindowFrom(next_));
    if (status.ok()) continue;
    // With a window under way it is tried again after that one.
    if (!asked_.empty()) return Status();
    if (status.code() != Code::kBusy) return status;
    Fill(next_, missing_.size() - next_, Code::kBusy);
    next_ = missing_.size();
  }
  return Status();
}

Status LowerTierReads::Ask(std::size_t count) {
  Result<Call> call = channel_->Reserve(count * std::max(sizeof(wire::BlockItem), sizeof(wire::ViewItem)));
  if (!call) return std::move(call.error());
  ItemWriter items(call->room());
  for (const BlockRead& read : std::span(reads_).subspan(next_, count))
    items.Put(AskedOf(ns_.spec().groups[read.group], read));
  const std::int64_t now_ns = NowNs();
  Request request{.op = wire::Op::kAcquire,
                  .namespace_slot = ns_.slot(),
                  .incarnation = ns_.incarnation(),
                  .a = static_cast<std::uint64_t>(kWindowLeaseUs),
                  .b = static_cast<std::uint64_t>(kNoWorthLimit),
                  .deadline_ns = deadline_ns_,
                  .answered_late = true,
                  .polled = next_ == 0};
  if (worth_ns_ != INT64_MAX)
    request.b = static_cast<std::uint64_t>(std::max<std::int64_t>((worth_ns_ - now_ns) / 1000, 0));
  if (Status status = call->Submit(request, items.used()); !status.ok()) return status;
  asked_.push_back({std::move(*call), next_, count, now_ns + kWindowLeaseUs * 1000});
  next_ += count;
  return Status();
}

Result<ReadResult> LowerTierReads::Wait() {
  while (!asked_.empty()) {
    if (Status status = Take(); !status.ok()) return Error(std::move(status));
  }
  result_.leading_hits = LeadingHits(result_.outcomes);
  return std::move(result_);
}

Status LowerTierReads::Take() {
  Asked asked = std::move(asked_.front());
  asked_.pop_front();
  const Result<wire::Completion> completion = asked.call.Answer();
  // The next window's blocks are on their way while this one's are copied.
  const Status ahead = AskAhead();
  if (completion) {
    CopyOut(asked, *completion);
    return ahead;
  }
  switch (completion.error().code()) {
    case Code::kTooLate:
    case Code::kBusy:
    case Code::kMiss: Fill(asked.first, asked.count, completion.error().code()); return ahead;
    default: return completion.error();
  }
}

void LowerTierReads::CopyOut(const Asked& asked, const wire::Completion& completion) {
  std::optional<HeldLease> lease;
  if (completion.a != 0) lease.emplace(channel_, ns_.spec().strict, completion.a, asked.ends_ns);
  const std::span<const std::byte> bytes = asked.call.reply(completion);
  PrefetchLines(bytes.data(), bytes.size(), false);
  std::vector<wire::ViewItem> views(asked.count);
  if (bytes.size() != asked.count * sizeof(wire::ViewItem)) return;  // none has a view: they stay misses
  std::memcpy(views.data(), bytes.data(), bytes.size());
  BlockReads reads(*channel_, ns_, touch_);
  const auto found_of = [&](std::size_t i) -> std::optional<arena::Found> {
    if (i >= views.size() || views[i].code != static_cast<std::uint32_t>(Code::kOk)) return std::nullopt;
    const arena::Found found{
        .place = views[i].place,
        .body_bytes = static_cast<std::uint32_t>(views[i].bytes),
        .generation_low = static_cast<std::uint32_t>(views[i].generation) & arena::kGenerationLowMask};
    reads.Expect(found);
    return found;
  };
  std::optional<arena::Found> found = found_of(0);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const std::optional<arena::Found> next = found_of(i + 1);
    Code& outcome = result_.outcomes[missing_[asked.first + i]];
    if (found) {
      outcome = reads.Read(reads_[asked.first + i], found);
    } else if (const auto code = static_cast<Code>(views[i].code);
               code == Code::kTooLate || code == Code::kBusy) {
      outcome = code;
    }
    found = next;
  }
}

void LowerTierReads::Fill(std::size_t first, std::size_t count, Code code) {
  for (std::size_t i = first; i < first + count; ++i) result_.outcomes[missing_[i]] = code;
}

}  // namespace cistern::client
