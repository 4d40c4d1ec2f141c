// SPDX-License-Identifier: Apache-2.0
#include "mesh/landing.h"

#include <algorithm>

#include "base/assert.h"
#include "base/fence.h"
#include "base/format.h"
#include "record/seal.h"
#include "record/verified_copy.h"

namespace cistern::mesh {

Status Landing::Begin(const BlockRequest& asked, const BlockKey& parent, net::ConstPiece said,
                      std::uint64_t body_bytes) {
  auto head = DecodeBlockHead(said);
  const auto invalid = [&](std::string what) {
    return Status(Code::kInvalid, Text("block ", asked.key.ToHex(), ": its peer ", what));
  };
  if (!head) return invalid("says of it what cannot be read");
  if (head->history != asked.history) return Status(Code::kMismatch, "it answers under another history");
  if (head->key != asked.key) return invalid(Text("sends block ", head->key.ToHex()));
  // The asker may have named a chain that is none.
  if (head->parent != parent)
    return Status(Code::kMiss,
                  Text("block ", asked.key.ToHex(), ": has another parent there, ", head->parent.ToHex()));
  std::uint64_t sum = 0;
  bool parts = !head->part_bytes.empty();
  for (const std::uint32_t part : head->part_bytes) {
    parts = parts && part > 0;
    sum += part;
  }
  if (!parts || sum != body_bytes) return invalid("says parts that are not its body's");
  if (head->segment_crcs.size() != record::SegmentCount(head->part_bytes))
    return invalid("says checksums that are not its segments'");
  if (body_bytes != body_.size())
    return Status(Code::kMiss, Text("block ", asked.key.ToHex(), ": has ", body_bytes, " bytes there and ",
                                    body_.size(), " were expected"));
  head_ = std::move(*head);
  return Status();
}

void Landing::Take(net::ConstPiece bytes) {
  CISTERN_ASSERT(bytes.size() <= body_.size() - landed_);
  const record::CopyKernels& kernels = record::ChosenKernels();
  while (!bytes.empty()) {
    const std::uint64_t part_left = head_.part_bytes[part_] - in_part_;
    const std::uint64_t in_segment = in_part_ % record::kSegmentBytes;
    const std::uint64_t segment_left = std::min<std::uint64_t>(record::kSegmentBytes - in_segment, part_left);
    const std::size_t step = std::min<std::uint64_t>(bytes.size(), segment_left);
    crc_ = kernels.copy_stream(body_.data() + landed_, bytes.data(), step, crc_, bytes.size() - step);
    landed_ += step;
    in_part_ += step;
    bytes = bytes.subspan(step);
    if (step < segment_left) return;
    if (crc_ != head_.segment_crcs[segment_] && !wrong_) wrong_ = segment_;
    ++segment_;
    crc_ = 0;
    if (step < part_left) continue;
    ++part_;
    in_part_ = 0;
  }
}

Status Landing::Checked() const {
  StreamingStoreFence();
  if (wrong_)
    return Status(Code::kInvalid, Text("block ", head_.key.ToHex(), ": segment ", *wrong_,
                                       " does not have the checksum that its peer says"));
  if (landed_ != body_.size())
    return Status(Code::kInvalid,
                  Text("block ", head_.key.ToHex(), ": ", landed_, " of ", body_.size(), " bytes came"));
  return Status();
}

}  // namespace cistern::mesh
