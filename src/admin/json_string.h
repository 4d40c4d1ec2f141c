// SPDX-License-Identifier: Apache-2.0
// A string of JSON. Names are bytes: what is no UTF-8 is spelled as by Utf8.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace cistern::admin {

inline void AppendJsonString(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : Utf8(text)) {
    if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned char>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace cistern::admin
