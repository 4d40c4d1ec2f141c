// SPDX-License-Identifier: Apache-2.0
// Starts of threads that the system may refuse.
#pragma once

#include <system_error>

#include "base/format.h"
#include "cistern/status.h"

namespace cistern {

// kBusy: why the system started none.
inline Status NoThread(const std::system_error& error) {
  return Status(Code::kBusy, Text("a thread cannot be started: ", error.what(),
                                  "; raise the limit of processes (ulimit -u)"));
}

// kBusy where the system has no thread for what `start` starts.
template <class Start>
Status StartingThreads(Start start) {
  try {
    start();
    return Status();
  } catch (const std::system_error& error) {
    return NoThread(error);
  }
}

}  // namespace cistern
