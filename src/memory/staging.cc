// SPDX-License-Identifier: Apache-2.0
#include "memory/staging.h"

#include "arena/geometry.h"
#include "base/assert.h"
#include "base/format.h"

namespace cistern::memory {

StagingArea::~StagingArea() {
  pool_.used_bytes_ -= bytes_;
  pool_.ending_->bytes += memory_.mapping.size();
  FreeSharedMemory(pool_.movers_, std::move(memory_), PagesAtEnd::kTaken,
                   [ending = pool_.ending_](std::uint64_t bytes) {
                     ending->bytes -= bytes;
                     ending->fewer.Pulse();
                   });
}

std::span<const std::byte> StagingArea::Range(std::uint64_t offset, std::uint64_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset) return {};
  return std::span<const std::byte>(memory_.mapping.data() + offset, bytes);
}

StagingPool::~StagingPool() { CISTERN_ASSERT(used_bytes_ == 0); }

Task<Result<std::shared_ptr<StagingArea>>> StagingPool::Make(Executor& executor, std::uint64_t bytes) {
  if (bytes == 0) co_return Error(Code::kInvalid, "staging: 0 bytes asked for");
  const std::uint64_t left = budget_bytes_ - used_bytes_;
  if (bytes > left || arena::RoundUp(bytes, arena::kUnitBytes) > left)
    co_return Error(Code::kBusy, Text("staging: ", bytes, " bytes asked for, ", left, " of ", budget_bytes_,
                                      " are left; end idle sessions or give the node more memory"));
  const std::uint64_t whole = arena::RoundUp(bytes, arena::kUnitBytes);
  used_bytes_ += whole;
  std::shared_ptr<StagingArea> area(new StagingArea(*this, whole));
  // The movers free and make a piece at a time, in turns.
  while (used_bytes_ + ending_->bytes > budget_bytes_) co_await ending_->fewer.Wait();
  Result<SharedMemory> memory =
      co_await MakeSharedMemory(executor, movers_, "cistern-staging", whole, Access::kRead);
  if (!memory) co_return Error(std::move(memory.error()));
  area->memory_ = std::move(*memory);
  co_return area;
}

}  // namespace cistern::memory
