// SPDX-License-Identifier: Apache-2.0
#include "residency/resizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "arena/protocol.h"
#include "base/assert.h"
#include "base/units.h"

namespace cistern::residency {
namespace {

// Between two passes over records that could not move: the end of a lease or of a transfer is noticed at
// once, what else keeps a slot (a pending put) within this.
constexpr std::int64_t kPassUs = 50'000;
// At least: slots are loosened all the time.
constexpr std::int64_t kRestUs = 1'000;
constexpr std::uint32_t kLookTouches = 16;  // of a look for used slots

std::string Size(std::uint64_t headers) { return RoughSizeText(headers * arena::kHeaderSpanBytes); }

}  // namespace

void Resizer::Want(std::uint32_t headers) {
  CISTERN_ASSERT(headers > 0 && headers <= context_.slots.arena().geometry().header_count);
  if (headers == wanted_) return;
  context_.log.Log(LogLevel::kInfo, "memory: ", Size(context_.slots.headers()), " become ", Size(headers),
                   " from now on");
  wanted_ = headers;
  context_.slots.Expect(headers);
  NoteSize();
  short_ = false;
  changed_.Pulse();
  context_.slots.loosened().Pulse();
}

void Resizer::Stop() {
  stopping_ = true;
  changed_.Pulse();
  context_.slots.loosened().Pulse();
}

Task<void> Resizer::Run(memory::ArenaBacking& backing, memory::Movers& movers) {
  const std::uint32_t all = context_.slots.arena().geometry().header_count;
  while (!stopping_) {
    if (wanted_ > context_.slots.headers()) {
      co_await Grow(backing, movers);
    } else if (wanted_ < served()) {
      co_await Shrink(backing, movers);
    } else if (improved_ < context_.slots.headers()) {
      memory::CallJob improve(movers, [&backing, header = improved_] { backing.Improve(header); });
      co_await improve;
      ++improved_;
    } else {
      const Status waited = co_await changed_.Wait(context_.clock.Now().PlusUs(kLookUs));
      if (waited.ok() || stopping_ || served() == all) continue;
      co_await Release(backing, movers, {served(), all - served()});
    }
  }
}

Task<void> Resizer::Release(memory::ArenaBacking& backing, memory::Movers& movers,
                            memory::HeaderRange range) {
  memory::CallJob release(movers, [&backing, range] { backing.Release(range); });
  co_await release;
}

Task<void> Resizer::Grow(memory::ArenaBacking& backing, memory::Movers& movers) {
  const std::uint32_t header = context_.slots.headers();
  if (header >= served()) {
    const std::uint32_t wanted = wanted_;
    memory::CallJob reserve(movers, [&backing, header] { return backing.Reserve(header); });
    if (const Status reserved = co_await reserve; !reserved.ok()) {
      context_.slots.ExpectLater();
      NoteSize();
      context_.slots.loosened().Pulse();  // who waits for what was coming makes room now
      if (!std::exchange(short_, true))
        context_.log.Log(LogLevel::kWarning, "memory: it has ", Size(header), " of the ", Size(wanted_),
                         " that were asked for, and looks for more each minute: ", reserved.message());
      co_await Release(backing, movers, {header, context_.slots.arena().geometry().header_count - header});
      if (wanted_ == wanted && !stopping_) (void)co_await changed_.Wait(context_.clock.Now().PlusUs(kLookUs));
      co_return;
    }
    if (std::exchange(short_, false)) context_.slots.Expect(wanted_);
    arena::SetServedHeaders(context_.words, context_.slots.arena(), header + 1);
  }
  context_.slots.OpenHeader();
  context_.steps.Count(4);
  NoteSize();
  if (context_.slots.headers() == wanted_)
    context_.log.Log(LogLevel::kInfo, "memory: has ", Size(wanted_), " now");
  if (context_.steps.Spent()) co_await Yield();
}

Task<void> Resizer::Shrink(memory::ArenaBacking& backing, memory::Movers& movers) {
  improved_ = std::min(improved_, wanted_);
  while (context_.slots.headers() > wanted_) {
    context_.slots.CloseHeader();
    context_.steps.Count(4);
    if (context_.steps.Spent()) co_await Yield();
  }
  NoteSize();
  while (context_.slots.closed_in_use() > 0) {
    co_await Empty();
    if (stopping_ || context_.slots.headers() != wanted_) co_return;
    if (context_.slots.closed_in_use() == 0) break;
    (void)co_await context_.slots.loosened().Wait(context_.clock.Now().PlusUs(kPassUs));
    co_await SleepUntil(context_.clock.Now().PlusUs(kRestUs));
  }
  const memory::HeaderRange gone{context_.slots.headers(), served() - context_.slots.headers()};
  arena::SetServedHeaders(context_.words, context_.slots.arena(), context_.slots.headers());
  for (const Instant until = context_.clock.Now().PlusUs(kReadersUs); context_.clock.Now() < until;) {
    if (stopping_ || context_.slots.headers() != wanted_) co_return;
    (void)co_await changed_.Wait(until);
  }
  co_await Release(backing, movers, gone);
  context_.log.Log(LogLevel::kInfo, "memory: has ", Size(context_.slots.headers()), " now, ",
                   Size(gone.count), " went back to the host");
}

Task<void> Resizer::Empty() {
  memory::HeaderRange range = context_.slots.closed();
  range.count = served() - range.first;
  std::uint64_t cursor = 0;
  std::array<arena::Place, 32> places;
  for (std::size_t n; (n = context_.slots.UsedIn(range, &cursor, places)) > 0;) {
    context_.steps.Count(kLookTouches);
    for (std::size_t i = 0; i < n; ++i) {
      if (context_.steps.Spent()) co_await Yield();
      if (stopping_ || context_.slots.headers() != wanted_) co_return;
      context_.steps.Count();
      if (!context_.slots.used(places[i])) continue;
      const catalog::RecordId record = context_.forest.At(places[i]);
      if (record == catalog::kNoId) {
        partial_copies_.EndIdleAt(places[i]);
      } else if (context_.forest.record(record).references == 0) {
        moving_ = true;
        co_await room_.MoveAway(record);
        moving_ = false;
      }
    }
  }
}

}  // namespace cistern::residency
