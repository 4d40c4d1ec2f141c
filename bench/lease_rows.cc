// SPDX-License-Identifier: Apache-2.0
// How long leases outlive the client that took them and was killed, with and without a living forked child.
#include <fcntl.h>
#include <unistd.h>

#include <boost/json/parse.hpp>

#include "base/fd.h"
#include "bench_node.h"
#include "child.h"
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

struct Pipe {
  Fd from, to;
};

Result<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Error(Code::kIoError, "no pipe");
  return Pipe{.from = Fd(ends[0]), .to = Fd(ends[1])};
}

// A client process that leases all blocks, writes a byte to `ready` and waits to be killed; with a child, so
// does a fork of it, which has the same descriptors and lives on until `lives` has no writer any more.
void LeasingClient(const Daemon& daemon, int ready, int lives, bool with_child) {
  Result<Store> store = daemon.Connect();
  if (!store) _exit(1);
  Result<FilledBlocks> blocks = Fill(*store, kBlocks, kBlockBytes);
  if (!blocks) _exit(1);
  Result<Lease> lease = LeaseAll(*store, *blocks);
  if (!lease) _exit(1);
  char byte = 1;
  const pid_t child = with_child ? fork() : getpid();
  if (child == 0) _exit(static_cast<int>(read(lives, &byte, 1)));
  if (child < 0 || write(ready, &byte, 1) != 1) _exit(1);
  while (true) pause();
}

Status Measure(BenchOptions& options, const Daemon& daemon, Store& store, bool with_child) {
  Samples series;
  for (std::uint64_t round = 0; round < options.rounds; ++round) {
    Result<Pipe> ready = MakePipe(), lives = MakePipe();
    if (!ready) return ready.error();
    if (!lives) return lives.error();
    const Result<Child> client = Child::Start([&] {
      lives->to.Close();
      LeasingClient(daemon, ready->to.get(), lives->from.get(), with_child);
    });
    if (!client) return client.error();
    ready->to.Close();
    char byte;
    const bool told = read(ready->from.get(), &byte, 1) == 1;
    Result<std::int64_t> before = Leases(store);
    Stopwatch watch;
    client->Kill();
    Result<std::int64_t> now = before;
    while (now && *now > 0) now = Leases(store);
    series.call_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
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
  Result<Daemon> daemon = StartNode(options, {"--memory", "256MiB"});
  if (!daemon) return daemon.error();
  Result<Store> store = daemon->Connect();
  if (!store) return store.error();
  for (bool with_child : {false, true}) {
    if (Status status = Measure(options, *daemon, *store, with_child); !status.ok()) return status;
  }
  return Status();
}

}  // namespace cistern
