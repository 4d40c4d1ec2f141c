// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstddef>

namespace cistern {

std::string Utf8(std::string_view text) {
  std::string valid;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) {
      return static_cast<unsigned char>(at < text.size() ? text[at] : 0);
    };
    const unsigned char first = byte(i);
    const std::size_t length = first < 0x80                    ? 1
                               : first >= 0xc2 && first < 0xe0 ? 2
                               : first >= 0xe0 && first < 0xf0 ? 3
                               : first >= 0xf0 && first < 0xf5 ? 4
                                                               : 0;
    bool good = length > 0;
    for (std::size_t k = 1; k < length; ++k) good = good && (byte(i + k) & 0xc0) == 0x80;
    // Overlong forms, surrogates and what lies past the last code point.
    if (first == 0xe0 && byte(i + 1) < 0xa0) good = false;
    if (first == 0xed && byte(i + 1) >= 0xa0) good = false;
    if (first == 0xf0 && byte(i + 1) < 0x90) good = false;
    if (first == 0xf4 && byte(i + 1) >= 0x90) good = false;
    if (good) {
      valid.append(text.substr(i, length));
      i += length;
    } else {
      valid += '?';
      ++i;
    }
  }
  return valid;
}

}  // namespace cistern
