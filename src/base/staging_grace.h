// SPDX-License-Identifier: Apache-2.0
// A write from the caller's own staging is answered when the node has let go of the bytes, which may be a
// copy later than the deadline. Both sides go by one bound: the client waits no longer, for its caller fills
// the staging anew then, and the store publishes nothing that was copied from it later (R6).
#pragma once

#include <cstdint>

namespace cistern {

inline constexpr std::int64_t kStagingGraceUs = 2'000'000;  // after the deadline

}  // namespace cistern
