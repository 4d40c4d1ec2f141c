// SPDX-License-Identifier: Apache-2.0
#include "record/verified_copy.h"

#include <array>

namespace cistern {
namespace {

struct Runnable {
  std::array<const CopyKernels*, 3> kernels{};
  std::size_t count = 0;
};

Runnable Probe() {
  Runnable found;
  found.kernels[found.count++] = &kPortableKernels;
  return found;
}

}  // namespace

std::span<const CopyKernels* const> AllKernels() {
  static const Runnable kRunnable = Probe();
  return std::span(kRunnable.kernels).first(kRunnable.count);
}

const CopyKernels& BestKernels() { return *AllKernels().front(); }

}  // namespace cistern
