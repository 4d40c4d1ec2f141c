// SPDX-License-Identifier: Apache-2.0
#include "base/cpu.h"

namespace cistern {

CpuFeatures ProbeCpu() {
  CpuFeatures found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  found.avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2");
  found.avx512 = found.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("vpclmulqdq");
#endif
  return found;
}

}  // namespace cistern
