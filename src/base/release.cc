// SPDX-License-Identifier: Apache-2.0
#include "base/release.h"

namespace cistern {

std::string_view Release() { return CISTERN_RELEASE; }

}  // namespace cistern
