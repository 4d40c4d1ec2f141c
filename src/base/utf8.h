// SPDX-License-Identifier: Apache-2.0
// Paths and fields hold any bytes; JSON has UTF-8 alone.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cistern {

// Bytes of the character that `text` begins with; 0: it begins with none of UTF-8.
std::size_t Utf8Length(std::string_view text);

// `text` as it is where it is UTF-8. Each byte that is not stands as the letter U+0100 + its value, so that
// names which differ stay apart.
std::string Utf8(std::string_view text);

}  // namespace cistern
