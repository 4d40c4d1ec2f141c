// SPDX-License-Identifier: Apache-2.0
// Order between memory accesses of one thread, as the protocols on shared memory need it. Not
// std::atomic_thread_fence, which g++ refuses under the thread sanitizer.
#pragma once

#include <cstddef>
#include <cstring>

namespace cistern {

// Every earlier store, streaming ones too, before every later store. Streaming stores are outside of x86's
// store order: a release store may overtake them, and this is the one instruction that orders them (R2).
inline void StreamingStoreFence() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#else
  __sync_synchronize();
#endif
}

// 16 bytes past the caches, where the processor has such a store. `to` is a multiple of 16.
inline void StreamingStore(std::byte* to, const std::byte* from) {
#if defined(__x86_64__)
  using Words = long long __attribute__((vector_size(16)));
  Words words;
  std::memcpy(&words, from, sizeof(words));
  asm volatile("movntdq %1, %0" : "=m"(*reinterpret_cast<Words*>(to)) : "x"(words));
#else
  std::memcpy(to, from, 16);
#endif
}

// Every earlier load before every later load. x86 keeps loads in order, so the compiler alone has to be told.
inline void EarlierLoadsFence() {
#if defined(__x86_64__)
  asm volatile("" ::: "memory");
#else
  __sync_synchronize();
#endif
}

}  // namespace cistern
