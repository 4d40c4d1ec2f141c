// SPDX-License-Identifier: Apache-2.0
// A table of values and what people call them: std::array<std::pair<Value, std::string_view>, N>.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "base/format.h"
#include "base/nearest.h"
#include "cistern/status.h"

namespace cistern {

template <class Table>
std::string_view NameIn(const Table& table, const typename Table::value_type::first_type& value) {
  const auto named = std::ranges::find(table, value, &Table::value_type::first);
  return named == table.end() ? "unknown" : named->second;
}

// "lru, reuse, ..."
template <class Table>
std::string NamesIn(const Table& table) {
  std::string list;
  for (const auto& [value, name] : table) AppendText(list, Text(list.empty() ? "" : ", ", name));
  return list;
}

// kInvalid: no value has the name. `what` each of them is: "router".
template <class Table>
Result<typename Table::value_type::first_type> FindNamed(const Table& table, std::string_view what,
                                                         std::string_view name) {
  const auto named = std::ranges::find(table, name, &Table::value_type::second);
  if (named != table.end()) return named->first;
  return Error(Code::kInvalid, Text("there is no ", what, " '", Shown(name), "'; known: ", NamesIn(table)));
}

}  // namespace cistern
