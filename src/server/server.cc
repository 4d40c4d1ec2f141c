// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "server/handshakes.h"
#include "server/listener.h"
#include "server/sessions.h"
#include "wire/protocol.h"

namespace cistern::server {
namespace {

constexpr std::uint64_t kFdsPerSession = 5;
constexpr std::uint64_t kSentPerSession = 6;  // with its welcome: the node's until the client takes them
constexpr std::uint64_t kOtherFds = 256;
constexpr std::uint32_t kMaxSessions = 10'000;

Status OutOfRange(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  return Status(Code::kInvalid,
                Text("server: ", field, " is ", value, " and must be from ", low, " to ", high));
}

Status Validate(const ServerOptions& options) {
  constexpr std::size_t kMaxTenantBytes = sizeof(wire::Hello::tenant) - 1;
  if (options.tenant.empty() || options.tenant.size() > kMaxTenantBytes ||
      options.tenant.find('\0') != std::string::npos)
    return Status(Code::kInvalid, Text("tenant \"", options.tenant, "\" has ", options.tenant.size(),
                                       " bytes, a tenant's name has 1 to ", kMaxTenantBytes));
  if (options.max_sessions < 1 || options.max_sessions > kMaxSessions)
    return OutOfRange("max_sessions", options.max_sessions, 1, kMaxSessions);
  if (options.session_staging_bytes < 4096 || options.session_staging_bytes > (1u << 30))
    return OutOfRange("session_staging_bytes", static_cast<std::int64_t>(options.session_staging_bytes), 4096,
                      1 << 30);
  if (options.hello_us < 1'000 || options.hello_us > 60'000'000)
    return OutOfRange("hello_us", options.hello_us, 1'000, 60'000'000);
  return Status();
}

Status CheckReadOnly(int fd, std::string_view what) {
  int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY) return Status();
  return Status(Code::kInvalid, Text("server: descriptor ", fd, " of the ", what,
                                     " is not opened read-only: a client could make it writable"));
}

Status BindTo(const ServerOptions& options, std::optional<Listener>& listener) {
  if (options.socket.empty()) return Status();
  Result<Listener> bound = Listener::Bind(options.socket, options.peers.own_user_only() ? 0660 : 0666);
  if (!bound) return std::move(bound.error());
  listener.emplace(std::move(*bound));
  return Status();
}

// A session takes a few descriptors; the usual soft limit of 1,024 would end at 200 of them.
void RaiseDescriptorLimit(std::uint32_t sessions, Logger& log) {
  rlimit limit{};
  std::uint64_t wanted = sessions * (kFdsPerSession + kSentPerSession) + kOtherFds;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= wanted) return;
  log.Log(LogLevel::kWarning, sessions, " sessions take ", wanted,
          " descriptors, the limit of this process is ", limit.rlim_cur,
          ": clients past it are refused; raise it with ulimit -n");
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Open(const Parts& parts, const ServerOptions& options) {
  for (Status status :
       {Validate(options), CheckReadOnly(parts.arena_fd, "arena"), CheckReadOnly(parts.index_fd, "index")}) {
    if (!status.ok()) return Error(std::move(status));
  }
  std::optional<Listener> listener;
  if (Status status = BindTo(options, listener); !status.ok()) return Error(std::move(status));
  RaiseDescriptorLimit(options.max_sessions, parts.log);
  std::unique_ptr<Server> server(new Server(parts, options, std::move(listener)));
  if (Status status = server->handshakes_->Start(); !status.ok()) return Error(std::move(status));
  return server;
}

Server::Server(const Parts& parts, const ServerOptions& options, std::optional<Listener> listener)
    : socket_(options.socket),
      sessions_(std::make_unique<Sessions>(parts, options, counters_, times_)),
      handshakes_(
          std::make_unique<Handshakes>(parts.loop, std::move(listener), *sessions_, options, counters_)) {}

Server::~Server() = default;

void Server::Adopt(Fd socket) { handshakes_->Adopt(std::move(socket)); }

std::optional<std::uint64_t> Server::AcquireAtOnce(std::uint64_t session, std::uint32_t slot,
                                                   std::uint64_t incarnation,
                                                   std::span<const BlockRef> blocks, std::int64_t lease_us,
                                                   std::span<wire::ViewItem> views) {
  return sessions_->AcquireAtOnce(session, slot, incarnation, blocks, lease_us, views);
}

void Server::ReleaseAtOnce(std::uint64_t session, std::uint64_t lease) {
  sessions_->ReleaseAtOnce(session, lease);
}

bool Server::empty() const { return sessions_->empty(); }

void Server::Tick() { sessions_->Tick(); }

Executor& Server::executor() const { return sessions_->executor(); }

const Engines& Server::engines() const { return sessions_->engines(); }

void Server::CloseDoor() { handshakes_->Close(); }

Task<void> Server::Drain(Instant deadline) {
  CloseDoor();
  co_await sessions_->Drain(deadline);
}

}  // namespace cistern::server
