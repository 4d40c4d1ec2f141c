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

// `ip` with these words.
Status Ip(const std::vector<std::string>& words) {
  std::vector<std::string> command = {"ip"};
  command.insert(command.end(), words.begin(), words.end());
  const Result<std::string> said = OutputOf(command);
  if (said) return Status();
  std::string line;
  for (const std::string& word : command) line += word + " ";
  return Status(said.error().code(), Text(line, "failed: ", said.error().message()));
}

Status All(const std::vector<std::vector<std::string>>& commands) {
  for (const std::vector<std::string>& words : commands) {
    if (Status status = Ip(words); !status.ok()) return status;
  }
  return Status();
}

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
  const std::string name = Text("node", number), link = Text("to-node", number),
                    address = Text("10.77.0.", number);
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

}  // namespace cistern
