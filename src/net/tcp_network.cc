// SPDX-License-Identifier: Apache-2.0
#include "net/tcp_network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "base/event.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/nearest.h"
#include "net/pieces.h"

namespace cistern::net {
namespace {

// A peer that acknowledges nothing for so long is gone (MESH.md, bounds).
constexpr unsigned kUserTimeoutMs = 3'000;
constexpr int kBacklog = 64;
// Pieces of one system call, and the bytes after which others have their turn.
constexpr std::size_t kCallPieces = 64;
constexpr std::size_t kTurnBytes = 1u << 20;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Result<Address> ParseAddress(const std::string& text) {
  const auto wrong = [&](const char* why) {
    return Error(Code::kInvalid,
                 Text("address: ", Shown(text), " ", why, "; give one as 10.0.0.7:7420 or [fd00::7]:7420"));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong("has no port");
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + colon + 1, end, port);
  if (read.ec != std::errc() || read.ptr != end) return wrong("has no port between 0 and 65535");
  std::string host = text.substr(0, colon);
  Address address;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    host = host.substr(1, host.size() - 2);
    if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return wrong("is no IPv6 address");
    std::memcpy(&address.storage, &v6, sizeof(v6));
    address.size = sizeof(v6);
    return address;
  }
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) != 1) return wrong("is no IPv4 address");
  std::memcpy(&address.storage, &v4, sizeof(v4));
  address.size = sizeof(v4);
  return address;
}

std::string TextOf(const Address& address) {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (address.storage.ss_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &address.storage, sizeof(v6));
    ::inet_ntop(AF_INET6, &v6.sin6_addr, host.data(), host.size());
    return Text("[", host.data(), "]:", ntohs(v6.sin6_port));
  }
  sockaddr_in v4;
  std::memcpy(&v4, &address.storage, sizeof(v4));
  ::inet_ntop(AF_INET, &v4.sin_addr, host.data(), host.size());
  return Text(host.data(), ":", ntohs(v4.sin_port));
}

void SetOption(int socket, int level, int option, int value) {
  (void)::setsockopt(socket, level, option, &value, sizeof(value));
}

Result<Fd> MakeSocket(int family) {
  Fd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid())
    return Error(errno == EMFILE || errno == ENFILE ? Code::kBusy : Code::kIoError,
                 Text("a socket: ", ErrnoText(errno)));
  return fd;
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

class TcpStream final : public Stream {
 public:
  TcpStream(io::Loop& loop, Fd socket, std::string peer)
      : loop_(loop), socket_(std::move(socket)), peer_(std::move(peer)) {
    SetOption(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    SetOption(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(kUserTimeoutMs));
  }
  ~TcpStream() override { Close(); }

  Status Start() {
    auto watch = loop_.Watch(socket_.get(), io::WatchMode::kDuplex, [this](std::uint32_t events) {
      const bool broken = (events & (POLLHUP | POLLERR | POLLNVAL)) != 0;
      if (broken || (events & (POLLIN | POLLRDHUP)) != 0) readable_.Set();
      if (broken || (events & POLLOUT) != 0) writable_.Set();
    });
    if (!watch) return watch.error();
    watch_ = std::move(*watch);
    return Status();
  }

  Executor& executor() override { return loop_.executor(); }
  const std::string& peer() const override { return peer_; }

  Task<Result<std::size_t>> Receive(std::span<const Piece> into, Instant deadline) override {
    PieceCursor<std::byte> cursor(into);
    CISTERN_ASSERT(!cursor.done());
    std::array<Piece, kCallPieces> pieces;
    std::array<iovec, kCallPieces> vectors;
    if (received_ >= kTurnBytes) {
      received_ = 0;
      co_await Yield();
    }
    for (;;) {
      if (!socket_.valid()) co_return Error(Closed());
      const std::size_t count = cursor.Fill(pieces, kTurnBytes);
      for (std::size_t i = 0; i < count; ++i) vectors[i] = {pieces[i].data(), pieces[i].size()};
      msghdr message{};
      message.msg_iov = vectors.data();
      message.msg_iovlen = count;
      const ssize_t bytes = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
      if (bytes >= 0) {
        received_ += static_cast<std::size_t>(bytes);
        co_return static_cast<std::size_t>(bytes);
      }
      if (errno == EINTR) continue;
      if (!WouldBlock(errno)) co_return Error(Broken(errno));
      received_ = 0;
      readable_.Reset();
      if (Status status = co_await readable_.Wait(deadline); !status.ok()) {
        co_return Error(status.code(), Text(peer_, ": sent nothing before the deadline"));
      }
    }
  }

  Task<Status> Send(std::span<const ConstPiece> from, Instant deadline) override {
    PieceCursor<const std::byte> cursor(from);
    std::array<ConstPiece, kCallPieces> pieces;
    std::array<iovec, kCallPieces> vectors;
    while (!cursor.done()) {
      if (!socket_.valid()) co_return Closed();
      const std::size_t count = cursor.Fill(pieces, kTurnBytes);
      for (std::size_t i = 0; i < count; ++i) {
        vectors[i] = {const_cast<std::byte*>(pieces[i].data()), pieces[i].size()};
      }
      msghdr message{};
      message.msg_iov = vectors.data();
      message.msg_iovlen = count;
      const ssize_t bytes = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (bytes >= 0) {
        cursor.Advance(static_cast<std::size_t>(bytes));
        sent_ += static_cast<std::size_t>(bytes);
        if (sent_ >= kTurnBytes && !cursor.done()) {
          sent_ = 0;
          co_await Yield();
        }
        continue;
      }
      if (errno == EINTR) continue;
      if (!WouldBlock(errno)) co_return Broken(errno);
      sent_ = 0;
      writable_.Reset();
      if (Status status = co_await writable_.Wait(deadline); !status.ok()) {
        Close();
        co_return Status(status.code(), Text(peer_, ": took nothing more before the deadline"));
      }
    }
    co_return Status();
  }

  void Close() override {
    watch_.End();
    socket_.Close();
    readable_.Set();
    writable_.Set();
  }

 private:
  Status Closed() const { return Status(Code::kGone, Text(peer_, ": the connection was closed here")); }
  Status Broken(int error) {
    Close();
    return Status(Code::kGone, Text(peer_, ": ", ErrnoText(error)));
  }

  io::Loop& loop_;
  Fd socket_;
  const std::string peer_;
  io::FdWatch watch_;
  Event readable_, writable_;
  std::size_t received_ = 0, sent_ = 0;  // since others had their turn
};

Result<std::unique_ptr<Stream>> MakeStream(io::Loop& loop, Fd socket, std::string peer) {
  auto stream = std::make_unique<TcpStream>(loop, std::move(socket), std::move(peer));
  if (Status status = stream->Start(); !status.ok()) return Error(std::move(status));
  return stream;
}

class TcpListener final : public Listener {
 public:
  TcpListener(io::Loop& loop, Fd socket, std::string address)
      : loop_(loop), socket_(std::move(socket)), address_(std::move(address)) {}

  Status Start() {
    auto watch =
        loop_.Watch(socket_.get(), io::WatchMode::kEdge, [this](std::uint32_t) { acceptable_.Set(); });
    if (!watch) return watch.error();
    watch_ = std::move(*watch);
    return Status();
  }

  Executor& executor() override { return loop_.executor(); }
  const std::string& address() const override { return address_; }

  Task<Result<std::unique_ptr<Stream>>> Accept(Instant deadline) override {
    for (;;) {
      Address from;
      from.size = sizeof(from.storage);
      Fd socket(::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.size,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.valid()) co_return MakeStream(loop_, std::move(socket), TextOf(from));
      // Who went away before it was accepted is nobody.
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (!WouldBlock(errno)) {
        co_return Error(errno == EMFILE || errno == ENFILE ? Code::kBusy : Code::kIoError,
                        Text(address_, ": a connection cannot be accepted: ", ErrnoText(errno)));
      }
      acceptable_.Reset();
      if (Status status = co_await acceptable_.Wait(deadline); !status.ok()) {
        co_return Error(status.code(), Text(address_, ": nobody connected before the deadline"));
      }
    }
  }

 private:
  io::Loop& loop_;
  Fd socket_;
  const std::string address_;
  io::FdWatch watch_;
  Event acceptable_;
};

}  // namespace

Task<Result<std::unique_ptr<Stream>>> TcpNetwork::Connect(std::string address, Instant deadline) {
  Result<Address> to = ParseAddress(address);
  if (!to) co_return Error(to.error());
  Result<Fd> socket = MakeSocket(to->storage.ss_family);
  if (!socket) co_return Error(socket.error());
  const auto refused = [&](int error) {
    return Error(Code::kIoError, Text(address, ": ", ErrnoText(error)));
  };
  if (::connect(socket->get(), to->get(), to->size) != 0) {
    if (errno != EINPROGRESS) co_return refused(errno);
    Event ready;
    auto watch = loop_.Watch(socket->get(), io::WatchMode::kDuplex, [&](std::uint32_t events) {
      if ((events & (POLLOUT | POLLHUP | POLLERR)) != 0) ready.Set();
    });
    if (!watch) co_return Error(watch.error());
    if (Status status = co_await ready.Wait(deadline); !status.ok()) {
      co_return Error(status.code(), Text(address, ": does not answer"));
    }
  }
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(socket->get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) co_return refused(error);
  co_return MakeStream(loop_, std::move(*socket), std::move(address));
}

Result<std::unique_ptr<Listener>> TcpNetwork::Listen(const std::string& address) {
  Result<Address> at = ParseAddress(address);
  if (!at) return Error(at.error());
  Result<Fd> socket = MakeSocket(at->storage.ss_family);
  if (!socket) return Error(socket.error());
  SetOption(socket->get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(socket->get(), at->get(), at->size) != 0 || ::listen(socket->get(), kBacklog) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return Error(Code::kBusy, Text(address, ": another process listens there; choose another port"));
    }
    return Error(error == EADDRNOTAVAIL ? Code::kInvalid : Code::kIoError,
                 Text(address, ": ", ErrnoText(error)));
  }
  at->size = sizeof(at->storage);
  (void)::getsockname(socket->get(), reinterpret_cast<sockaddr*>(&at->storage), &at->size);
  auto listener = std::make_unique<TcpListener>(loop_, std::move(*socket), TextOf(*at));
  if (Status status = listener->Start(); !status.ok()) return Error(std::move(status));
  return listener;
}

}  // namespace cistern::net
