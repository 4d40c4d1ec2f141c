// SPDX-License-Identifier: Apache-2.0
#include "server/listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "server/peer_credentials.h"
#include "wire/socket_path.h"

namespace cistern::server {
namespace {

constexpr int kBacklog = 128;
// SO_PASSRIGHTS, since Linux 6.16; Debian 12's headers are older.
constexpr int kPassRights = 83;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Fd NewSocket() { return Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

// Inherited by what it accepts. Nobody has a reason to send one, and its sender can make the node its last
// owner: then letting go of it takes as long as the sender likes, of a connection that lingers, say.
void RefuseDescriptors(const Fd& listener) {
  const int no = 0;
  static_cast<void>(setsockopt(listener.get(), SOL_SOCKET, kPassRights, &no, sizeof(no)));
}

Status SystemError(const std::string& path, std::string_view what) {
  return Status(Code::kIoError, Text("socket ", path, ": ", what, ": ", ErrnoText(errno)));
}

std::uint64_t InodeOf(const std::string& path) {
  struct stat found;
  return lstat(path.c_str(), &found) == 0 ? found.st_ino : 0;
}

Status CannotBeMade(const std::string& path) {
  return Status(Code::kIoError, Text("socket ", path, " cannot be made: ", ErrnoText(errno),
                                     "; make its directory, which has to be this user's to write in, or name "
                                     "another path"));
}

Status CheckKind(const std::string& path, const struct stat& found) {
  if (S_ISSOCK(found.st_mode)) return Status();
  return Status(Code::kInvalid,
                Text("socket ", path, " is in use by a file that is no socket: choose another path"));
}

// Ok when the file may be replaced: a socket whose process is dead.
Status CheckStale(const std::string& path) {
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) return errno == ENOENT ? Status() : SystemError(path, "look");
  if (Status kind = CheckKind(path, found); !kind.ok()) return kind;
  Fd probe = NewSocket();
  if (!probe.valid()) return SystemError(path, "make");
  sockaddr_un address = AddressOf(path);
  if (connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 || errno == EAGAIN) {
    Result<Peer> peer = PeerOf(probe.get());
    std::string who = peer ? Text("process ", peer->pid) : std::string("another process");
    return Status(Code::kBusy, Text("socket ", path, " is in use: ", who,
                                    " listens on it; end it or choose another path"));
  }
  if (errno == EPROTOTYPE)
    return Status(Code::kBusy,
                  Text("socket ", path, " is in use by a program that is no node: choose another path"));
  if (errno != ECONNREFUSED && errno != ENOENT) return SystemError(path, "connect");
  return Status();
}

}  // namespace

Result<Listener> Listener::Bind(const std::string& path, unsigned mode) {
  if (Status status = wire::CheckSocketPath(path); !status.ok()) return Error(std::move(status));
  if (const std::string own = wire::OwnSocketDirectory(); path.starts_with(own + "/")) {
    if (Status made = io::MakeOwnDirectory("socket", own); !made.ok()) return Error(std::move(made));
  }
  Fd socket = NewSocket();
  if (!socket.valid()) return Error(SystemError(path, "make"));
  RefuseDescriptors(socket);
  sockaddr_un address = AddressOf(path);
  auto bind_here = [&] {
    return bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  };
  if (!bind_here()) {
    if (errno == ENOENT || errno == EACCES || errno == ENOTDIR) return Error(CannotBeMade(path));
    if (errno != EADDRINUSE) return Error(SystemError(path, "bind"));
    if (Status status = CheckStale(path); !status.ok()) return Error(std::move(status));
    if (unlink(path.c_str()) != 0 && errno != ENOENT)
      return Error(SystemError(path, "remove what a dead node left"));
    if (!bind_here()) return Error(SystemError(path, "bind"));
  }
  // Nobody can connect before listen, so the mode is right before the first may try.
  if (chmod(path.c_str(), mode) != 0) return Error(SystemError(path, "set its mode"));
  if (listen(socket.get(), kBacklog) != 0) return Error(SystemError(path, "listen"));
  return Listener(std::move(socket), path, InodeOf(path));
}

Status Listener::Check(const std::string& path) {
  if (Status status = wire::CheckSocketPath(path); !status.ok()) return status;
  if (const std::string own = wire::OwnSocketDirectory(); path.starts_with(own + "/")) {
    if (Status made = io::CheckOwnDirectory("socket", own); !made.ok()) return made;
    if (access(own.c_str(), F_OK) != 0) return Status();  // it will be made
  }
  struct stat found;
  if (lstat(path.c_str(), &found) == 0) return CheckKind(path, found);
  if (errno != ENOENT) return CannotBeMade(path);
  const std::size_t slash = path.rfind('/');
  const std::string directory =
      slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
  return access(directory.c_str(), W_OK | X_OK) == 0 ? Status() : CannotBeMade(path);
}

Result<std::optional<Fd>> Listener::Accept() {
  Fd fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) return std::optional<Fd>(std::move(fd));
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
    return Error(Code::kBusy, Text("socket ", path_, ": accept: ", ErrnoText(errno)));
  if (errno == ECONNABORTED || errno == EINTR) return Accept();
  return std::optional<Fd>();
}

void Listener::Close() {
  if (!socket_.valid()) return;
  socket_.Close();
  if (inode_ != 0 && InodeOf(path_) == inode_) unlink(path_.c_str());
}

}  // namespace cistern::server
