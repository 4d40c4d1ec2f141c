// SPDX-License-Identifier: Apache-2.0
#include "node/stage_watch.h"

#include <chrono>
#include <utility>

namespace cistern::node {

namespace {
constexpr std::chrono::seconds kPatience(3);  // then twice as long, and so on
}  // namespace

StageWatch::StageWatch(Logger& log, std::string stage)
    : log_(log), stage_(std::move(stage)), thread_([this](const std::stop_token& stop) { Look(stop); }) {}

void StageWatch::NowDoing(std::string what) {
  const std::lock_guard lock(mutex_);
  doing_ = std::move(what);
}

void StageWatch::Look(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  std::chrono::seconds passed{}, patience = kPatience;
  while (!ended_.wait_for(lock, stop, patience, [&] { return stop.stop_requested(); })) {
    passed += std::exchange(patience, patience * 2);
    log_.Log(LogLevel::kWarning, stage_, ": after ", passed.count(), " s it is still ", doing_,
             "; a file system that is frozen, or a device that hangs, keeps it waiting");
  }
}

}  // namespace cistern::node
