// SPDX-License-Identifier: Apache-2.0
#include "daemon.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/format.h"
#include "io/files.h"
#include "record/verified_copy.h"

namespace cistern {

namespace {
constexpr std::int64_t kStartUs = 300'000'000;  // a start reads what a slow disk holds
}

std::string DaemonBeside() {
  char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  std::string self(path, n > 0 ? static_cast<std::size_t>(n) : 0);
  return self.substr(0, self.rfind('/') + 1) + "cisternd";
}

Result<Daemon> Daemon::Start(const std::string& program, const std::string& parent_dir,
                             std::vector<std::string> flags, std::vector<std::string> prefix) {
  Daemon daemon;
  daemon.directory_ = Text(parent_dir, "/cistern-bench-", getpid(), "-XXXXXX");
  if (mkdtemp(daemon.directory_.data()) == nullptr) {
    return Error(Code::kInvalid, Text(parent_dir, ": no directory can be made there"));
  }
  daemon.socket_ = daemon.directory_ + "/socket";
  daemon.command_ = {program, "--memory-dir", daemon.directory_ + "/memory", "--socket", daemon.socket_};
  // A flag that is given counts.
  const auto unless_said = [&](const std::string& flag, const std::string& value) {
    if (std::ranges::find(flags, flag) == flags.end()) flags.insert(flags.end(), {flag, value});
  };
  unless_said("--copy", record::ChosenKernels().name);
  unless_said("--log-level", "warning");
  daemon.command_.insert(daemon.command_.end(), flags.begin(), flags.end());
  daemon.command_.insert(daemon.command_.begin(), prefix.begin(), prefix.end());
  daemon.program_at_ = prefix.size();
  if (Status status = daemon.Exec(); !status.ok()) return Error(status);
  Result<Store> store = daemon.Connect();
  if (!store) return Error(store.error());
  return daemon;
}

Daemon::Daemon(Daemon&& other) noexcept
    : directory_(std::exchange(other.directory_, {})),
      socket_(std::move(other.socket_)),
      command_(std::move(other.command_)),
      program_at_(other.program_at_),
      pid_(std::exchange(other.pid_, -1)) {}

Daemon::~Daemon() {
  Kill();
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

void Daemon::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Daemon::ForgetMemory() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_ + "/memory", ignored);
}

Status Daemon::Exec() {
  std::vector<char*> argv;
  for (std::string& word : command_) argv.push_back(word.data());
  argv.push_back(nullptr);
  if (access(argv[0], X_OK) != 0)
    return Status(Code::kIoError, Text(command_[0], " cannot be started: ", ErrnoText(errno)));
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    // Whoever is killed leaves no node behind, not even one that was just being started.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) execv(argv[0], argv.data());
    _exit(127);
  }
  if (pid_ > 0) return Status();
  return Status(Code::kIoError, Text(command_[0], " cannot be started: ", ErrnoText(errno)));
}

Result<Store> Daemon::Connect(const OwnerToken& owner, std::uint64_t staging_bytes) const {
  SystemClock clock;
  const Instant until = clock.Now().PlusUs(kStartUs);
  ConnectOptions options;
  options.socket = socket_;
  options.owner = owner;
  options.staging_bytes = staging_bytes;
  while (true) {
    Result<Store> store = Store::Connect(options);
    if (store || clock.Now() > until) return store;
    siginfo_t ended{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        ended.si_pid == pid_) {
      return Error(Code::kGone, Text("cisternd (pid ", pid_, ") ended instead of serving"));
    }
    usleep(200);
  }
}

}  // namespace cistern
