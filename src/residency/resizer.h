// SPDX-License-Identifier: Apache-2.0
// The size of memory while the store runs (docs/decisions/0021-memory-resized.md). It grows by a chunk header
// at a time, whose memory is there before its first slot is given out; so too from what a start takes at
// first to what it was asked for (0032-start-with-a-piece.md). Where the host has no more, it has what there
// is until the host has. It shrinks from the arena's end: the last headers are closed, their records move to
// free slots elsewhere, for which the coldest of all leave, and when nothing is used there any more, by a
// lease or a transfer neither, their memory goes back to the host.
//
// A kill at any time leaves an arena of one size or the other: headers count as long as the arena's word says
// that it serves them, and until then nothing of theirs is given back.
#pragma once

#include <cstdint>

#include "base/event.h"
#include "base/task.h"
#include "memory/arena_backing.h"
#include "memory/movers.h"
#include "residency/context.h"
#include "residency/partial_copies.h"
#include "residency/room.h"

namespace cistern::residency {

class Resizer final {
 public:
  Resizer(const StoreContext& context, PartialCopies& partial_copies, Room& room)
      : context_(context),
        partial_copies_(partial_copies),
        room_(room),
        wanted_(context.slots.headers()),
        improved_(context.slots.headers()) {}
  Resizer(const Resizer&) = delete;
  Resizer& operator=(const Resizer&) = delete;

  Executor& executor() { return context_.executor; }

  // From now on memory is on its way to so many headers, 1 to the arena's, whatever it was on its way to.
  void Want(std::uint32_t headers);
  // Where it is on its way to, or is.
  std::uint32_t wanted() const { return wanted_; }
  // A record is on its way to another slot.
  bool moving() const { return moving_; }
  // The host had no more when memory was to grow last.
  bool out_of_memory() const { return short_; }
  // Headers that have memory.
  std::uint32_t served() const { return arena::ServedHeaders(context_.words, context_.slots.arena()); }
  // Headers from the first on that are in huge pages, where the system has any; those of the start are once
  // who touches them is done.
  std::uint32_t improved() const { return improved_; }

  // Does what is wanted until Stop. `movers`, of their own, do what blocks.
  Task<void> Run(memory::ArenaBacking& backing, memory::Movers& movers);
  void Stop();

  // A reader that found a record just before it left may still be copying: memory stays as long as this
  // behind the last use that the node knows of. A later touch finds zeros, which no seal fits.
  static constexpr std::int64_t kReadersUs = 2'000'000;
  // How often pages that a late reader touched are given back to the host, and memory that it lacked is asked
  // for again.
  static constexpr std::int64_t kLookUs = 60'000'000;

 private:
  Task<void> Grow(memory::ArenaBacking& backing, memory::Movers& movers);
  Task<void> Shrink(memory::ArenaBacking& backing, memory::Movers& movers);
  Task<void> Release(memory::ArenaBacking& backing, memory::Movers& movers, memory::HeaderRange range);
  // One pass over what is left in closed headers.
  Task<void> Empty();
  // Bounds that are shares of memory: of what is on its way too, for which a put waits.
  void NoteSize() { context_.pending.SetMemory(context_.slots.bytes_soon()); }

  const StoreContext context_;
  PartialCopies& partial_copies_;
  Room& room_;
  std::uint32_t wanted_;
  std::uint32_t improved_;
  bool stopping_ = false;
  bool short_ = false;
  bool moving_ = false;
  Event changed_;
};

}  // namespace cistern::residency
