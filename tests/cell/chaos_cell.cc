// SPDX-License-Identifier: Apache-2.0
#include "chaos_cell.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/format.h"
#include "free_ports.h"
#include "private_hosts.h"

namespace cistern::chaos {
namespace {

constexpr std::uint64_t kTmpfsBytes = std::uint64_t{192} << 20;  // of a node with 64 MiB
constexpr std::uint64_t kBitsASecond = 2'000'000'000, kSlowBitsASecond = 200'000'000;

}  // namespace

ChaosCell::~ChaosCell() {
  for (ChaosNode& node : nodes_) node.daemon.reset();
  etcd_.reset();
  for (const Host& host : hosts_) {
    if (apart_.ok()) PrivateHosts::Leave(host.directory);
  }
  std::error_code ignored;
  for (const std::string& made : {directory_, flash_}) {
    if (!made.empty()) std::filesystem::remove_all(made, ignored);
  }
}

Status ChaosCell::Start() {
  directory_ = "/dev/shm/cistern-chaos-XXXXXX";
  if (mkdtemp(directory_.data()) == nullptr)
    return Status(Code::kIoError, Text("no directory in /dev/shm: ", ErrnoText(errno)));
  for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].id = std::string(1, static_cast<char>('a' + i));
  if (Status status = MakeFlash(); !status.ok()) return status;
  if (Status status = MakeHosts(); !status.ok()) return status;
  const std::string key = directory_ + "/key";
  std::ofstream(key) << std::string(64, 'a') << "\n";
  ::chmod(key.c_str(), 0600);
  if (Status etcd = etcd_->Start(); !etcd.ok()) return etcd;
  if (endpoint_.empty()) endpoint_ = etcd_->endpoint();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (Status status = AddNode(i); !status.ok()) return status;
  }
  return AwaitAll();
}

// On a disk, beside the programs: a directory for each node.
Status ChaosCell::MakeFlash() {
  if (options_.flash_bytes == 0) return Status();
  const std::string program = DaemonBeside();
  std::string made = program.substr(0, program.rfind('/')) + "/chaos-flash-XXXXXX";
  if (mkdtemp(made.data()) == nullptr)
    return Status(Code::kIoError, Text(made, ": no directory can be made there"));
  flash_ = std::move(made);
  std::error_code failed;
  for (const ChaosNode& node : nodes_) {
    if (!std::filesystem::create_directory(flash_ + "/" + node.id, failed))
      return Status(Code::kIoError, Text(flash_, "/", node.id, ": ", failed.message()));
  }
  return Status();
}

Status ChaosCell::MakeHosts() {
  apart_ = PrivateHosts::Enter();
  if (!apart_.ok() && apart_.code() != Code::kDenied && apart_.code() != Code::kMiss) return apart_;
  if (!apart_.ok()) {
    etcd_.emplace();
    for (std::size_t i = 0; i < nodes_.size(); ++i) hosts_.push_back({.directory = directory_});
    return Status();
  }
  endpoint_ = Text("http://", PrivateHosts::kOwnAddress, ":2379");
  etcd_.emplace(
      std::vector<std::string>{"--listen-client-urls", endpoint_, "--advertise-client-urls", endpoint_});
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const std::string directory = directory_ + "/" + nodes_[i].id;
    auto made = PrivateHosts::Make(i + 1, directory, kTmpfsBytes);
    if (!made) return made.error();
    hosts_.push_back({made->address, directory, made->prefix});
    const bool slow = i + 1 == nodes_.size();
    if (Status limit = PrivateHosts::Limit(i + 1, slow ? kSlowBitsASecond : kBitsASecond); !limit.ok())
      return limit;
  }
  return Status();
}

std::vector<std::string> ChaosCell::FlagsOf(std::size_t node) const {
  const ChaosNode& of = nodes_[node];
  const std::uint16_t port = apart_.ok() ? 7000 : FreePorts();
  std::vector<std::string> flags = {"--memory",       "64MiB",
                                    "--cell",         endpoint_,
                                    "--member",       of.id,
                                    "--cell-address", Text(hosts_[node].address, ":", port),
                                    "--cell-key",     directory_ + "/key",
                                    "--log-level",    "error"};
  // Which every release knows.
  if (!options_.other.empty()) {
    flags.insert(flags.end(), {"--copy", "portable"});
  } else {
    // They differ, as on hosts with more and fewer processors.
    flags.insert(flags.end(), {"--cell-rail-threads", Text(1 + node % 3)});
  }
  if (options_.flash_bytes > 0) {
    flags.emplace_back("--flash");
    flags.push_back(Text(flash_, "/", of.id, ":", options_.flash_bytes, "B"));
  }
  return flags;
}

// A port may be taken between its choice and its use.
Status ChaosCell::AddNode(std::size_t node) {
  Status why;
  for (int attempt = 0; attempt < 5; ++attempt) {
    Result<Daemon> daemon =
        Daemon::Start(DaemonBeside(), hosts_[node].directory, FlagsOf(node), hosts_[node].prefix);
    if (daemon) {
      nodes_[node].daemon.emplace(std::move(*daemon));
      ++nodes_[node].starts;
      return Status();
    }
    why = daemon.error();
  }
  return why;
}

Status ChaosCell::AwaitAll() {
  SystemClock clock;
  const Instant until = clock.Now().PlusUs(kWatchdogUs);
  for (ChaosNode& node : nodes_) {
    for (;;) {
      Result<Store> store = node.daemon->Connect();
      const std::string says = store ? store->StatusJson(kCallUs).value_or("") : "";
      if (says.find("\"joined\":true") != std::string::npos &&
          says.find(Text("\"reachable\":", nodes_.size() - 1, ",")) != std::string::npos)
        break;
      if (clock.Now() > until)
        return Status(Code::kTooLate, Text("node ", node.id, " does not join; it says: ", says));
      poll(nullptr, 0, 10);
    }
  }
  return Status();
}

void ChaosCell::KillNode(std::size_t node) {
  ++nodes_[node].starts;
  nodes_[node].daemon->Kill();
}

Status ChaosCell::StartNode(std::size_t node) {
  ChaosNode& of = nodes_[node];
  of.is_other = !options_.other.empty() && !of.is_other;
  of.daemon->Become(of.is_other ? options_.other : DaemonBeside());
  if (Status exec = of.daemon->Exec(); !exec.ok()) return exec;
  ++of.starts;
  return Status();
}

void ChaosCell::Stop(std::size_t node) {
  ++nodes_[node].pauses;
  ::kill(nodes_[node].daemon->pid(), SIGSTOP);
}

void ChaosCell::GoOn(std::size_t node) {
  ::kill(nodes_[node].daemon->pid(), SIGCONT);
  ++nodes_[node].pauses;
}

Status ChaosCell::SetLink(std::size_t node, bool up) {
  if (!up) ++nodes_[node].pauses;
  Status status = PrivateHosts::SetLink(node + 1, up);
  if (up) ++nodes_[node].pauses;
  return status;
}

Status ChaosCell::SetWay(std::size_t from, std::optional<std::size_t> to, bool open) {
  if (!open) ++nodes_[from].pauses;
  Status status = PrivateHosts::SetWay(from + 1, to ? *to + 1 : PrivateHosts::kEtcd, open);
  if (open) ++nodes_[from].pauses;
  return status;
}

}  // namespace cistern::chaos
