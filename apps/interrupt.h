// SPDX-License-Identifier: Apache-2.0
// Ctrl-C for a program that has something to clean up: the signal waits until it is asked for.
#pragma once

#include <signal.h>
#include <time.h>

namespace cistern {

// To be made before there are threads, which then do not take the signals either.
class Interrupt final {
 public:
  Interrupt() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
  }
  // Whether the program was asked to end; stays so.
  bool Asked() {
    constexpr timespec kNow{0, 0};
    asked_ = asked_ || sigtimedwait(&signals_, nullptr, &kNow) > 0;
    return asked_;
  }

 private:
  sigset_t signals_;
  bool asked_ = false;
};

}  // namespace cistern
