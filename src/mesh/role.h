// SPDX-License-Identifier: Apache-2.0
// What a member of a cell is for.
#pragma once

#include <cstdint>
#include <string_view>

namespace cistern::mesh {

enum class Role : std::uint8_t {
  kEngine = 0,  // engines use it
  kStore = 1,   // room alone: the others hand on to it what leaves them, and it hands on nothing
};

constexpr std::string_view ToString(Role role) { return role == Role::kStore ? "store" : "engine"; }

}  // namespace cistern::mesh
