// SPDX-License-Identifier: Apache-2.0
// What is shown and is no code: data/*.html of this folder, built in.
#pragma once

#include <string_view>

namespace cistern::admin {

// The page at /: one document, which asks /status and nothing else.
std::string_view DataPage();

}  // namespace cistern::admin
