// SPDX-License-Identifier: Apache-2.0
// cisternd: the node of a host. Serves until SIGTERM, SIGINT or, with --linger, until it has had no client
// for so long; then drains within five seconds. What it holds stays in its memory directory and is there
// again at the next start.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "base/units.h"
#include "command_line.h"
#include "node/node.h"
#include "node/node_metrics.h"
#include "record/verified_copy.h"
#include "wire/socket_path.h"

namespace cistern {
namespace {

constexpr std::int64_t kDrainUs = 4'500'000;

std::string FlagOf(std::string_view setting) {
  std::string flag = "--" + std::string(setting);
  for (char& c : flag) c = c == '_' ? '-' : c;
  return flag;
}

int Run(int argc, const char* const* argv) {
  node::NodeOptions options, flags;
  std::string config;
  std::vector<std::pair<std::string_view, std::string>> given;
  CommandLine line(
      "cisternd",
      "The node of a host: keeps KV blocks in shared memory, and below it on flash, for the engines of\n"
      "this host.",
      "  cisternd --memory 16GiB\n"
      "  cisternd --memory 16GiB --flash /mnt/nvme0:800GiB --flash /mnt/nvme1:800GiB\n"
      "  cisternd --flash /dev/nvme1n1 --journal-dir /var/lib/cistern --flash-budget 2TiB/day\n"
      "  cisternd --config /etc/cistern.toml");
  line.Text("--config", "FILE",
            "configuration file (TOML): the same names with _, as in memory_dir = \"/dev/shm/kv\"", &config);
  line.Flag("--copy", "NAME",
            "for measurements: the copy kernel, avx512_lanes, avx512, avx2_vpclmulqdq, avx2, arm64 or "
            "portable; default: "
            "the fastest "
            "that this processor runs",
            record::ChooseKernels);
  bool check = false;
  line.Switch("--check", "says what is wrong with these settings on this host, and starts nothing", &check);
  bool metrics = false;
  line.Switch("--metrics", "says what /metrics and `cistern status` hold, as docs/metrics.md does", &metrics);
  std::deque<std::pair<std::string_view, bool>> switches;
  for (const node::Setting& setting : node::NodeSettings()) {
    const auto set = [&, name = setting.name](std::string_view text) {
      given.emplace_back(name, text);
      return node::SetNodeOption(flags, FlagOf(name), name, text);
    };
    if (setting.value.empty()) {
      line.Switch(FlagOf(setting.name), node::HelpOf(setting),
                  &switches.emplace_back(setting.name, false).second);
    } else if (setting.clear != nullptr) {
      line.Flags(FlagOf(setting.name), setting.value, node::HelpOf(setting), set);
    } else {
      line.Flag(FlagOf(setting.name), setting.value, node::HelpOf(setting), set);
    }
  }
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (metrics) {
    std::printf("%s", node::MetricsOfDocs().c_str());
    return kExitOk;
  }
  for (const auto& [name, on] : switches) {
    if (on) given.emplace_back(name, "true");
  }
  if (!config.empty()) {
    if (Status status = node::ApplyConfigFile(options, config); !status.ok())
      return Complain("cisternd", status);
  }
  // Checked above. A list on the command line takes the place of the file's.
  for (const auto& [name, text] : given) {
    if (const node::Setting* setting = node::FindNodeSetting(name); setting->clear != nullptr)
      setting->clear(options);
  }
  for (const auto& [name, text] : given) (void)node::SetNodeOption(options, name, name, text);
  if (options.socket.empty()) options.socket = wire::DefaultSocketPath();

  if (check) {
    Status status = node::ResolveNodeOptions(options);
    if (status.ok()) status = node::CheckNodeOptions(options);
    return status.ok() ? kExitOk : Complain("cisternd", status);
  }

  // Taken by this thread alone: blocked before the node's threads start, so that they inherit it.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  Status why;
  std::mutex why_mutex;
  options.on_ends = [&](const Status& said) {
    {
      std::lock_guard lock(why_mutex);
      why = said;
    }
    kill(getpid(), SIGTERM);
  };
  Result<std::unique_ptr<node::Node>> node = node::Node::Start(options);
  if (!node) return Complain("cisternd", node.error());
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  (*node)->Stop(kDrainUs);
  std::lock_guard lock(why_mutex);
  return why.ok() ? kExitOk : Complain("cisternd", why);
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::RunProgram("cisternd", cistern::Run, argc, argv); }
