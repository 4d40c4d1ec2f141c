// SPDX-License-Identifier: Apache-2.0
// The verified copy in 64-byte registers for processors that load and store a whole one each cycle.
#include "record/avx512_line.h"
#include "record/copy_by_folds.h"
#include "record/copy_by_lanes.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {

constinit const CopyKernels kAvx512LanesKernels =
    Lanes<Zen5, FoldedLanes<Line>, Folds<Line, Zen5::kInto>>::Table("avx512_lanes");
constinit const CopyKernels kIntelAvx512LanesKernels =
    Lanes<Intel, FoldedLanes<Line>, Folds<Line, Into::kL2>>::Table("avx512_lanes");

}  // namespace cistern::record
