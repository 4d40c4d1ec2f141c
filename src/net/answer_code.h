// SPDX-License-Identifier: Apache-2.0
// The code of an answer as it travels, on control connections and rails: a byte.
#pragma once

#include <cstdint>

#include "cistern/status.h"

namespace cistern::net {

// One of a later version is a reason, which this side cannot act on: kMismatch.
inline Code CodeSaid(std::uint8_t code) {
  return code > static_cast<std::uint8_t>(kLastCode) ? Code::kMismatch : static_cast<Code>(code);
}

}  // namespace cistern::net
