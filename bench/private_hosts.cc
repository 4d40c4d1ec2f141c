// SPDX-License-Identifier: Apache-2.0
#include "private_hosts.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/format.h"
#include "command.h"

namespace cistern {
namespace {

Status Run(const std::vector<std::string>& command) {
  const Result<std::string> said = OutputOf(command);
  if (said) return Status();
  std::string line;
  for (const std::string& word : command) line += word + " ";
  return Status(said.error().code(), Text(line, "failed: ", said.error().message()));
}

// `ip` with these words.
Status Ip(std::vector<std::string> words) {
  words.insert(words.begin(), "ip");
  return Run(words);
}

Status All(const std::vector<std::vector<std::string>>& commands) {
  for (const std::vector<std::string>& words : commands) {
    if (Status status = Ip(words); !status.ok()) return status;
  }
  return Status();
}

std::string NameOf(std::uint64_t number) { return Text("node", number); }
std::string LinkTo(std::uint64_t number) { return Text("to-node", number); }
std::string AddressOf(std::uint64_t number) { return Text("10.77.0.", number); }

Result<std::string> ProgramIp() {
  for (const char* path : {"/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"}) {
    if (access(path, X_OK) == 0) return std::string(path);
  }
  return Error(Code::kMiss, "there is no `ip` here: Debian's iproute2 has it");
}

}  // namespace

Status PrivateHosts::Enter() {
  if (geteuid() != 0) return Status(Code::kDenied, "only root makes network namespaces");
  if (Result<std::string> ip = ProgramIp(); !ip) return ip.error();
  if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0)
    return Status(Code::kDenied, Text("network namespaces are not allowed here: ", ErrnoText(errno)));
  // `ip netns` keeps names in /run/netns, which is nobody else's from here on.
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", "/run", "tmpfs", 0, "mode=0755") != 0 || mkdir("/run/netns", 0755) != 0)
    return Status(Code::kIoError, Text("mounting for network namespaces: ", ErrnoText(errno)));
  return All({{"link", "set", "lo", "up"},
              {"link", "add", "cistern", "type", "bridge"},
              {"address", "add", Text(kOwnAddress, "/24"), "dev", "cistern"},
              {"link", "set", "cistern", "up"}});
}

Result<LocalCell::Place> PrivateHosts::Make(std::uint64_t number, const std::string& directory,
                                            std::uint64_t bytes) {
  const std::string name = NameOf(number), link = LinkTo(number), address = AddressOf(number);
  if (mkdir(directory.c_str(), 0700) != 0 ||
      mount("tmpfs", directory.c_str(), "tmpfs", 0, Text("mode=0700,size=", bytes).c_str()) != 0)
    return Error(Code::kIoError, Text(directory, ": no tmpfs: ", ErrnoText(errno)));
  Status made = All({{"netns", "add", name},
                     {"link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name},
                     {"link", "set", link, "master", "cistern", "up"},
                     {"-n", name, "address", "add", Text(address, "/24"), "dev", "eth0"},
                     {"-n", name, "link", "set", "lo", "up"},
                     {"-n", name, "link", "set", "eth0", "up"}});
  if (!made.ok()) return Error(made);
  Result<std::string> ip = ProgramIp();
  if (!ip) return Error(ip.error());
  return LocalCell::Place{
      .address = address, .prefix = {*ip, "netns", "exec", name}, .parent_dir = directory};
}

void PrivateHosts::Leave(const std::string& directory) { umount2(directory.c_str(), MNT_DETACH); }

// The bucket holds what the loops of both ends send between two turns of the timer.
Status PrivateHosts::Limit(std::uint64_t number, std::uint64_t bits_a_second) {
  const auto bucket = [&](const std::vector<std::string>& tc, const std::string& device) {
    std::vector<std::string> words = tc;
    words.insert(words.end(), {"qdisc", "replace", "dev", device, "root", "tbf", "rate",
                               Text(bits_a_second, "bit"), "burst", "512kb", "latency", "50ms"});
    return Run(words);
  };
  if (Status sends = bucket({"tc", "-n", NameOf(number)}, "eth0"); !sends.ok()) return sends;
  return bucket({"tc"}, LinkTo(number));
}

Status PrivateHosts::SetLink(std::uint64_t number, bool up) {
  return Ip({"link", "set", LinkTo(number), up ? "up" : "down"});
}

// Frames to an address that no host has are dropped by all of them, and nobody tells the sender.
Status PrivateHosts::SetWay(std::uint64_t from, std::uint64_t to, bool open) {
  if (open) return Ip({"-n", NameOf(from), "neighbour", "del", AddressOf(to), "dev", "eth0"});
  return Ip({"-n", NameOf(from), "neighbour", "replace", AddressOf(to), "lladdr", "02:00:00:00:00:00", "dev",
             "eth0", "nud", "permanent"});
}

}  // namespace cistern
