// SPDX-License-Identifier: Apache-2.0
// The verified copy in 64-byte registers: AVX-512 and VPCLMULQDQ.
#include "record/avx512_line.h"
#include "record/copy_by_folds.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {

constinit const CopyKernels kAvx512Kernels = PastCaches<Folds<Line, Into::kPastL2>>("avx512");
constinit const CopyKernels kIntelAvx512Kernels = PastCaches<Folds<Line, Into::kL2>>("avx512");

}  // namespace cistern::record
