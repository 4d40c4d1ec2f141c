// SPDX-License-Identifier: Apache-2.0
#include "client/staging_room.h"

#include <algorithm>
#include <chrono>

#include "base/format.h"

namespace cistern::client {
namespace {

// Areas are few: each further one is at least this large.
constexpr std::uint64_t kMinGrowthBytes = 4u << 20;

}  // namespace

StagingPiece::~StagingPiece() { room_->Free(area_, bytes_.data(), offset_, bytes_.size()); }

StagingRoom::StagingRoom(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {
  const Mapping& first = channel_->connection().staging;
  areas_.emplace(0, Area{first.bytes(), Mapping(), Extents(first.size())});
}

void StagingRoom::Free(std::uint32_t area, const std::byte* data, std::uint64_t offset, std::uint64_t bytes) {
  if (channel_->forked()) return;
  std::lock_guard lock(mutex_);
  pieces_.erase(data);
  areas_.at(area).extents.Free(offset, bytes);
}

std::shared_ptr<StagingPiece> StagingRoom::TakeHere(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  for (auto& [number, area] : areas_) {
    std::optional<std::uint64_t> offset = area.extents.Take(bytes);
    if (!offset) continue;
    std::span<std::byte> here = area.bytes.subspan(*offset, bytes);
    auto piece = std::make_shared<StagingPiece>(shared_from_this(), number, *offset, here);
    pieces_[here.data()] = piece;
    return piece;
  }
  return nullptr;
}

std::uint64_t StagingRoom::GiveIdleBack() {
  if (!channel_->takes_staging_back()) return 0;
  std::uint64_t bytes = 0;
  std::lock_guard lock(mutex_);
  for (auto at = areas_.upper_bound(0); at != areas_.end();) {
    const bool idle = at->second.extents.all_free();
    if (!idle || !GiveStagingBack(channel_->connection(), at->first).ok()) {
      ++at;
      continue;
    }
    bytes += at->second.bytes.size();
    at = areas_.erase(at);
  }
  return bytes;
}

Status StagingRoom::TakeAnswer(std::int64_t deadline_ns) {
  Result<Grant> grant = AwaitStaging(channel_->connection(), deadline_ns);
  asked_ = !grant && grant.error().code() == Code::kTooLate;
  if (!grant) return std::move(grant.error());
  std::lock_guard lock(mutex_);
  const std::span<std::byte> all = grant->memory.bytes();
  areas_.emplace(grant->area, Area{all, std::move(grant->memory), Extents(all.size())});
  return Status();
}

Status StagingRoom::Ask(std::uint64_t bytes, std::int64_t deadline_ns) {
  if (Status sent = AskForStaging(channel_->connection(), bytes); !sent.ok()) return sent;
  asked_ = true;
  return TakeAnswer(deadline_ns);
}

Status StagingRoom::Grow(std::uint64_t bytes, std::int64_t deadline_ns) {
  if (asked_) {
    // By a call that had no time left for the answer. Another question behind it would get that answer.
    Status earlier = TakeAnswer(deadline_ns);
    if (earlier.ok() || asked_) return earlier;
  }
  const std::uint64_t idle = GiveIdleBack();
  const std::uint64_t wanted = std::max({Extents::Rounded(bytes), kMinGrowthBytes, idle});
  Status grown = Ask(wanted, deadline_ns);
  // A node with little left, or of little memory, may still have what is needed.
  if ((grown.code() == Code::kBusy || grown.code() == Code::kInvalid) && wanted > Extents::Rounded(bytes))
    grown = Ask(Extents::Rounded(bytes), deadline_ns);
  return grown;
}

Result<std::shared_ptr<StagingPiece>> StagingRoom::Take(std::uint64_t bytes, std::int64_t deadline_ns) {
  if (bytes == 0) return Error(Code::kInvalid, "staging of 0 bytes: a write has at least one");
  if (Status status = channel_->Check(); !status.ok()) return Error(std::move(status));
  if (std::shared_ptr<StagingPiece> piece = TakeHere(bytes)) return piece;
  std::unique_lock growing(grow_, std::defer_lock);
  // Another thread may be asking for longer than this call may take.
  const auto until = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline_ns));
  if (!growing.try_lock_until(until))
    return Error(Code::kTooLate,
                 Text("staging of ", bytes, " bytes: the deadline passed while another call of ",
                      "this session asked the node for some"));
  // Another thread may have grown it, and a late answer to an earlier request may be too small for this one.
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (std::shared_ptr<StagingPiece> piece = TakeHere(bytes)) return piece;
    if (Status status = Grow(bytes, deadline_ns); !status.ok()) return Error(std::move(status));
  }
  if (std::shared_ptr<StagingPiece> piece = TakeHere(bytes)) return piece;
  return Error(Code::kBusy, Text("staging of ", bytes, " bytes: all of the session's is in use"));
}

std::shared_ptr<StagingPiece> StagingRoom::PieceOf(std::span<const std::byte> bytes) {
  std::shared_ptr<StagingPiece> piece;  // outlives the lock: it may be the last owner's
  std::lock_guard lock(mutex_);
  auto after = pieces_.upper_bound(bytes.data());
  if (after == pieces_.begin()) return nullptr;
  piece = std::prev(after)->second.lock();
  if (piece == nullptr) return nullptr;
  const std::byte* end = piece->bytes().data() + piece->bytes().size();
  return bytes.data() + bytes.size() <= end ? piece : nullptr;
}

}  // namespace cistern::client
