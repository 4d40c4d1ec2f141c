// SPDX-License-Identifier: Apache-2.0
// What a thread that polls needs from the processor.
#pragma once

namespace cistern {

// Between two looks at a shared word: lets the sibling hyperthread run.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Sequentially consistent fence: a store before it is visible before any load after it. Written as the
// builtin because g++ refuses std::atomic_thread_fence under the thread sanitizer.
inline void FullFence() {
  __sync_synchronize();
}

}  // namespace cistern
