// SPDX-License-Identifier: Apache-2.0
// A node's settings out of its file and its flags, at its start and at each reload.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "node/options.h"

namespace cistern::node {

struct ConfigurationSource {
  std::string file;  // empty: none
  // Settings by name and text, in the order of the command line; they go before the file's, and a list takes
  // the place of the file's.
  std::vector<std::pair<std::string, std::string>> flags;
};

// "--memory-dir" for memory_dir.
std::string FlagOf(std::string_view setting);

// Not resolved, but for the socket, which a daemon has. kInvalid names file and line, or the flag.
Result<NodeOptions> ReadConfiguration(const ConfigurationSource& source);

}  // namespace cistern::node
