// SPDX-License-Identifier: Apache-2.0
#include "base/cpu.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace cistern {

#if defined(__x86_64__)
namespace {

// As AMD's manual 3, CPUID function 1, has it: the base family, where that is 15 with the extended one.
unsigned Family() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return 0;
  const unsigned base = eax >> 8 & 15;
  return base == 15 ? base + (eax >> 20 & 255) : base;
}

}  // namespace
#endif

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
  found.intel = __builtin_cpu_is("intel");
  found.zen5 = found.avx512 && __builtin_cpu_is("amd") && Family() >= 26;
#elif defined(__aarch64__)
  const unsigned long has = getauxval(AT_HWCAP);
  found.arm64 = (has & HWCAP_CRC32) != 0 && (has & HWCAP_PMULL) != 0;
#endif
  return found;
}

}  // namespace cistern
