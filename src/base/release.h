// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace cistern {

// Of which this program is, as its package is called: "0.1.0". The build says it, in one place.
std::string_view Release();

}  // namespace cistern
