// SPDX-License-Identifier: Apache-2.0
#include "net/tcp_network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/event.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/task_group.h"
#include "net/pieces.h"

namespace cistern::net {
namespace {

// A peer that acknowledges nothing for so long is gone (MESH.md, bounds).
constexpr unsigned kUserTimeoutMs = 3'000;
// One from which nothing comes for so long is asked whether it is there, and then every second.
constexpr int kIdleBeforeProbeS = 10, kBetweenProbesS = 1;
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

// Of a connection that was just made.
void ChooseCongestionControl(int socket) {
  std::array<char, 16> name{};  // TCP_CA_NAME_MAX
  socklen_t size = name.size() - 1;
  tcp_info info{};
  socklen_t info_size = sizeof(info);
  if (::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0 ||
      ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &info_size) != 0)
    return;
  for (const std::string_view better : BetterCongestionControl(name.data(), info.tcpi_rtt)) {
    const auto bytes = static_cast<socklen_t>(better.size());
    if (::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, better.data(), bytes) == 0) return;
  }
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// Connections to one address that are open, by the loop that they belong to and the host that they are from.
// Of any thread.
class OpenConnections final : public std::enable_shared_from_this<OpenConnections> {
 public:
  explicit OpenConnections(std::size_t loops) : all_(loops, 0) {}

  struct Place {
    std::size_t loop = 0;
    std::shared_ptr<const void> kept;  // as long as the connection is open
  };
  Place Add(const std::string& peer) {
    const std::string host = peer.substr(0, peer.rfind(':'));
    const std::lock_guard lock(mutex_);
    std::vector<std::size_t>& from_host = of_host_.try_emplace(host, all_.size(), 0).first->second;
    std::size_t best = 0;
    for (std::size_t loop = 1; loop < all_.size(); ++loop) {
      if (std::pair(from_host[loop], all_[loop]) < std::pair(from_host[best], all_[best])) best = loop;
    }
    ++from_host[best];
    ++all_[best];
    return {best, std::shared_ptr<const void>(nullptr, [self = shared_from_this(), best, host](const void*) {
              self->Remove(best, host);
            })};
  }

 private:
  void Remove(std::size_t loop, const std::string& host) {
    const std::lock_guard lock(mutex_);
    const auto from_host = of_host_.find(host);
    --all_[loop];
    --from_host->second[loop];
    if (std::ranges::all_of(from_host->second, [](std::size_t count) { return count == 0; }))
      of_host_.erase(from_host);
  }

  std::mutex mutex_;
  std::vector<std::size_t> all_;                             // by loop
  std::map<std::string, std::vector<std::size_t>> of_host_;  // the same, of the hosts that have any
};

class TcpStream final : public Stream {
 public:
  // `kept` goes with the stream.
  TcpStream(io::Loop& loop, Fd socket, std::string peer, std::shared_ptr<const void> kept)
      : loop_(loop), socket_(std::move(socket)), peer_(std::move(peer)), kept_(std::move(kept)) {
    SetOption(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    SetOption(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(kUserTimeoutMs));
    SetOption(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    SetOption(socket_.get(), IPPROTO_TCP, TCP_KEEPIDLE, kIdleBeforeProbeS);
    SetOption(socket_.get(), IPPROTO_TCP, TCP_KEEPINTVL, kBetweenProbesS);
    ChooseCongestionControl(socket_.get());
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
  const std::shared_ptr<const void> kept_;
  io::FdWatch watch_;
  Event readable_, writable_;
  std::size_t received_ = 0, sent_ = 0;  // since others had their turn
};

Result<std::unique_ptr<Stream>> MakeStream(io::Loop& loop, Fd socket, std::string peer,
                                           std::shared_ptr<const void> kept = nullptr) {
  auto stream = std::make_unique<TcpStream>(loop, std::move(socket), std::move(peer), std::move(kept));
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
    Result<Accepted> accepted = co_await AcceptSocket(deadline);
    if (!accepted) co_return Error(std::move(accepted.error()));
    co_return MakeStream(loop_, std::move(accepted->socket), std::move(accepted->peer));
  }

  struct Accepted {
    Fd socket;
    std::string peer;
  };
  // As Accept, and of no loop yet.
  Task<Result<Accepted>> AcceptSocket(Instant deadline) {
    for (;;) {
      Address from;
      from.size = sizeof(from.storage);
      Fd socket(::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.size,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.valid()) co_return Accepted{std::move(socket), TextOf(from)};
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

Status CannotListen(const std::string& address, int error) {
  if (error == EADDRINUSE)
    return Status(Code::kBusy, Text(address, ": another process listens there; choose another port"));
  if (error == EADDRNOTAVAIL)
    return Status(Code::kInvalid, Text(address, ": ", ErrnoText(error), "; name an address of this host"));
  return Status(Code::kIoError, Text(address, ": ", ErrnoText(error)));
}

// `at` is the address.
Result<Fd> BoundTo(const Address& at, const std::string& address) {
  Result<Fd> socket = MakeSocket(at.storage.ss_family);
  if (!socket) return socket;
  SetOption(socket->get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(socket->get(), at.get(), at.size) != 0) return Error(CannotListen(address, errno));
  return socket;
}

Result<std::unique_ptr<TcpListener>> ListenAt(io::Loop& loop, const std::string& address) {
  Result<Address> at = ParseAddress(address);
  if (!at) return Error(at.error());
  Result<Fd> socket = BoundTo(*at, address);
  if (!socket) return Error(socket.error());
  if (::listen(socket->get(), kBacklog) != 0) return Error(CannotListen(address, errno));
  at->size = sizeof(at->storage);
  (void)::getsockname(socket->get(), reinterpret_cast<sockaddr*>(&at->storage), &at->size);
  auto listener = std::make_unique<TcpListener>(loop, std::move(*socket), TextOf(*at));
  if (Status status = listener->Start(); !status.ok()) return Error(std::move(status));
  return listener;
}

// Connections that one loop takes for several, and those that wait until theirs asks for them.
class SharedListener final : public std::enable_shared_from_this<SharedListener> {
 public:
  SharedListener(std::span<io::Loop* const> loops, std::unique_ptr<TcpListener> listener)
      : address_(listener->address()),
        open_(std::make_shared<OpenConnections>(loops.size())),
        loops_(loops.begin(), loops.end()),
        came_(loops.size()),
        listener_(std::move(listener)),
        tasks_(executor()) {}

  void Start() { tasks_.Spawn(AcceptAll()); }
  // No connection is taken any more. On the first loop's thread.
  void End() {
    tasks_.Drop();
    listener_.reset();
  }

  const std::string& address() const { return address_; }
  io::Loop& loop(std::size_t at) const { return *loops_[at]; }

  Executor& executor() { return loops_.front()->executor(); }

  struct Connection {
    Fd socket;
    std::string peer;
    std::shared_ptr<const void> kept;
  };
  // Both on that loop's thread. None: nobody waits, and `came` says when somebody does.
  std::optional<Connection> Take(std::size_t at) {
    std::deque<Connection>& waiting = came_[at].waiting;
    if (waiting.empty()) return std::nullopt;
    Connection next = std::move(waiting.front());
    waiting.pop_front();
    if (waiting_.fetch_sub(1) == kMostWaiting)
      loops_.front()->PostRemote([self = shared_from_this()] { self->room_.Pulse(); });
    return next;
  }
  Event& came(std::size_t at) { return came_[at].event; }

 private:
  static constexpr int kMostWaiting = kBacklog;     // what comes past them waits in the system's queue
  static constexpr std::int64_t kPauseUs = 50'000;  // while the process has no descriptor

  struct Came {  // of a loop
    std::deque<Connection> waiting;
    Event event;
  };

  Task<void> AcceptAll() {
    for (;;) {
      while (waiting_.load() >= kMostWaiting) co_await room_.Wait();
      auto accepted = co_await listener_->AcceptSocket(Instant::Never());
      if (!accepted) {
        (void)co_await SleepUntil(executor().Now().PlusUs(kPauseUs));
        continue;
      }
      OpenConnections::Place place = open_->Add(accepted->peer);
      const auto next = std::make_shared<Connection>(std::move(accepted->socket), std::move(accepted->peer),
                                                     std::move(place.kept));
      waiting_.fetch_add(1);
      loops_[place.loop]->PostRemote([self = shared_from_this(), at = place.loop, next] {
        self->came_[at].waiting.push_back(std::move(*next));
        self->came_[at].event.Pulse();
      });
    }
  }

  const std::string address_;
  const std::shared_ptr<OpenConnections> open_;
  const std::vector<io::Loop*> loops_;
  std::vector<Came> came_;
  std::atomic<int> waiting_{0};  // of all loops
  Event room_;                   // of the first loop
  std::unique_ptr<TcpListener> listener_;
  TaskGroup tasks_;
};

class ListenerOfLoop final : public Listener {
 public:
  ListenerOfLoop(std::shared_ptr<SharedListener> shared, std::size_t at)
      : shared_(std::move(shared)), at_(at) {}
  ~ListenerOfLoop() override {
    if (at_ == 0) shared_->End();
  }

  Executor& executor() override { return shared_->loop(at_).executor(); }
  const std::string& address() const override { return shared_->address(); }
  Task<Result<std::unique_ptr<Stream>>> Accept(Instant deadline) override {
    for (;;) {
      if (auto next = shared_->Take(at_))
        co_return MakeStream(shared_->loop(at_), std::move(next->socket), std::move(next->peer),
                             std::move(next->kept));
      if (Status status = co_await shared_->came(at_).Wait(deadline); !status.ok())
        co_return Error(status.code(), Text(address(), ": nobody connected before the deadline"));
    }
  }

 private:
  const std::shared_ptr<SharedListener> shared_;
  const std::size_t at_;
};

}  // namespace

std::span<const std::string_view> BetterCongestionControl(std::string_view of_system, std::uint32_t rtt_us) {
  constexpr std::uint32_t kNearUs = 2'000;
  // The second is what a process without privileges may choose.
  static constexpr std::array<std::string_view, 2> kUnpaced = {"cubic", "reno"};
  if (!of_system.starts_with("bbr") || rtt_us > kNearUs) return {};
  return kUnpaced;
}

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

Status TcpNetwork::CheckListen(const std::string& address) {
  const Result<Address> at = ParseAddress(address);
  if (!at) return at.error();
  const Result<Fd> socket = BoundTo(*at, address);
  return socket || socket.error().code() == Code::kBusy ? Status() : socket.error();
}

Result<std::unique_ptr<Listener>> TcpNetwork::Listen(const std::string& address) {
  return ListenAt(loop_, address);
}

Result<std::vector<std::unique_ptr<Listener>>> ListenFor(std::span<io::Loop* const> loops,
                                                         const std::string& address) {
  auto listener = ListenAt(*loops.front(), address);
  if (!listener) return Error(std::move(listener.error()));
  const auto shared = std::make_shared<SharedListener>(loops, std::move(*listener));
  shared->Start();
  std::vector<std::unique_ptr<Listener>> listeners;
  for (std::size_t at = 0; at < loops.size(); ++at)
    listeners.push_back(std::make_unique<ListenerOfLoop>(shared, at));
  return listeners;
}

}  // namespace cistern::net
