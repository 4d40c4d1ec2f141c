// SPDX-License-Identifier: Apache-2.0
// Clients that do a node as much harm as a client of its user can, one kind each: what honest ones beside
// them are measured with (stranger_rows.cc) and tested with (tests/strangers/kinds_test.cc).
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "cistern/cistern.h"

namespace cistern {

// What a stranger is told.
struct StrangerTask {
  ConnectOptions connect;
  NamespaceSpec spec;           // of the honest ones' blocks
  std::vector<BlockKey> keys;   // that they read
  std::function<bool()> go_on;  // asked before each act; false: it lets go of all that it has and returns
  std::function<void()> begun;  // told once, when it has what it wants to hold
};

struct StrangerKind {
  std::string_view name;  // as in a row's
  std::string_view about;
  void (*run)(const StrangerTask& task);
};

std::span<const StrangerKind> StrangerKinds();

}  // namespace cistern
