// SPDX-License-Identifier: Apache-2.0
// What a thread that polls needs from the processor.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>

namespace cistern {

// Between two looks at a shared word: lets the sibling hyperthread run.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// A thread that polls for what another thread will do. Both may share one processor (a container's share of
// one, a scheduler that packs): every `turns` turns it lets others run, which costs a fraction of a
// microsecond where nobody waits, and saves the rest of its time slice where the other one does.
class PoliteSpin final {
 public:
  explicit PoliteSpin(std::uint32_t turns) : turns_(turns) {}
  // One turn; whether it was one that yielded.
  bool Turn() {
    if (++turn_ % turns_ != 0) {
      CpuRelax();
      return false;
    }
    sched_yield();
    return true;
  }

 private:
  const std::uint32_t turns_;
  std::uint32_t turn_ = 0;
};

// Asks for the cache lines of memory that another processor wrote last, all at once; with `to_write`, so that
// they can also be written.
inline void PrefetchLines(const void* from, std::size_t bytes, bool to_write) {
  const auto* line = static_cast<const std::byte*>(from);
  for (const std::byte* end = line + bytes; line < end; line += 64) {
    if (to_write) {
      __builtin_prefetch(line, 1);
    } else {
      __builtin_prefetch(line);
    }
  }
}

// Sequentially consistent fence: a store before it is visible before any load after it. Written as the
// builtin because g++ refuses std::atomic_thread_fence under the thread sanitizer.
inline void FullFence() { __sync_synchronize(); }

}  // namespace cistern
