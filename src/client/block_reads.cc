// SPDX-License-Identifier: Apache-2.0
#include "client/block_reads.h"

#include <algorithm>
#include <ctime>

namespace cistern::client {
namespace {

std::uint64_t SizeOf(std::span<const std::span<std::byte>> pieces) {
  std::uint64_t bytes = 0;
  for (const std::span<std::byte>& piece : pieces) bytes += piece.size();
  return bytes;
}

}  // namespace

arena::ReadCall BeginRead(const Channel& channel, const Namespace& ns) {
  arena::ReadCall call = channel.reader().Begin(ns.slot(), static_cast<std::uint64_t>(time(nullptr)));
  if (call.incarnation != ns.incarnation()) call.incarnation = 0;
  if (ns.spec().strict && !channel.ServesStrict()) call.incarnation = 0;
  if (channel.reads_off()) call.incarnation = 0;
  return call;
}

bool Ranges::Set(std::span<const ReadRange> ranges) {
  if (ranges.size() > few_.size()) {
    many_.resize(ranges.size());
    many_targets_.resize(ranges.size());
  }
  std::span<arena::RangeCopy> copies = ranges.size() > few_.size() ? std::span(many_) : std::span(few_);
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

std::optional<arena::Found> BlockReads::Find(const BlockRead& block) const {
  std::optional<arena::Found> found = channel_.reader().Find(call_, block.group, block.key);
  if (found) Expect(*found);
  return found;
}

Code BlockReads::Read(const BlockRead& block, const std::optional<arena::Found>& found) {
  const std::vector<GroupSpec>& groups = ns_.spec().groups;
  if (block.group >= groups.size()) return Code::kInvalid;
  if (!ranges_.Set(block.ranges)) return Code::kInvalid;
  if (!found) return Code::kMiss;
  const std::size_t parts = groups[block.group].part_bytes.size();
  arena::AskedBlock asked{block.key, block.group, static_cast<std::uint16_t>(parts > 0 ? parts : 1)};
  switch (channel_.reader().Read(call_, asked, &*found, ranges_.get(), record_)) {
    case arena::ReadOutcome::kHit:
      if (touch_) channel_.Touch(record_.place, record_.generation);
      ++hits_;
      for (const ReadRange& range : block.ranges) hit_bytes_ += range.bytes;
      return Code::kOk;
    case arena::ReadOutcome::kMiss: return Code::kMiss;
    case arena::ReadOutcome::kOutOfRange: return Code::kInvalid;
    case arena::ReadOutcome::kBad:
      channel_.ReportBad(ns_.slot(), ns_.incarnation(), block.key, block.group);
      return Code::kMiss;
  }
  return Code::kMiss;
}

ReadResult BlockReads::All(std::span<const BlockRead> blocks) {
  ReadResult result;
  result.outcomes.resize(blocks.size());
  // A search of the index waits for a line of memory, and the copy behind it; so the line of the search after
  // the next one is asked for.
  const auto expect = [&](std::size_t i) {
    if (i >= blocks.size()) return;
    channel_.reader().index().Prefetch(
        arena::FingerprintOf(call_.incarnation, blocks[i].group, blocks[i].key));
  };
  std::optional<arena::Found> found;
  expect(1);
  if (!blocks.empty()) found = Find(blocks[0]);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    expect(i + 2);
    std::optional<arena::Found> next;
    if (i + 1 < blocks.size()) next = Find(blocks[i + 1]);
    result.outcomes[i] = Read(blocks[i], found);
    found = next;
  }
  result.leading_hits = LeadingHits(result.outcomes);
  return result;
}

std::uint32_t LeadingHits(std::span<const Code> outcomes) {
  const auto end =
      std::find_if(outcomes.begin(), outcomes.end(), [](Code code) { return code != Code::kOk; });
  return static_cast<std::uint32_t>(end - outcomes.begin());
}

}  // namespace cistern::client
