// SPDX-License-Identifier: Apache-2.0
// Namespaces as an operator names them in settings.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace cistern::policy {

using NamedValues = std::span<const std::pair<std::string, std::string>>;

// The pattern is a namespace's name, or NAME=VALUE of one of its fields or labels; `*` stands for any
// characters.
bool MatchesNamespace(std::string_view pattern, std::span<const std::string> names, NamedValues fields,
                      NamedValues labels = {});

}  // namespace cistern::policy
