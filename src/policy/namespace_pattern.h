// SPDX-License-Identifier: Apache-2.0
// Namespaces as an operator names them in settings.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace cistern::policy {

// The pattern is a namespace's name, or NAME=VALUE of one of its fields; `*` stands for any characters.
bool MatchesNamespace(std::string_view pattern, std::span<const std::string> names,
                      std::span<const std::pair<std::string, std::string>> fields);

}  // namespace cistern::policy
