// SPDX-License-Identifier: Apache-2.0
#include "base/interrupt.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/format.h"

namespace cistern {

Result<Interrupt> Interrupt::Open() {
  Interrupt interrupt;
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, &interrupt.before_);
  interrupt.fd_ = Fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!interrupt.fd_.valid()) {
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &interrupt.before_, nullptr);
    return Error(Code::kIoError, Text("signalfd: ", ErrnoText(error)));
  }
  return interrupt;
}

Interrupt::~Interrupt() {
  if (fd_.valid()) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool Interrupt::Seen() {
  signalfd_siginfo info;
  if (!seen_ && read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    seen_ = true;
    // A shell and the kernel both tell of a closed terminal, and what is printed on the way to the end is
    // nobody's.
    std::signal(SIGHUP, SIG_IGN);
    std::signal(SIGPIPE, SIG_IGN);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  return seen_;
}

}  // namespace cistern
