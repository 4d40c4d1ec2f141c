// SPDX-License-Identifier: Apache-2.0
// A string of JSON. Names are bytes: what is UTF-8 stays, any other byte stands for the code point of its
// number.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace cistern::admin {

inline void AppendJsonString(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const char c = text.front();
    const std::size_t length = Utf8Length(text);
    if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (length == 0 || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned char>(c));
      out += escaped;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length > 0 ? length : 1);
  }
  out += '"';
}

}  // namespace cistern::admin
