// SPDX-License-Identifier: Apache-2.0
// What a loop and its body keep of a watched descriptor. Only io/*.cc includes this.
#pragma once

#include "io/loop.h"

namespace cistern::io {

// Completions and readiness that are taken between two rounds of ready work: what is called back for one may
// make some system calls.
inline constexpr unsigned kHarvestedPerPoll = 16;

// Lives until its owner removed it, the body forgot it, and its callback has returned.
struct WatchState final : ListNode<WatchState> {
  WatchState(int fd_in, WatchMode mode_in, WatchCallback callback_in)
      : fd(fd_in), mode(mode_in), callback(std::move(callback_in)) {}

  const int fd;
  const WatchMode mode;
  WatchCallback callback;
  bool removed = false;    // by its owner
  bool calling = false;    // its callback is on the stack
  bool forgotten = false;  // by the body, while its callback was on the stack
  bool armed = false;      // the body's: a poll request is in the ring
};

}  // namespace cistern::io
