// SPDX-License-Identifier: Apache-2.0
#include "record/verified_copy.h"

#include <array>
#include <atomic>
#include <vector>

#include "base/cpu.h"
#include "base/nearest.h"

namespace cistern::record {
namespace {

struct Runnable {
  std::array<const CopyKernels*, 5> kernels{};
  std::size_t count = 0;
};

Runnable Probe() {
  Runnable found;
  const CpuFeatures cpu = ProbeCpu();
  if constexpr (kIsX86) {  // elsewhere the AVX files are not built
    const auto of = [&](const CopyKernels& amd, const CopyKernels& intel) {
      return cpu.intel ? &intel : &amd;
    };
    if (cpu.zen5 || (cpu.avx512 && cpu.intel)) {
      found.kernels[found.count++] = of(kAvx512LanesKernels, kIntelAvx512LanesKernels);
    }
    if (cpu.avx512) found.kernels[found.count++] = of(kAvx512Kernels, kIntelAvx512Kernels);
    if (cpu.vpclmulqdq) found.kernels[found.count++] = of(kVpclmulqdqKernels, kIntelVpclmulqdqKernels);
    if (cpu.avx2) found.kernels[found.count++] = of(kAvx2Kernels, kIntelAvx2Kernels);
  }
  if constexpr (kIsArm64) {
    if (cpu.arm64) found.kernels[found.count++] = &kArm64Kernels;
  }
  found.kernels[found.count++] = &kPortableKernels;
  return found;
}

std::atomic<const CopyKernels*>& Chosen() {
  static std::atomic<const CopyKernels*> chosen{AllKernels().front()};
  return chosen;
}

}  // namespace

std::span<const CopyKernels* const> AllKernels() {
  static const Runnable kRunnable = Probe();
  return std::span(kRunnable.kernels).first(kRunnable.count);
}

const CopyKernels& ChosenKernels() { return *Chosen().load(std::memory_order_relaxed); }

Status ChooseKernels(std::string_view name) {
  std::vector<std::string_view> known;
  for (const CopyKernels* kernels : AllKernels()) {
    if (kernels->name == name) {
      Chosen().store(kernels, std::memory_order_relaxed);
      return Status();
    }
    known.push_back(kernels->name);
  }
  return Status(Code::kInvalid, UnknownName("copy kernel of this processor", name, known));
}

}  // namespace cistern::record
