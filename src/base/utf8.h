// SPDX-License-Identifier: Apache-2.0
// Paths and fields hold any bytes; JSON has UTF-8 alone.
#pragma once

#include <string>
#include <string_view>

namespace cistern {

// `text` as it is where it is UTF-8, with a ? for each byte that is not.
std::string Utf8(std::string_view text);

}  // namespace cistern
