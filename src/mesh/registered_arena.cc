// SPDX-License-Identifier: Apache-2.0
#include "mesh/registered_arena.h"

#include <algorithm>

namespace cistern::mesh {

RegisteredArena::RegisteredArena(const Parts& parts, std::uint32_t headers)
    : parts_(parts), start_end_(headers), end_(headers), thread_([this] { RegisterStart(); }) {}

RegisteredArena::~RegisteredArena() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  AwaitStart();
}

void RegisteredArena::AwaitStart() {
  if (thread_.joinable()) thread_.join();
}

std::span<const std::byte> RegisteredArena::SlotsOf(const memory::HeaderRange& range) const {
  const arena::Geometry& geometry = parts_.arena.geometry();
  const std::byte* const first = parts_.arena.slot(geometry.place(range.first * arena::kHeaderSpanBytes));
  return {first, range.count * arena::kHeaderSpanBytes};
}

void RegisteredArena::RegisterStart() {
  for (std::uint32_t next = 0;;) {
    // Held while it registers: what Release takes from here on is not registered behind its back.
    const std::lock_guard lock(mutex_);
    if (stop_ || next >= start_end_) return;
    const std::uint32_t count = std::min(kHeaders, start_end_ - next);
    if (Status status = parts_.fabric.Register(SlotsOf({next, count})); !status.ok()) return Tell(status);
    next += count;
  }
}

Status RegisteredArena::Reserve(std::uint32_t header) {
  Status reserved = parts_.backing.Reserve(header);
  if (!reserved.ok() || header < end_) return reserved;
  // Before: what is registered does not move any more.
  parts_.backing.Improve(header);
  end_ = header + 1;
  if (Status status = parts_.fabric.Register(SlotsOf({header, 1})); !status.ok()) Tell(status);
  return reserved;
}

void RegisteredArena::Release(const memory::HeaderRange& range) {
  {
    const std::lock_guard lock(mutex_);
    start_end_ = std::min(start_end_, range.first);
  }
  end_ = std::min(end_, range.first);
  parts_.fabric.Deregister(SlotsOf(range));
  parts_.backing.Release(range);
}

void RegisteredArena::Tell(const Status& refused) const {
  parts_.log.Log(LogLevel::kWarning,
                 "cell: some of the memory is read by the others over TCP, not by RDMA: ", refused.message());
}

}  // namespace cistern::mesh
