// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, SIGTERM, a terminal that was closed and an output that nobody reads any more, as something to look
// at instead of the end. Once one was seen, the next Ctrl-C or SIGTERM ends the process as ever.
#pragma once

#include <csignal>

#include "base/fd.h"
#include "cistern/status.h"

namespace cistern {

class Interrupt {
 public:
  // Blocks these signals in this thread and those that it starts, until it goes.
  static Result<Interrupt> Open();
  Interrupt(Interrupt&& other) noexcept = default;
  Interrupt& operator=(Interrupt&&) = delete;
  ~Interrupt();

  // Readable from the signal on, until Seen() has seen it.
  int fd() const { return fd_.get(); }
  // Whether a signal has come.
  bool Seen();

 private:
  Interrupt() = default;

  Fd fd_;
  sigset_t before_{};
  bool seen_ = false;
};

}  // namespace cistern
