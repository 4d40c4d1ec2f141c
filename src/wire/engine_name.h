// SPDX-License-Identifier: Apache-2.0
// What an engine may be called: a word that stands in a command line, a log, JSON and a label of a metric.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "base/format.h"
#include "base/nearest.h"
#include "cistern/status.h"

namespace cistern::wire {

inline constexpr std::size_t kMaxEngineNameBytes = 64;

// kInvalid says what is wrong, where, and what may be.
inline Status CheckEngineName(std::string_view name) {
  if (name.empty() || name.size() > kMaxEngineNameBytes) {
    return Status(Code::kInvalid, Text("engine_name has ", name.size(),
                                       " bytes, and an engine's name has 1 to ", kMaxEngineNameBytes));
  }
  const auto odd = std::ranges::find_if(name, [](char c) { return c <= ' ' || c > '~'; });
  if (odd == name.end()) return Status();
  return Status(Code::kInvalid,
                Text("engine_name is ", Shown(name), ": byte ", odd - name.begin(),
                     " is none of the visible ASCII characters, of which an engine's name is made"));
}

}  // namespace cistern::wire
