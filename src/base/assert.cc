// SPDX-License-Identifier: Apache-2.0
#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace cistern {

void AssertFailed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "cistern: assertion failed: %s (%s:%d)\n", expression, file, line);
  std::abort();
}

}  // namespace cistern
