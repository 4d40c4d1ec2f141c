// SPDX-License-Identifier: Apache-2.0
// Says what a start, or an end, is at when it takes long. Where it waits may be a call to the kernel (a
// frozen file system holds whoever opens a file there), so a thread of its own looks.
#pragma once

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "base/log.h"

namespace cistern::node {

class StageWatch final {
 public:
  // The log is borrowed. `stage` as in "node start". Throws std::system_error where the system starts no more
  // threads.
  StageWatch(Logger& log, std::string stage);
  // The stage is over.
  ~StageWatch() = default;
  StageWatch(const StageWatch&) = delete;
  StageWatch& operator=(const StageWatch&) = delete;

  // As in "it is still `what`". From any thread.
  void NowDoing(std::string what);

 private:
  void Look(const std::stop_token& stop);

  Logger& log_;
  const std::string stage_;
  std::mutex mutex_;
  std::string doing_;
  std::condition_variable_any ended_;
  std::jthread thread_;  // last: it stands on the others
};

}  // namespace cistern::node
