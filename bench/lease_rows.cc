// SPDX-License-Identifier: Apache-2.0
// How long leases outlive the client that took them and was killed, with and without a living forked child.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json/parse.hpp>

#include "base/format.h"
#include "daemon.h"
#include "fill.h"
#include "measure.h"

namespace cistern {
namespace {

constexpr std::size_t kBlocks = 256;
constexpr std::uint64_t kBlockBytes = 64u << 10;

Result<std::int64_t> Leases(Store& store) {
  Result<std::string> text = store.StatusJson();
  if (!text) return Error(text.error());
  boost::system::error_code error;
  boost::json::value status = boost::json::parse(*text, error);
  if (error) return Error(Code::kMismatch, "the node's status is not JSON");
  return status.at("now").at("leases").to_number<std::int64_t>();
}

// A client process that leases all blocks, writes a byte to `ready` and waits to be killed; with a child, so
// does a fork of it that lives on with the same descriptors, whose pid goes into the pipe after the byte.
[[noreturn]] void LeasingClient(const Daemon& daemon, int ready, bool with_child) {
  Result<Store> store = daemon.Connect();
  if (!store) _exit(1);
  Result<FilledBlocks> blocks = Fill(*store, kBlocks, kBlockBytes);
  if (!blocks) _exit(1);
  Result<Lease> lease = LeaseAll(*store, *blocks);
  if (!lease) _exit(1);
  pid_t child = with_child ? fork() : 0;
  if (with_child && child == 0) {
    while (true) pause();
  }
  if (write(ready, &child, sizeof(child)) != sizeof(child)) _exit(1);
  while (true) pause();
}

Status Measure(BenchOptions& options, const Daemon& daemon, Store& store, bool with_child) {
  Samples series;
  for (std::uint64_t round = 0; round < options.rounds; ++round) {
    int ready[2];
    if (pipe(ready) != 0) return Status(Code::kIoError, "no pipe");
    pid_t client = fork();
    if (client == 0) LeasingClient(daemon, ready[1], with_child);
    close(ready[1]);
    pid_t child = 0;
    bool told = read(ready[0], &child, sizeof(child)) == sizeof(child);
    close(ready[0]);
    Result<std::int64_t> before = Leases(store);
    Stopwatch watch;
    kill(client, SIGKILL);
    Result<std::int64_t> now = before;
    while (now && *now > 0) now = Leases(store);
    series.call_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
    waitpid(client, nullptr, 0);
    if (child > 0) kill(child, SIGKILL);
    if (!told || !before || *before == 0) return Status(Code::kMiss, "the client to be killed got no lease");
    if (!now) return now.error();
  }
  options.row(
      TimeRow(with_child ? "leases_of_a_killed_client_with_a_living_child" : "leases_of_a_killed_client", "",
              series, {}));
  return Status();
}

}  // namespace

Status BenchLeases(BenchOptions& options) {
  options.progress("leases of a killed client");
  Result<Daemon> daemon = Daemon::Start(options.daemon, options.memory_dir, {"--memory", "256MiB"});
  if (!daemon) return daemon.error();
  Result<Store> store = daemon->Connect();
  if (!store) return store.error();
  for (bool with_child : {false, true}) {
    if (Status status = Measure(options, *daemon, *store, with_child); !status.ok()) return status;
  }
  return Status();
}

}  // namespace cistern
