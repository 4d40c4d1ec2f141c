// SPDX-License-Identifier: Apache-2.0
// Staging: memory that sessions fill and that writes copy from. The node makes it, whole, sealed and inside
// a budget (R13). Belongs to the core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/event.h"
#include "base/task.h"
#include "cistern/status.h"
#include "memory/shared_memory.h"

namespace cistern::memory {

inline constexpr std::uint64_t kStagingFraction = 8;  // of the memory

class StagingPool;

// One area of one session, shared by the session and by every write that reads from it: when a session dies,
// memory that movers or devices still use stays, and stays counted, until the last of them ends (R6).
class StagingArea final {
 public:
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;

  Fd TakeFd() { return std::move(memory_.fd); }  // to be passed to the client
  std::uint64_t bytes() const { return bytes_; }
  // Bytes [offset, offset + bytes), or an empty span where that is not inside the area. The client may change
  // them at any time.
  std::span<const std::byte> Range(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  friend class StagingPool;
  StagingArea(StagingPool& pool, std::uint64_t bytes) : pool_(pool), bytes_(bytes) {}

  StagingPool& pool_;
  const std::uint64_t bytes_;
  SharedMemory memory_;
};

// Outlives its areas.
class StagingPool final {
 public:
  // The movers, which make and free the areas, are borrowed.
  StagingPool(Movers& movers, std::uint64_t budget_bytes) : movers_(movers), budget_bytes_(budget_bytes) {}
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // `bytes` is rounded up to pages. kInvalid for 0; kBusy past the budget, with what is left of it, or when
  // the host has no room. Counted from the call on. Where areas that ended have pages yet that would be over
  // the budget with these, it waits until they are free.
  Task<Result<std::shared_ptr<StagingArea>>> Make(Executor& executor, std::uint64_t bytes);

  std::uint64_t budget_bytes() const { return budget_bytes_; }
  std::uint64_t used_bytes() const { return used_bytes_; }

 private:
  friend class StagingArea;
  // Pages of areas that have ended; who frees them may outlive the pool.
  struct Ending {
    std::uint64_t bytes = 0;
    Event fewer;
  };

  Movers& movers_;
  const std::uint64_t budget_bytes_;
  std::uint64_t used_bytes_ = 0;
  const std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();
};

}  // namespace cistern::memory
