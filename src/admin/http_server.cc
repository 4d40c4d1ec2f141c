// SPDX-License-Identifier: Apache-2.0
#include "admin/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"

namespace cistern::admin {
namespace {

constexpr int kBacklog = 128;
constexpr int kAcceptsATurn = 16;
constexpr std::int64_t kLeaveUs = 1'000'000;  // for the other side to close, once it has its answer
constexpr std::int64_t kPauseUs = 100'000;

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

// Its length; 0: the host is no address in numbers.
socklen_t ToSocketAddress(const HttpAddress& from, SocketAddress& to) {
  std::memset(&to, 0, sizeof(to));
  if (from.v6) {
    to.v6.sin6_family = AF_INET6;
    to.v6.sin6_port = htons(from.port);
    return inet_pton(AF_INET6, from.host.c_str(), &to.v6.sin6_addr) == 1 ? sizeof(to.v6) : 0;
  }
  to.v4.sin_family = AF_INET;
  to.v4.sin_port = htons(from.port);
  return inet_pton(AF_INET, from.host.c_str(), &to.v4.sin_addr) == 1 ? sizeof(to.v4) : 0;
}

Status Refusal(const HttpAddress& address, int error) {
  if (error == EADDRINUSE)
    return Status(Code::kBusy, Text("http: ", address.ToText(),
                                    " is in use by another process; end that one, or name another port"));
  return Status(Code::kIoError, Text("http: ", address.ToText(), " cannot be listened at: ", ErrnoText(error),
                                     "; name an address of this host and a port that is this user's"));
}

// A socket that has the address, and that nobody can connect to yet.
Result<Fd> Bind(const HttpAddress& address) {
  SocketAddress at;
  const socklen_t length = ToSocketAddress(address, at);
  Fd socket(::socket(address.v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!socket.valid() || setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0)
    return Error(Code::kIoError, Text("http: ", address.ToText(), ": ", ErrnoText(errno)));
  if (bind(socket.get(), &at.any, length) != 0) return Error(Refusal(address, errno));
  return socket;
}

}  // namespace

std::string HttpAddress::ToText() const { return v6 ? Text("[", host, "]:", port) : Text(host, ":", port); }

Result<HttpAddress> ParseHttpAddress(std::string_view field, std::string_view text) {
  HttpAddress address{.host = "127.0.0.1"};
  const std::size_t colon = text.rfind(':');
  std::string_view port = text;
  if (colon != std::string_view::npos) {
    std::string_view host = text.substr(0, colon);
    port = text.substr(colon + 1);
    address.v6 = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
    if (address.v6) host = host.substr(1, host.size() - 2);
    address.host = host;
  }
  SocketAddress socket;
  const Result<std::uint64_t> number = ParseCount(field, port, 0, 65'535);
  if (!number || ToSocketAddress(address, socket) == 0) {
    return Error(Code::kInvalid,
                 Text(field, ": \"", Shown(text),
                      "\" is no place to listen at; give PORT for 127.0.0.1, or ADDRESS:PORT with an address "
                      "in numbers, as in 10.0.0.7:9180 or [::1]:9180"));
  }
  address.port = static_cast<std::uint16_t>(*number);
  return address;
}

class HttpServer::Connections final {
 public:
  Connections(Fd listener, Fd event, Handler handler)
      : listener_(std::move(listener)), mail_(std::make_shared<Mail>()), handler_(std::move(handler)) {
    mail_->event = std::move(event);
  }

  void Run() {
    std::vector<pollfd> polled;
    std::vector<std::uint64_t> ids;
    while (!stop_.load(std::memory_order_acquire)) {
      const bool accepts = accepts_from_ <= clock_.Now();
      polled = {{accepts ? listener_.get() : -1, POLLIN, 0}, {mail_->event.get(), POLLIN, 0}};
      ids.clear();
      for (const auto& [id, connection] : connections_) {
        polled.push_back({connection.socket.get(), connection.Events(), 0});
        ids.push_back(id);
      }
      poll(polled.data(), polled.size(), TimeoutMs());
      if (polled[1].revents != 0) TakeMail();
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (polled[i + 2].revents != 0) Serve(ids[i]);
      }
      EndLate();
      if (polled[0].revents != 0) Accept();
    }
  }

  void Stop() {
    stop_.store(true, std::memory_order_release);
    mail_->Ring();
  }

 private:
  // Answers on their way from other threads. It outlives the server where one is still to come.
  struct Mail {
    std::mutex mutex;
    std::vector<std::pair<std::uint64_t, HttpServer::Answer>> answers;
    Fd event;

    void Ring() const {
      const std::uint64_t one = 1;
      if (write(event.get(), &one, sizeof(one)) < 0) return;  // it is full, which wakes as well
    }
  };

  struct Connection {
    enum class State : std::uint8_t { kAsks, kWaits, kTakes, kLeaves } state = State::kAsks;
    Fd socket;          // none: it hung up, and its answer is still to come
    std::string bytes;  // of the request, then of the answer
    std::size_t sent = 0;
    bool head = false;
    Instant ends;  // this state, at the latest

    short Events() const {
      switch (state) {
        case State::kAsks:
        case State::kLeaves: return POLLIN;
        case State::kTakes: return POLLOUT;
        case State::kWaits: return 0;  // a hang-up is reported all the same
      }
      return 0;
    }
  };

  int TimeoutMs() const {
    const Instant now = clock_.Now();
    Instant first = accepts_from_ > now ? accepts_from_ : Instant::Never();
    for (const auto& [id, connection] : connections_) first = std::min(first, connection.ends);
    if (first == Instant::Never()) return -1;
    const std::int64_t us = first.UsSince(now);
    return static_cast<int>(std::clamp<std::int64_t>(us / 1000 + 1, 0, 60'000));
  }

  void Accept() {
    for (int i = 0; i < kAcceptsATurn; ++i) {
      Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.valid()) {
        // Without descriptors it would be asked again and again.
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
          accepts_from_ = clock_.Now().PlusUs(kPauseUs);
        return;
      }
      if (connections_.size() >= kMaxConnections && !EndIdleOne()) {
        static constexpr std::string_view kFull =
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        if (send(socket.get(), kFull.data(), kFull.size(), MSG_NOSIGNAL) < 0) continue;
        continue;
      }
      const auto made = connections_.emplace(
          ++last_id_, Connection{.socket = std::move(socket), .ends = clock_.Now().PlusUs(kRequestUs)});
      // At once: who has asked is not to make room for who comes next.
      Read(made.first->first, made.first->second);
    }
  }

  // The oldest that has not asked yet, or has its answer; false: there is none.
  bool EndIdleOne() {
    const auto found = std::ranges::find_if(connections_, [](const auto& one) {
      return one.second.state == Connection::State::kAsks || one.second.state == Connection::State::kLeaves;
    });
    if (found == connections_.end()) return false;
    connections_.erase(found);
    return true;
  }

  void EndLate() {
    const Instant now = clock_.Now();
    for (auto at = connections_.begin(); at != connections_.end();) {
      const auto next = std::next(at);
      Connection& connection = at->second;
      if (connection.ends <= now) {
        if (connection.state == Connection::State::kWaits && connection.socket.valid()) {
          Tell(at->first, {.status = 503,
                           .body = Text("the core did not answer in ", kAnswerUs / 1'000'000,
                                        " s; /healthz says whether it turns\n")});
        } else {
          connections_.erase(at);
        }
      }
      at = next;
    }
  }

  void Serve(std::uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    switch (found->second.state) {
      case Connection::State::kAsks: Read(id, found->second); break;
      case Connection::State::kTakes: Send(id, found->second); break;
      case Connection::State::kLeaves: Leave(id, found->second); break;
      case Connection::State::kWaits: found->second.socket = Fd(); break;  // it hung up
    }
  }

  void Read(std::uint64_t id, Connection& connection) {
    char bytes[4096];
    const ssize_t got = recv(connection.socket.get(), bytes, sizeof(bytes), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      connections_.erase(id);
      return;
    }
    connection.bytes.append(bytes, static_cast<std::size_t>(got));
    if (!HeadersEnd(connection.bytes) && connection.bytes.size() <= kMaxRequestBytes) return;
    const auto request = ParseHttpRequest(connection.bytes);
    connection.state = Connection::State::kWaits;
    connection.ends = clock_.Now().PlusUs(kAnswerUs);
    connection.bytes.clear();
    if (!request) {
      Tell(id, request.error());
      return;
    }
    connection.head = request->head;
    handler_(*request, [mail = mail_, id](HttpServer::Answer answer) {
      {
        std::lock_guard lock(mail->mutex);
        mail->answers.emplace_back(id, std::move(answer));
      }
      mail->Ring();
    });
  }

  void TakeMail() {
    std::uint64_t count = 0;
    if (read(mail_->event.get(), &count, sizeof(count)) < 0) return;
    std::vector<std::pair<std::uint64_t, HttpServer::Answer>> answers;
    {
      std::lock_guard lock(mail_->mutex);
      answers.swap(mail_->answers);
    }
    for (auto& [id, answer] : answers) {
      const auto found = connections_.find(id);
      if (found == connections_.end() || found->second.state != Connection::State::kWaits) continue;
      if (found->second.socket.valid()) {
        Tell(id, answer());
      } else {
        connections_.erase(found);
      }
    }
  }

  void Tell(std::uint64_t id, const HttpAnswer& answer) {
    Connection& connection = connections_.at(id);
    connection.bytes = HttpAnswerText(answer, connection.head);
    connection.state = Connection::State::kTakes;
    connection.ends = clock_.Now().PlusUs(kSendUs);
    Send(id, connection);
  }

  void Send(std::uint64_t id, Connection& connection) {
    while (connection.sent < connection.bytes.size()) {
      const ssize_t sent = send(connection.socket.get(), connection.bytes.data() + connection.sent,
                                connection.bytes.size() - connection.sent, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) break;
      connection.sent += static_cast<std::size_t>(sent);
    }
    // Closed with bytes of the other side unread, a socket would take the answer back.
    if (connection.sent < connection.bytes.size() || shutdown(connection.socket.get(), SHUT_WR) != 0) {
      connections_.erase(id);
      return;
    }
    connection.state = Connection::State::kLeaves;
    connection.ends = clock_.Now().PlusUs(kLeaveUs);
    connection.bytes.clear();
  }

  void Leave(std::uint64_t id, Connection& connection) {
    char bytes[4096];
    for (int i = 0; i < 16; ++i) {
      const ssize_t got = recv(connection.socket.get(), bytes, sizeof(bytes), 0);
      if (got > 0 || (got < 0 && errno == EINTR)) continue;
      if (got < 0 && errno == EAGAIN) return;
      connections_.erase(id);
      return;
    }
  }

  const SystemClock clock_;
  const Fd listener_;
  const std::shared_ptr<Mail> mail_;
  const Handler handler_;
  std::atomic<bool> stop_{false};
  std::map<std::uint64_t, Connection> connections_;  // by age
  std::uint64_t last_id_ = 0;
  Instant accepts_from_;
};

HttpServer::HttpServer(HttpAddress address, std::unique_ptr<Connections> connections)
    : address_(std::move(address)),
      connections_(std::move(connections)),
      thread_([this] { connections_->Run(); }) {}

HttpServer::~HttpServer() {
  connections_->Stop();
  thread_.join();
}

Status HttpServer::Check(const HttpAddress& address) {
  const Result<Fd> bound = Bind(address);
  return bound || bound.error().code() == Code::kBusy ? Status() : bound.error();
}

Result<std::unique_ptr<HttpServer>> HttpServer::Open(const HttpAddress& address, Handler handler) {
  Result<Fd> listener = Bind(address);
  if (!listener) return Error(std::move(listener.error()));
  Fd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return Error(Code::kIoError, Text("http: ", address.ToText(), ": ", ErrnoText(errno)));
  if (listen(listener->get(), kBacklog) != 0) return Error(Refusal(address, errno));
  SocketAddress at;
  socklen_t length = sizeof(at);
  HttpAddress real = address;
  if (getsockname(listener->get(), &at.any, &length) == 0)
    real.port = ntohs(address.v6 ? at.v6.sin6_port : at.v4.sin_port);
  auto connections =
      std::make_unique<Connections>(std::move(*listener), std::move(event), std::move(handler));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(real), std::move(connections)));
}

}  // namespace cistern::admin
