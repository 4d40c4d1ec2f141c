// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

namespace cistern {

std::size_t Utf8Length(std::string_view text) {
  const auto byte = [&](std::size_t at) {
    return static_cast<unsigned char>(at < text.size() ? text[at] : 0);
  };
  const unsigned char first = byte(0);
  const std::size_t length = text.empty()                    ? 0
                             : first < 0x80                  ? 1
                             : first >= 0xc2 && first < 0xe0 ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  bool good = true;
  for (std::size_t k = 1; k < length; ++k) good = good && (byte(k) & 0xc0) == 0x80;
  // Overlong forms, surrogates and what lies past the last code point.
  if (first == 0xe0 && byte(1) < 0xa0) good = false;
  if (first == 0xed && byte(1) >= 0xa0) good = false;
  if (first == 0xf0 && byte(1) < 0x90) good = false;
  if (first == 0xf4 && byte(1) >= 0x90) good = false;
  return good ? length : 0;
}

std::string Utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const std::size_t length = Utf8Length(text);
    if (length > 0) {
      valid.append(text.substr(0, length));
    } else {
      const unsigned letter = 0x100u + static_cast<unsigned char>(text.front());
      valid += static_cast<char>(0xc0 | letter >> 6);
      valid += static_cast<char>(0x80 | (letter & 0x3f));
    }
    text.remove_prefix(length > 0 ? length : 1);
  }
  return valid;
}

}  // namespace cistern
