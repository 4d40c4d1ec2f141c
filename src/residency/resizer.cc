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
  CISTERN_ASSERT(headers > 0 && headers <= slots_.arena().geometry().header_count);
  if (headers == wanted_) return;
  log_.Log(LogLevel::kInfo, "memory: ", Size(slots_.headers()), " become ", Size(headers), " from now on");
  wanted_ = headers;
  slots_.Expect(headers);
  short_ = false;
  changed_.Pulse();
  slots_.loosened().Pulse();
}

void Resizer::Stop() {
  stopping_ = true;
  changed_.Pulse();
  slots_.loosened().Pulse();
}

Task<void> Resizer::Run(memory::ArenaBacking& backing, memory::Movers& movers) {
  const std::uint32_t all = slots_.arena().geometry().header_count;
  while (!stopping_) {
    if (wanted_ > slots_.headers()) {
      co_await Grow(backing, movers);
    } else if (wanted_ < served()) {
      co_await Shrink(backing, movers);
    } else if (improved_ < slots_.headers()) {
      memory::ImproveTask improve(movers, backing, improved_++);
      co_await improve;
    } else {
      const Status waited = co_await changed_.Wait(clock_.Now().PlusUs(kLookUs));
      if (waited.ok() || stopping_ || served() == all) continue;
      memory::ReleaseTask release(movers, backing, {served(), all - served()});
      co_await release;
    }
  }
}

Task<void> Resizer::Grow(memory::ArenaBacking& backing, memory::Movers& movers) {
  const std::uint32_t header = slots_.headers();
  if (header >= served()) {
    const std::uint32_t wanted = wanted_;
    memory::ReserveTask reserve(movers, backing, header);
    co_await reserve;
    if (!reserve.status().ok()) {
      slots_.ExpectLater();
      slots_.loosened().Pulse();  // who waits for what was coming makes room now
      if (!std::exchange(short_, true))
        log_.Log(LogLevel::kWarning, "memory: it has ", Size(header), " of the ", Size(wanted_),
                 " that were asked for, and looks for more each minute: ", reserve.status().message());
      memory::ReleaseTask release(movers, backing, {header, slots_.arena().geometry().header_count - header});
      co_await release;
      if (wanted_ == wanted && !stopping_) (void)co_await changed_.Wait(clock_.Now().PlusUs(kLookUs));
      co_return;
    }
    if (std::exchange(short_, false)) slots_.Expect(wanted_);
    arena::SetServedHeaders(words_, slots_.arena(), header + 1);
  }
  slots_.OpenHeader();
  steps_.Count(4);
  NoteSize();
  if (slots_.headers() == wanted_) log_.Log(LogLevel::kInfo, "memory: has ", Size(wanted_), " now");
  if (steps_.Spent()) co_await Yield();
}

Task<void> Resizer::Shrink(memory::ArenaBacking& backing, memory::Movers& movers) {
  improved_ = std::min(improved_, wanted_);
  while (slots_.headers() > wanted_) {
    slots_.CloseHeader();
    steps_.Count(4);
    if (steps_.Spent()) co_await Yield();
  }
  NoteSize();
  while (slots_.closed_in_use() > 0) {
    co_await Empty();
    if (stopping_ || slots_.headers() != wanted_) co_return;
    if (slots_.closed_in_use() == 0) break;
    (void)co_await slots_.loosened().Wait(clock_.Now().PlusUs(kPassUs));
    (void)co_await SleepUntil(clock_.Now().PlusUs(kRestUs));
  }
  const memory::HeaderRange gone{slots_.headers(), served() - slots_.headers()};
  arena::SetServedHeaders(words_, slots_.arena(), slots_.headers());
  for (const Instant until = clock_.Now().PlusUs(kReadersUs); clock_.Now() < until;) {
    if (stopping_ || slots_.headers() != wanted_) co_return;
    (void)co_await changed_.Wait(until);
  }
  memory::ReleaseTask release(movers, backing, gone);
  co_await release;
  log_.Log(LogLevel::kInfo, "memory: has ", Size(slots_.headers()), " now, ", Size(gone.count),
           " went back to the host");
}

Task<void> Resizer::Empty() {
  memory::HeaderRange range = slots_.closed();
  range.count = served() - range.first;
  std::uint64_t cursor = 0;
  std::array<arena::Place, 32> places;
  for (std::size_t n; (n = slots_.UsedIn(range, &cursor, places)) > 0;) {
    steps_.Count(kLookTouches);
    for (std::size_t i = 0; i < n; ++i) {
      if (steps_.Spent()) co_await Yield();
      if (stopping_ || slots_.headers() != wanted_) co_return;
      steps_.Count();
      if (!slots_.used(places[i])) continue;
      const catalog::RecordId record = forest_.At(places[i]);
      if (record == catalog::kNoId) {
        partial_copies_.EndIdleAt(places[i]);
      } else if (forest_.record(record).references == 0) {
        moving_ = true;
        co_await room_.MoveAway(record);
        moving_ = false;
      }
    }
  }
}

}  // namespace cistern::residency
