// SPDX-License-Identifier: Apache-2.0
#include "cistern/where.h"

#include <array>

namespace cistern {

std::string_view ToString(Where where) {
  static constexpr std::array<std::string_view, 4> kTexts = {"memory", "flash", "peer", "object"};
  static_assert(kTexts.size() == static_cast<std::size_t>(Where::kObject) + 1);
  const auto number = static_cast<std::size_t>(where);
  return number < kTexts.size() ? kTexts[number] : "unknown";
}

}  // namespace cistern
