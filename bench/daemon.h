// SPDX-License-Identifier: Apache-2.0
// A cisternd of a measurement's own: its process, its directory, its socket; gone when the object is. The
// process also ends when the thread that started it does, however that ends.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cistern/cistern.h"

namespace cistern {

// cisternd beside the running program.
std::string DaemonBeside();

class Daemon {
 public:
  // `flags` go to cisternd besides directory and socket. It copies with the kernels of this process. Serves
  // when this returns.
  // `prefix`: a command that becomes cisternd, as `ip netns exec NAME`.
  static Result<Daemon> Start(const std::string& program, const std::string& parent_dir,
                              std::vector<std::string> flags, std::vector<std::string> prefix = {});
  Daemon(Daemon&& other) noexcept;
  Daemon& operator=(Daemon&&) = delete;
  ~Daemon();  // SIGKILL, and its directory is removed

  // SIGKILL; its memory stays.
  void Kill();
  // What a reboot takes: the memory of a killed one.
  void ForgetMemory();
  // The same command again, on the same directory; returns at once.
  Status Exec();
  // The next Exec is of another cisternd.
  void Become(const std::string& program) { command_[program_at_] = program; }
  // Tries until it lets us in. `staging_bytes` as ConnectOptions has them.
  Result<Store> Connect(const OwnerToken& owner = {}, std::uint64_t staging_bytes = 0) const;
  const std::string& socket() const { return socket_; }
  pid_t pid() const { return pid_; }

 private:
  Daemon() = default;
  std::string directory_, socket_;
  std::vector<std::string> command_;
  std::size_t program_at_ = 0;  // in it
  pid_t pid_ = -1;
};

}  // namespace cistern
