// SPDX-License-Identifier: Apache-2.0
#include "node/new_history.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/format.h"
#include "commands.h"
#include "node/cell_options.h"
#include "node/configuration.h"
#include "prompt.h"

namespace cistern {
namespace {

constexpr std::string_view kName = "cistern cell new-history";

// Of cisternd's settings, those that say which cell it is.
constexpr std::array<std::string_view, 6> kOfTheCell = {
    "cell", "cell_name", "cell_key", "etcd_authorities", "etcd_certificate", "etcd_key"};

}  // namespace

int RunCellNewHistory(int argc, const char* const* argv) {
  node::NodeOptions flags;  // checks the texts alone
  node::ConfigurationSource source;
  std::uint64_t deadline_us = kDefaultDeadlineUs;
  bool json = false;
  CommandLine line(
      kName,
      "Begin another history of the cell in its etcd, which was restored from a backup while no node ran: "
      "what was\ndropped since the backup is not known there. No node is asked and none has to run; every "
      "node of the cell gives\nup what it shares, when it starts or at once, and starts empty. "
      "Exits 1 where there is no such cell, or the key\nis not its own.",
      "  cistern cell new-history --config /etc/cistern/cistern.toml\n"
      "  cistern cell new-history --cell http://10.0.0.7:2379 --cell-key /etc/cistern/cell.key");
  line.Text("--config", "FILE",
            "a node's configuration file, for what the flags do not say; no node is asked", &source.file);
  for (const node::Setting& setting : node::NodeSettings()) {
    if (std::ranges::find(kOfTheCell, setting.name) == kOfTheCell.end()) continue;
    const auto set = [&, name = setting.name](std::string_view text) {
      source.flags.emplace_back(name, text);
      return node::SetNodeOption(flags, node::FlagOf(name), name, text);
    };
    if (setting.clear != nullptr) {
      line.Flags(node::FlagOf(setting.name), setting.value, node::HelpOf(setting), set);
    } else {
      line.Flag(node::FlagOf(setting.name), setting.value, node::HelpOf(setting), set);
    }
  }
  line.Duration("--deadline", "how long etcd may take to answer; default: 10s", &deadline_us);
  line.Switch("--json", "one JSON object on stdout", &json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  const Result<node::NodeOptions> options = node::ReadConfiguration(source);
  if (!options) return Complain(kName, options.error());
  const auto replaced = node::BeginNewHistory(*options, static_cast<std::int64_t>(deadline_us));
  if (!replaced) return Complain(kName, replaced.error());
  const std::string prefix = node::CellPrefix(*options), before = Hex(replaced->before),
                    now = Hex(replaced->now);
  if (json) {
    std::printf("{\"prefix\":%s,\"before\":\"%s\",\"history\":\"%s\"}\n", Quoted(prefix).c_str(),
                before.c_str(), now.c_str());
  } else {
    std::printf(
        "%s: history %s is now %s\n"
        "What the nodes share is given up, by each when it starts, or at once where one runs, "
        "and is computed anew:\nnothing that was dropped comes back. Start the nodes.\n",
        prefix.c_str(), before.c_str(), now.c_str());
  }
  return kExitOk;
}

}  // namespace cistern
