// SPDX-License-Identifier: Apache-2.0
#include "server/touches.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace cistern::server {

void Touches::Look(Session& session) {
  if (!session.ring.HasTouches() || std::ranges::find(waiting_, &session) != waiting_.end()) return;
  waiting_.push_back(&session);
  if (!linked()) executor_.Post(*this);
}

std::size_t Touches::Take(Session& session) {
  std::array<std::uint64_t, kSlice> touches;
  const std::size_t count = session.ring.TakeTouches(touches, counters_.touches_lost);
  for (std::size_t i = 0; i < count; ++i) {
    store_.TouchPlace(static_cast<std::uint32_t>(touches[i] >> 32), static_cast<std::uint32_t>(touches[i]));
  }
  counters_.touches += count;
  return count;
}

void Touches::Forget(const Session& session) { std::erase(waiting_, &session); }

void Touches::Run() {
  if (waiting_.empty()) return;  // who waited has gone
  Session& session = *waiting_.front();
  waiting_.erase(waiting_.begin());
  // Behind the others: there may be no end of them.
  if (Take(session) == kSlice) waiting_.push_back(&session);
  if (!waiting_.empty()) executor_.Post(*this);
}

}  // namespace cistern::server
