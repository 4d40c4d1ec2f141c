// SPDX-License-Identifier: Apache-2.0
// cisternd: the node of a host. Serves until SIGTERM, SIGINT or, with --linger, until it has had no client
// for so long; then drains within five seconds. While it starts they end it at once. SIGHUP reads the
// configuration file again. What it holds stays in its memory directory and is there again at the next start.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "base/log.h"
#include "base/units.h"
#include "command_line.h"
#include "memory/huge_page_process.h"
#include "node/configuration.h"
#include "node/node.h"
#include "node/node_metrics.h"
#include "node/start_check.h"
#include "record/verified_copy.h"

namespace cistern {
namespace {

constexpr std::int64_t kDrainUs = 4'500'000;

// To a supervisor that asked to be told, as systemd does for units of Type=notify. Nobody minds if it is not.
void TellSupervisor(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{.sun_family = AF_UNIX};
  if (path == nullptr || std::strlen(path) >= sizeof(address.sun_path)) return;
  std::strcpy(address.sun_path, path);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  static_cast<void>(::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                             reinterpret_cast<const sockaddr*>(&address), bytes));
}

// Ends the process at a signal until it is over: while the node starts nobody is served, what it holds is
// found again as after a kill, and a start may wait for a device or a file for as long as that likes. Where
// there is no descriptor for it, signals wait for who serves.
class EndsAtOnce {
 public:
  explicit EndsAtOnce(const sigset_t& signals)
      : signals_(::signalfd(-1, &signals, SFD_CLOEXEC)), over_(::eventfd(0, EFD_CLOEXEC)) {
    if (signals_.valid() && over_.valid()) thread_ = std::thread([this] { Await(); });
  }
  ~EndsAtOnce() {
    if (!thread_.joinable()) return;
    Over();
    thread_.join();
  }
  // A signal that comes from now on is left for who serves.
  void Over() const { ::eventfd_write(over_.get(), 1); }
  EndsAtOnce(const EndsAtOnce&) = delete;
  EndsAtOnce& operator=(const EndsAtOnce&) = delete;

 private:
  void Await() const {
    pollfd fds[] = {{.fd = signals_.get(), .events = POLLIN}, {.fd = over_.get(), .events = POLLIN}};
    while (::poll(fds, 2, -1) < 0) {
    }
    if (fds[1].revents != 0) return;
    // Nobody may read what it says.
    pollfd out{.fd = STDERR_FILENO, .events = POLLOUT};
    constexpr std::string_view kSaid = "cisternd: ended while it started\n";
    if (::poll(&out, 1, 0) == 1) static_cast<void>(::write(STDERR_FILENO, kSaid.data(), kSaid.size()));
    ::_exit(kExitOk);
  }

  const Fd signals_;
  const Fd over_;
  std::thread thread_;  // last: it uses the others
};

int Run(int argc, const char* const* argv) {
  node::NodeOptions flags;  // checks the texts alone
  node::ConfigurationSource source;
  CommandLine line(
      "cisternd",
      "The node of a host: keeps KV blocks in shared memory, and below it on flash, for the engines of\n"
      "this host.",
      "  cisternd --memory 16GiB\n"
      "  cisternd --memory 16GiB --flash /mnt/nvme0:800GiB --flash /mnt/nvme1:800GiB\n"
      "  cisternd --flash /dev/nvme1n1 --journal-dir /var/lib/cistern --flash-budget 2TiB/day\n"
      "  cisternd --config /etc/cistern/cistern.toml");
  line.Text("--config", "FILE",
            "configuration file (TOML): the same names with _, as in memory_dir = \"/dev/shm/kv\"",
            &source.file);
  line.Flag("--copy", "NAME",
            "for measurements: the copy kernel, avx512_lanes, avx512, avx2_vpclmulqdq, avx2, arm64 or "
            "portable; default: the fastest that this processor runs",
            record::ChooseKernels);
  bool check = false;
  line.Switch("--check", "says what is wrong with these settings on this host, and starts nothing", &check);
  bool metrics = false;
  line.Switch("--metrics", "says what /metrics and `cistern status` hold, as docs/metrics.md does", &metrics);
  std::deque<std::pair<std::string_view, bool>> switches;
  for (const node::Setting& setting : node::NodeSettings()) {
    const auto set = [&, name = setting.name](std::string_view text) {
      source.flags.emplace_back(name, text);
      return node::SetNodeOption(flags, node::FlagOf(name), name, text);
    };
    if (setting.value.empty()) {
      line.Switch(node::FlagOf(setting.name), node::HelpOf(setting),
                  &switches.emplace_back(setting.name, false).second);
    } else if (setting.clear != nullptr) {
      line.Flags(node::FlagOf(setting.name), setting.value, node::HelpOf(setting), set);
    } else {
      line.Flag(node::FlagOf(setting.name), setting.value, node::HelpOf(setting), set);
    }
  }
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (metrics) {
    std::printf("%s", node::MetricsOfDocs().c_str());
    return kExitOk;
  }
  for (const auto& [name, on] : switches) {
    if (on) source.flags.emplace_back(name, "true");
  }
  Result<node::NodeOptions> read = node::ReadConfiguration(source);
  if (!read) return Complain("cisternd", read.error());
  node::NodeOptions options = std::move(*read);

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
  const sigset_t ends = signals;
  sigaddset(&signals, SIGHUP);
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
  options.huge_page_program = "/proc/self/exe";
  Result<std::unique_ptr<node::Node>> node = [&] {
    const EndsAtOnce at_once(ends);
    options.on_serves = [&at_once] { at_once.Over(); };
    return node::Node::Start(options);
  }();
  if (!node) return Complain("cisternd", node.error());
  TellSupervisor("READY=1");
  for (int signal_number = 0; sigwait(&signals, &signal_number) == 0 && signal_number == SIGHUP;)
    static_cast<void>((*node)->Reload(node::ReadConfiguration(source)));
  TellSupervisor("STOPPING=1");
  (*node)->Stop(kDrainUs);
  std::lock_guard lock(why_mutex);
  return why.ok() ? kExitOk : Complain("cisternd", why);
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) {
  if (argc == 2 && argv[1] == cistern::memory::kHugePageWord) return cistern::memory::RunHugePageProcess();
  return cistern::RunProgram("cisternd", cistern::Run, argc, argv);
}
