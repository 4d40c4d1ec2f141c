// SPDX-License-Identifier: Apache-2.0
#include "local_cell.h"

#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "base/format.h"
#include "bench_node.h"
#include "free_ports.h"
#include "measure.h"

namespace cistern {
namespace {

constexpr std::int64_t kWaitNs = 300'000'000'000;
constexpr int kAttempts = 5;  // a port may be taken between its choice and its use

// Asks every few milliseconds, for five minutes; an answer that is late is none yet.
Status Await(const std::string& what, const std::function<Result<bool>()>& so) {
  for (const Stopwatch watch; watch.Ns() < kWaitNs;) {
    Result<bool> is = so();
    if (!is && is.error().code() != Code::kTooLate) return is.error();
    if (is && *is) return Status();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return Status(Code::kTooLate, Text(what, " did not happen within five minutes"));
}

}  // namespace

Result<std::unique_ptr<LocalCell>> LocalCell::Start(std::string daemon, const std::string& parent_dir,
                                                    bool sealed, const std::string& etcd_address) {
  std::string directory = parent_dir + "/cistern-cell-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr)
    return Error(Code::kInvalid, Text(parent_dir, ": no directory can be made there: ", ErrnoText(errno)));
  std::unique_ptr<LocalCell> cell(new LocalCell(std::move(daemon), std::move(directory), etcd_address));
  if (sealed) {
    cell->key_ = cell->directory_ + "/key";
    std::ofstream(cell->key_) << std::string(64, '5') << "\n";
    ::chmod(cell->key_.c_str(), 0600);
  }
  if (Status status = cell->etcd_.Start(); !status.ok()) return Error(status);
  return cell;
}

// Where nothing but the cell is, etcd has its usual port.
LocalCell::LocalCell(std::string daemon, std::string directory, const std::string& etcd_address)
    : daemon_(std::move(daemon)),
      directory_(std::move(directory)),
      etcd_(etcd_address.empty()
                ? std::vector<std::string>()
                : std::vector<std::string>{"--listen-client-urls", Text("http://", etcd_address, ":2379"),
                                           "--advertise-client-urls",
                                           Text("http://", etcd_address, ":2379")}),
      endpoint_(etcd_address.empty() ? "" : Text("http://", etcd_address, ":2379")) {}

LocalCell::~LocalCell() {
  nodes_.clear();
  etcd_.Kill();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

Status LocalCell::Add(const std::vector<std::string>& flags, const Place& place) {
  Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::vector<std::string> all = {"--cell",         endpoint_.empty() ? etcd_.endpoint() : endpoint_,
                                    "--member",       Text("node", nodes_.size() + 1),
                                    "--cell-address", Text(place.address, ":", FreePorts()),
                                    "--log-level",    "error"};
    if (!key_.empty()) all.insert(all.end(), {"--cell-key", key_});
    all.insert(all.end(), flags.begin(), flags.end());
    Result<Daemon> daemon = Daemon::Start(daemon_, place.parent_dir.empty() ? directory_ : place.parent_dir,
                                          std::move(all), place.prefix);
    Result<Store> store = daemon ? daemon->Connect() : Error(daemon.error());
    if (store) {
      nodes_.push_back({std::move(*daemon), std::move(*store)});
      return Status();
    }
    status = store.error();
  }
  return status;
}

Status LocalCell::ComeTogether() {
  const std::string all = Text("\"reachable\":", nodes_.size() - 1, ",");
  for (Node& node : nodes_) {
    if (Status grown = AwaitMemory(node.store); !grown.ok()) return grown;
  }
  return Await("a cell", [&]() -> Result<bool> {
    for (Node& node : nodes_) {
      const Result<std::string> says = node.store.StatusJson();
      if (!says) return Error(says.error());
      if (says->find("\"joined\":true") == std::string::npos || says->find(all) == std::string::npos)
        return false;
    }
    return true;
  });
}

Status LocalCell::Restart(std::size_t node) {
  if (Status status = nodes_[node].daemon.Exec(); !status.ok()) return status;
  Result<Store> store = nodes_[node].daemon.Connect();
  if (!store) return store.error();
  nodes_[node].store = std::move(*store);
  return ComeTogether();
}

bool HasEtcd(BenchOptions& options, const std::string& name) {
  if (etcd::TestEtcd::Installed()) return true;
  options.row({.name = name, .limit = "(etcd is not here)"});
  return false;
}

Status AwaitFound(Store& store, const Namespace& ns, std::span<const BlockKey> chain) {
  return Await("that a peer's blocks are found", [&]() -> Result<bool> {
    const Result<MatchResult> match = store.Match(ns, chain).Wait();
    if (!match) return Error(match.error());
    return match->blocks == chain.size();
  });
}

}  // namespace cistern
