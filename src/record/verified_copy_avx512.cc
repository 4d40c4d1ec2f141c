// SPDX-License-Identifier: Apache-2.0
// The verified copy in 64-byte registers: AVX-512 and VPCLMULQDQ.
#include "record/avx512_line.h"
#include "record/copy_by_folds.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {

const CopyKernels kAvx512Kernels = {"avx512",
                                    RunFolds<Line, Into::kPastL2, To::kStream>,
                                    RunFolds<Line, Into::kPastL2, To::kCached>,
                                    RunFolds<Line, Into::kPastL2, To::kStream>,
                                    AskFirst,
                                    SumFolds<Line, Into::kPastL2>};

const CopyKernels kIntelAvx512Kernels = {"avx512",
                                         RunFolds<Line, Into::kL2, To::kStream>,
                                         RunFolds<Line, Into::kL2, To::kCached>,
                                         RunFolds<Line, Into::kL2, To::kStream>,
                                         AskFirst,
                                         SumFolds<Line, Into::kL2>};

}  // namespace cistern::record
