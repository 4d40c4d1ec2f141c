// SPDX-License-Identifier: Apache-2.0
#include "base/cpu.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace cistern {

CpuFeatures ProbeCpu() {
  CpuFeatures found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  found.avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2");
  found.vpclmulqdq = found.avx2 && __builtin_cpu_supports("vpclmulqdq");
  found.avx512 = found.vpclmulqdq && __builtin_cpu_supports("avx512f") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq");
#elif defined(__aarch64__)
  const unsigned long has = getauxval(AT_HWCAP);
  found.arm64 = (has & HWCAP_CRC32) != 0 && (has & HWCAP_PMULL) != 0;
#endif
  return found;
}

}  // namespace cistern
