// SPDX-License-Identifier: Apache-2.0
// A program where io_uring is forbidden, as most containers do: PROGRAM [ARGUMENTS...].
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "base/test_call_filter.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "forbidden PROGRAM [ARGUMENTS...]\n");
    return 2;
  }
  auto steps = std::to_array<sock_filter>({
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, cistern::kCallNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  });
  cistern::FilterCalls(steps);
  execv(argv[1], argv + 1);
  std::perror(argv[1]);
  return 2;
}
