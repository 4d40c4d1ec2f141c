// SPDX-License-Identifier: Apache-2.0
// What the subcommands for people at a prompt share: which node, which namespace, keys in hex, --json.
#pragma once

#include <string>
#include <vector>

#include "cistern/cistern.h"
#include "command_line.h"

namespace cistern {

struct Prompt {
  ConnectOptions connect;
  std::string namespace_name;
  std::string mesh;  // on, off; empty: as its users said
  bool strict = false;
  std::uint64_t deadline_us = static_cast<std::uint64_t>(kDefaultDeadlineUs);
  bool json = false;

  // --socket, --tenant, --deadline, --json, and with `with_namespace` --namespace, --strict, --mesh.
  void AddTo(CommandLine& line, bool with_namespace);
};

struct Attachment {
  Store store;
  Namespace ns;
};

// Connects and attaches the namespace that --namespace NAME stands for: the list {name: NAME}, one full
// group, one part of any length, strict where --strict says so. kMiss for one that the node does not know,
// unless `if_new` makes it.
enum class IfNew : bool { kMake, kRefuse };
Result<Attachment> AttachByName(const Prompt& prompt, IfNew if_new = IfNew::kMake);

// Asked after a miss: why nothing of the namespace is found, and the way out, where reads are off, the node
// drains, or the namespace is strict and the membership lapsed. Empty: none is so, or the node does not say.
std::string WhyReadsAreOff(Attachment& at, std::int64_t deadline_us);

// kInvalid names the key that is not one.
Result<std::vector<BlockKey>> KeysFromHex(const std::vector<std::string>& texts);

}  // namespace cistern
