// SPDX-License-Identifier: Apache-2.0
// What is written: caller's memory goes to staging with its checksums, what lies in staging goes as it is.
#include <algorithm>
#include <vector>

#include "base/fence.h"
#include "base/limits.h"
#include "client/client.h"
#include "client/conversation_number.h"
#include "client/parts.h"
#include "client/write_check.h"
#include "record/seal.h"
#include "record/verified_copy.h"

namespace cistern::client {

namespace {

// A sleeping core takes about as long to wake as this takes to copy. From when no more is left, the call is
// announced again and again, more often than the core falls asleep.
constexpr std::uint64_t kAnnouncedBytes = 1u << 20;
constexpr std::uint64_t kAnnounceEveryBytes = 256u << 10;  // whole segments

// Where one part's bytes are for the node.
struct Placed {
  std::uint64_t bytes = 0;
  std::uint32_t area = 0;
  std::uint64_t offset = 0;
  std::uint32_t first_checksum = 0;
  std::uint32_t checksums = 0;  // 0: the caller filled staging itself
};

class Batch final {
 public:
  Batch(Channel& channel, StagingRoom& room, std::span<const BlockWrite> blocks)
      : channel_(channel), room_(room), blocks_(blocks) {}

  // Brings every part's bytes to staging; waits for room no longer than until `deadline_ns`.
  Status Place(std::int64_t deadline_ns) {
    placed_.resize(blocks_.size());
    std::uint64_t to_copy = 0;
    std::uint32_t checksums = 0;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      placed_[i].bytes = PartBytes(blocks_[i]);
      std::shared_ptr<StagingPiece> piece;
      if (blocks_[i].pieces.empty()) piece = room_.PieceOf(blocks_[i].data);
      if (piece != nullptr) {
        from_callers_staging_ = true;
        placed_[i].area = piece->area();
        placed_[i].offset =
            piece->offset() + static_cast<std::uint64_t>(blocks_[i].data.data() - piece->bytes().data());
        pieces_.push_back(std::move(piece));
        continue;
      }
      placed_[i].offset = to_copy;  // within the piece, for now
      placed_[i].first_checksum = checksums;
      placed_[i].checksums = record::SegmentsOfPart(placed_[i].bytes);
      checksums += placed_[i].checksums;
      to_copy += Extents::Rounded(placed_[i].bytes);
    }
    checksums_.resize(checksums);
    return to_copy > 0 ? CopyAll(to_copy, deadline_ns) : Status();
  }

  bool from_callers_staging() const { return from_callers_staging_; }

  std::uint64_t args_bytes() const {
    return blocks_.size() * sizeof(wire::WriteItem) + checksums_.size() * sizeof(std::uint32_t);
  }

  void PutItems(ItemWriter& items, const WriteOptions& options, PutId base,
                std::atomic<std::uint64_t>& puts) const {
    const std::size_t checksums_at = blocks_.size() * sizeof(wire::WriteItem);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const BlockWrite& block = blocks_[i];
      wire::WriteItem item;
      item.key = ItemOf(block.key);
      if (block.parent) item.parent = ItemOf(*block.parent);
      item.group = block.group;
      item.part = block.part;
      item.staging_area = placed_[i].area;
      item.staging_offset = placed_[i].offset;
      item.bytes = placed_[i].bytes;
      PutId put = block.put_id;
      if (put == PutId{}) put = PutId{.high = base.high, .low = base.low + puts.fetch_add(1) + 1};
      item.put_high = put.high;
      item.put_low = put.low;
      item.ttl_s = options.ttl_s;
      item.held = options.held ? 1 : 0;
      if (placed_[i].checksums > 0)
        item.checksums_offset =
            static_cast<std::uint32_t>(checksums_at + placed_[i].first_checksum * sizeof(std::uint32_t));
      items.Put(item);
    }
    items.PutBytes(std::as_bytes(std::span(checksums_)));
  }

  // What the node reads from, to be kept until it has answered.
  std::shared_ptr<void> TakePieces() {
    if (pieces_.size() == 1) return std::move(pieces_[0]);
    return std::make_shared<std::vector<std::shared_ptr<StagingPiece>>>(std::move(pieces_));
  }

 private:
  Status CopyAll(std::uint64_t bytes, std::int64_t deadline_ns) {
    Result<std::shared_ptr<StagingPiece>> piece = room_.Take(bytes, deadline_ns);
    if (!piece) return std::move(piece.error());
    left_ = bytes;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (placed_[i].checksums == 0) continue;
      std::span<std::uint32_t> crcs =
          std::span(checksums_).subspan(placed_[i].first_checksum, placed_[i].checksums);
      std::byte* to = (*piece)->bytes().data() + placed_[i].offset;
      const std::span<const std::byte> whole[] = {blocks_[i].data};
      CopyPart(to, blocks_[i].pieces.empty() ? std::span(whole) : blocks_[i].pieces, crcs);
      left_ -= std::min(left_, Extents::Rounded(placed_[i].bytes));
      placed_[i].area = (*piece)->area();
      placed_[i].offset += (*piece)->offset();
    }
    StreamingStoreFence();  // before the core can see the call
    pieces_.push_back(std::move(*piece));
    return Status();
  }

  // Cached stores: the core reads the bytes next, and staging is reused, so both stay out of memory.
  void CopyPart(std::byte* to, std::span<const std::span<const std::byte>> pieces,
                std::span<std::uint32_t> crcs) {
    const record::CopyKernels& kernels = record::ChosenKernels();
    std::uint64_t at = 0;
    for (std::span<const std::byte> piece : pieces) {
      while (!piece.empty()) {
        const std::uint64_t in_segment = at % record::kSegmentBytes;
        if (in_segment == 0) AnnounceNearTheEnd(at);
        const std::size_t bytes = std::min<std::size_t>(record::kSegmentBytes - in_segment, piece.size());
        std::uint32_t& crc = crcs[at / record::kSegmentBytes];
        crc = kernels.copy_cached(to + at, piece.data(), bytes, in_segment == 0 ? 0 : crc,
                                  piece.size() - bytes);
        at += bytes;
        piece = piece.subspan(bytes);
      }
    }
  }

  // At the begin of each segment; `at` bytes of the part are copied.
  void AnnounceNearTheEnd(std::uint64_t at) {
    if (copied_ % kAnnounceEveryBytes == 0 && left_ - at <= kAnnouncedBytes) channel_.Announce();
    copied_ += record::kSegmentBytes;
  }

  Channel& channel_;
  std::uint64_t copied_ = 0;  // in whole segments
  std::uint64_t left_ = 0;    // of the parts that are not copied yet
  bool from_callers_staging_ = false;
  StagingRoom& room_;
  const std::span<const BlockWrite> blocks_;
  std::vector<Placed> placed_;
  std::vector<std::uint32_t> checksums_;
  std::vector<std::shared_ptr<StagingPiece>> pieces_;
};

Result<WriteResult> DecodeWrite(const Call& call, const wire::Completion& completion, std::size_t count) {
  std::span<const std::byte> bytes = call.reply(completion);
  if (bytes.size() < count * sizeof(wire::WriteReplyItem))
    return Error(Code::kMismatch, Text("a reply of ", bytes.size(), " bytes for ", count, " writes"));
  WriteResult result;
  result.outcomes.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto item = LoadAt<wire::WriteReplyItem>(bytes.data(), i * sizeof(wire::WriteReplyItem));
    result.outcomes[i] = {static_cast<Code>(item.code), static_cast<WriteOutcome::State>(item.state)};
  }
  std::span<const std::byte> text = bytes.subspan(count * sizeof(wire::WriteReplyItem));
  result.message.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return result;
}

}  // namespace

Ticket<WriteResult> Client::Write(const Namespace& ns, std::span<const BlockWrite> blocks,
                                  const WriteOptions& options) {
  Batch batch(*parts_->channel, *parts_->staging, blocks);
  Status status = parts_->channel->Check();
  if (status.ok()) status = CheckNamespace(ns);
  if (status.ok()) status = CheckDeadline(options.deadline_us);
  if (status.ok()) status = CheckCount("parts", blocks.size(), wire::kMaxWritesPerCall);
  if (status.ok()) status = CheckWrites(ns.spec(), blocks);
  const Result<std::uint64_t> conversation = ConversationNumber(options.conversation);
  if (status.ok() && !conversation) status = conversation.error();
  if (!status.ok()) return Failed<WriteResult>(std::move(status));
  if (blocks.empty()) return Ticket<WriteResult>(Result<WriteResult>(WriteResult()));
  Request request = RequestFor(wire::Op::kWrite, ns, options.deadline_us);
  request.a = blocks.size();
  request.b = *conversation;
  if (status = batch.Place(request.deadline_ns); !status.ok()) return Failed<WriteResult>(std::move(status));
  // What was copied is the library's, and kept until the node has answered, whether or not it is waited for.
  request.answered_late = !batch.from_callers_staging();
  if (batch.from_callers_staging()) request.grace_ns = kStagingGraceUs * 1000;
  const std::uint64_t reply_bytes = blocks.size() * sizeof(wire::WriteReplyItem) + wire::kMaxReplyMessage;
  Result<Call> call = parts_->channel->Reserve(std::max(batch.args_bytes(), reply_bytes));
  if (!call) return Failed<WriteResult>(std::move(call.error()));
  ItemWriter items(call->room());
  batch.PutItems(items, options, parts_->put_base, parts_->puts);
  auto decode = [count = blocks.size()](const Call& answered, const wire::Completion& completion) {
    return DecodeWrite(answered, completion, count);
  };
  return Ask<WriteResult>(std::move(*call), request, items.used(), std::move(decode), batch.TakePieces());
}

}  // namespace cistern::client
