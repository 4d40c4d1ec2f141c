// SPDX-License-Identifier: Apache-2.0
// Streaming stores are outside of x86's store order: a release store may overtake them. This fence is the
// one instruction that orders them (rule R2).
#pragma once

#include <atomic>

namespace cistern {

inline void StreamingStoreFence() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
  std::atomic_thread_fence(std::memory_order_release);
}

// One turn of a spin loop.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace cistern
