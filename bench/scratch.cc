// SPDX-License-Identifier: Apache-2.0
#include "scratch.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/format.h"

namespace cistern {
namespace {

class Scratch final {
 public:
  static Result<Scratch> Make(const std::string& parent) {
    std::string path = parent + "/cistern-bench-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return Error(Code::kInvalid, Text(parent, ": no directory can be made there (", ErrnoText(errno), ")"));
    }
    return Scratch(std::move(path));
  }
  Scratch(Scratch&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  Scratch& operator=(Scratch&&) = delete;
  // A node that is being killed may still make a file.
  ~Scratch() {
    constexpr int kTries = 200;
    std::error_code error;
    for (int i = 0; i < kTries && !path_.empty(); ++i) {
      std::filesystem::remove_all(path_, error);
      if (!std::filesystem::exists(path_, error)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  const std::string& path() const { return path_; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// How the process ended. What this one is told by a signal it passes on.
int Await(pid_t process, const sigset_t& awaited) {
  for (;;) {
    const int signal = sigwaitinfo(&awaited, nullptr);
    int status = 0;
    if (signal > 0 && signal != SIGCHLD) kill(process, signal);
    if (signal == SIGCHLD && waitpid(process, &status, WNOHANG) == process) return status;
  }
}

}  // namespace

Result<int> InScratch(BenchOptions& options, const std::function<int()>& run) {
  int status = 0;
  sigset_t awaited, before;
  sigemptyset(&awaited);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&awaited, signal);
  sigprocmask(SIG_BLOCK, &awaited, &before);
  const Status made = [&] {
    const Result<Scratch> memory = Scratch::Make(options.memory_dir);
    if (!memory) return memory.error();
    const Result<Scratch> flash =
        options.flash_dir.empty() ? Scratch::Make(memory->path()) : Scratch::Make(options.flash_dir);
    if (!flash) return flash.error();
    const pid_t parent = getpid();
    const pid_t process = fork();
    if (process < 0) return Status(Code::kIoError, Text("no process can be started: ", ErrnoText(errno)));
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      sigprocmask(SIG_SETMASK, &before, nullptr);
      if (getppid() != parent) _exit(1);
      options.memory_dir = memory->path();
      if (!options.flash_dir.empty()) options.flash_dir = flash->path();
      const int code = run();
      std::fflush(nullptr);
      _exit(code);
    }
    status = Await(process, awaited);
    return Status();
  }();
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (!made.ok()) return Error(made);
  if (WIFSIGNALED(status)) {
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
  }
  return WEXITSTATUS(status);
}

}  // namespace cistern
