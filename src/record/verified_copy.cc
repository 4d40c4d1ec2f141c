// SPDX-License-Identifier: Apache-2.0
#include "record/verified_copy.h"

#include <array>

#include "base/cpu.h"

namespace cistern::record {
namespace {

struct Runnable {
  std::array<const CopyKernels*, 3> kernels{};
  std::size_t count = 0;
};

Runnable Probe() {
  Runnable found;
  if constexpr (kIsX86) {  // elsewhere the AVX files are not built
    const CpuFeatures cpu = ProbeCpu();
    if (cpu.avx512) found.kernels[found.count++] = &kAvx512Kernels;
    if (cpu.avx2) found.kernels[found.count++] = &kAvx2Kernels;
  }
  found.kernels[found.count++] = &kPortableKernels;
  return found;
}

}  // namespace

std::span<const CopyKernels* const> AllKernels() {
  static const Runnable kRunnable = Probe();
  return std::span(kRunnable.kernels).first(kRunnable.count);
}

const CopyKernels& BestKernels() { return *AllKernels().front(); }

}  // namespace cistern::record
