// SPDX-License-Identifier: Apache-2.0
// Watched descriptors in an epoll instance, with the loop's wake descriptor. Serves the epoll body and, with
// real descriptors in a simulated world, the simulated one.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "io/files.h"
#include "io/watch_state.h"

struct epoll_event;

namespace cistern::io {

class EpollSet {
 public:
  static Result<EpollSet> Make(int wake_fd);

  Status Add(WatchState& watch);
  // Not reported again, not even by a Next that belongs to an earlier Poll.
  void Remove(WatchState& watch);

  struct Ready {
    WatchState* watch;
    std::uint32_t events;
  };
  // Looks without waiting; then Next gives one after the other, until its watch is null.
  bool Poll();
  Ready Next();
  // Until something may be ready, for at most this long; Never's span is for ever.
  void Wait(std::int64_t at_most_ns);

 private:
  static constexpr std::size_t kBatch = kHarvestedPerPoll;
  explicit EpollSet(Fd epoll) : epoll_(std::move(epoll)) {}
  Fd epoll_;
  std::array<Ready, kBatch> batch_{};
  std::size_t at_ = 0;
  std::size_t size_ = 0;
};

}  // namespace cistern::io
