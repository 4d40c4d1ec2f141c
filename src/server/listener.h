// SPDX-License-Identifier: Apache-2.0
// The socket that clients connect to.
#pragma once

#include <optional>
#include <string>

#include "cistern/status.h"
#include "io/files.h"

namespace cistern::server {

class Listener final {
 public:
  // Binds and listens. A socket file that nobody listens on is what a dead node left: it is
  // replaced. kInvalid: the path is too long or is no socket; kBusy: a process listens there, the message has
  // its pid; kIoError.
  static Result<Listener> Bind(const std::string& path, unsigned mode = 0660);
  // What it refuses of the path, and of the directory that the socket is to lie in; nothing is made, and
  // whether a process listens there is not asked.
  static Status Check(const std::string& path);
  Listener(Listener&& other) noexcept = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener() { Close(); }

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }
  // The next connection, non-blocking; none if there is no further one. kBusy where the process has no
  // descriptors left: the connection waits on.
  Result<std::optional<Fd>> Accept();
  // Nobody can connect any more; removes the file, unless another process has put its own there.
  void Close();

 private:
  Listener(Fd socket, std::string path, std::uint64_t inode)
      : socket_(std::move(socket)), path_(std::move(path)), inode_(inode) {}
  Fd socket_;
  std::string path_;
  std::uint64_t inode_ = 0;
};

}  // namespace cistern::server
