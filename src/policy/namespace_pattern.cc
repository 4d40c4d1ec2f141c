// SPDX-License-Identifier: Apache-2.0
#include "policy/namespace_pattern.h"

#include <algorithm>

#include "policy/quota.h"

namespace cistern::policy {

bool MatchesNamespace(std::string_view pattern, std::span<const std::string> names, NamedValues fields,
                      NamedValues labels) {
  if (std::ranges::any_of(names, [&](const std::string& name) { return MatchesPattern(pattern, name); }))
    return true;
  const std::size_t equals = pattern.find('=');
  if (equals == std::string_view::npos) return false;
  const auto has = [&](const auto& field) {
    return field.first == pattern.substr(0, equals) &&
           MatchesPattern(pattern.substr(equals + 1), field.second);
  };
  return std::ranges::any_of(fields, has) || std::ranges::any_of(labels, has);
}

}  // namespace cistern::policy
