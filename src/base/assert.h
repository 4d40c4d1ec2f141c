// SPDX-License-Identifier: Apache-2.0
// What must be true, checked in every build. A failed assertion ends the process: the store survives a
// kill, it does not survive a wrong decision.
#pragma once

namespace cistern {
[[noreturn]] void AssertFailed(const char* expression, const char* file, int line);
}  // namespace cistern

#define CISTERN_ASSERT(expression) \
  (static_cast<bool>(expression) ? void(0) : ::cistern::AssertFailed(#expression, __FILE__, __LINE__))
