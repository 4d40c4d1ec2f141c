// SPDX-License-Identifier: Apache-2.0
#include "scratch.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/fd.h"
#include "base/format.h"
#include "scratch_directory.h"

namespace cistern {
namespace {

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
  signal(SIGCHLD, SIG_DFL);  // where it is ignored it does not come
  const Status made = [&] {
    const Result<ScratchDirectory> memory = ScratchDirectory::Make(options.memory_dir, "bench");
    if (!memory) return memory.error();
    const Result<ScratchDirectory> flash = options.flash_dir.empty()
                                               ? ScratchDirectory::Make(memory->path(), "bench")
                                               : ScratchDirectory::Make(options.flash_dir, "bench");
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
