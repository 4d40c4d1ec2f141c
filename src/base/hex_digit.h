// SPDX-License-Identifier: Apache-2.0
// A hexadecimal digit as people write it.
#pragma once

namespace cistern {

// Its value; -1 where it is none.
constexpr int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace cistern
