// SPDX-License-Identifier: Apache-2.0
#include "child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/fd.h"
#include "base/format.h"

namespace cistern {

Result<Child> Child::Start(const std::function<void()>& run) {
  std::fflush(stdout);  // what waits there is written once
  const pid_t parent = getpid();
  Child child;
  child.pid_ = fork();
  if (child.pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    run();
    _exit(0);
  }
  if (child.pid_ > 0) return child;
  child.pid_ = 0;
  return Error(Code::kIoError, Text("no process can be started: ", ErrnoText(errno)));
}

Child::~Child() {
  if (pid_ == 0) return;
  Kill();
  waitpid(pid_, nullptr, 0);
}

// A pid of 0 or -1 names many processes.
void Child::Kill() const {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

}  // namespace cistern
