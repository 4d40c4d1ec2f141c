// SPDX-License-Identifier: Apache-2.0
#include "command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/fd.h"
#include "base/format.h"

extern char** environ;

namespace cistern {

Result<std::string> OutputOf(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Error(Code::kIoError, Text("pipe: ", ErrnoText(errno)));
  const Fd from(ends[0]);
  Fd to(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Error(Code::kMiss, Text(command[0], ": ", ErrnoText(error)));
  to = Fd();
  std::string output;
  std::array<char, 4096> piece;
  for (ssize_t n; (n = read(from.get(), piece.data(), piece.size())) != 0;) {
    if (n < 0 && errno != EINTR) break;
    if (n > 0) output.append(piece.data(), static_cast<std::size_t>(n));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return Error(Code::kIoError,
                 Text(command[0], " ended with ", WIFEXITED(status) ? WEXITSTATUS(status) : -1, ": ",
                      output.substr(0, 300)));
  }
  return output;
}

}  // namespace cistern
