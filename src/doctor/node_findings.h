// SPDX-License-Identifier: Apache-2.0
// What a running node's status says of how it does: decisions on plain values.
#pragma once

#include <optional>
#include <string_view>

#include "doctor/finding.h"
#include "doctor/host.h"
#include "node/options.h"

namespace cistern::doctor {

// What the status says of the node itself, for who looks at its process and its directories.
struct NodeBasics {
  std::uint64_t pid = 0;
  std::string memory_dir;
  std::string tenant;
  std::uint64_t memory_bytes = 0;  // with which its arena is made
  std::vector<FlashVolume> flash;  // its devices, with what it may use of them
  std::string journal;             // its directory
};
// None where the text is no status of a node.
std::optional<NodeBasics> BasicsOf(std::string_view status_json);

// `status_json` as Store::StatusJson gives it; `asked`: what the configuration file says, resolved; none: it
// was not given.
Findings FindingsOfNode(std::string_view status_json, const HostFacts& facts,
                        const std::optional<node::NodeOptions>& asked);

}  // namespace cistern::doctor
