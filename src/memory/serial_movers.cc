// SPDX-License-Identifier: Apache-2.0
#include "memory/serial_movers.h"

#include <utility>

namespace cistern::memory {

void SerialMovers::Submit(MoverJob& job) {
  if (now_ != nullptr) {
    waiting_.PushBack(job);
  } else {
    Start(job);
  }
}

void SerialMovers::Start(MoverJob& job) {
  now_ = &job;
  movers_.Submit(relay_);
}

void SerialMovers::Done() {
  MoverJob& done = *std::exchange(now_, nullptr);
  if (Work* next = waiting_.PopFront()) Start(static_cast<MoverJob&>(*next));
  done.Run();
  if (now_ == nullptr) quiet_.Pulse();
}

Task<void> SerialMovers::Quiet(Executor&) {
  while (now_ != nullptr) co_await quiet_.Wait();
}

}  // namespace cistern::memory
