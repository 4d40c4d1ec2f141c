// SPDX-License-Identifier: Apache-2.0
// A client's share of staging: areas that the node made, pieces of them that are in use. Grows by asking the
// node for an area that takes the place of those that lie idle, so that a session's areas do not stay in the
// sizes of its early calls. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cistern/status.h"
#include "cistern/store.h"
#include "client/channel.h"
#include "client/extents.h"

namespace cistern::client {

class StagingRoom;

// Bytes of one area; given back when the last owner lets go.
class StagingPiece final {
 public:
  StagingPiece(std::shared_ptr<StagingRoom> room, std::uint32_t area, std::uint64_t offset,
               std::span<std::byte> bytes)
      : room_(std::move(room)), area_(area), offset_(offset), bytes_(bytes) {}
  ~StagingPiece();
  StagingPiece(const StagingPiece&) = delete;
  StagingPiece& operator=(const StagingPiece&) = delete;

  std::uint32_t area() const { return area_; }
  std::uint64_t offset() const { return offset_; }  // in the area
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const std::shared_ptr<StagingRoom> room_;
  const std::uint32_t area_;
  const std::uint64_t offset_;
  const std::span<std::byte> bytes_;
};

class StagingRoom final : public std::enable_shared_from_this<StagingRoom> {
 public:
  // The connection's first staging is area 0.
  explicit StagingRoom(std::shared_ptr<Channel> channel);

  // kBusy: it is all in use and the node gives no more. The node is asked until `deadline_ns` at most.
  Result<std::shared_ptr<StagingPiece>> Take(std::uint64_t bytes, std::int64_t deadline_ns);
  // The piece that `bytes` lie in, kept; null if they lie in none.
  std::shared_ptr<StagingPiece> PieceOf(std::span<const std::byte> bytes);

 private:
  friend class StagingPiece;
  struct Area {
    std::span<std::byte> bytes;
    Mapping memory;  // of areas after the first
    Extents extents;
  };
  void Free(std::uint32_t area, const std::byte* data, std::uint64_t offset, std::uint64_t bytes);
  std::shared_ptr<StagingPiece> TakeHere(std::uint64_t bytes);
  Status Grow(std::uint64_t bytes, std::int64_t deadline_ns);
  Status Ask(std::uint64_t bytes, std::int64_t deadline_ns);
  Status TakeAnswer(std::int64_t deadline_ns);
  // Gives the areas back that nothing lies in, all but the first; their bytes.
  std::uint64_t GiveIdleBack();

  const std::shared_ptr<Channel> channel_;
  std::timed_mutex grow_;  // held while the node is asked; before mutex_
  bool asked_ = false;     // under grow_: the node, whose answer is still to be taken
  std::mutex mutex_;
  std::map<std::uint32_t, Area> areas_;
  std::map<const std::byte*, std::weak_ptr<StagingPiece>> pieces_;  // by their first byte
};

}  // namespace cistern::client
