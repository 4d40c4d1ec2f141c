// SPDX-License-Identifier: Apache-2.0
#include "client/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <optional>
#include <string_view>
#include <vector>

#include "arena/layout.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/peer.h"
#include "wire/socket_path.h"

namespace cistern::client {
namespace {

constexpr const char* kStagingName = "the session's staging";

struct Received {
  std::size_t bytes = 0;
  std::vector<Fd> descriptors;
  bool cut = false;  // there were more descriptors
};

Status Late(const std::string& path) {
  return Status(Code::kTooLate,
                Text("the node at ", path,
                     " did not answer within the deadline; its log says what it does, or give it longer"));
}

// The kernel cuts off descriptors for which there is no room as those that a security module forbids.
Status WithoutDescriptors(const std::string& path) {
  if (Fd(eventfd(0, EFD_CLOEXEC)).valid())
    return Status(Code::kDenied,
                  Text("the node at ", path,
                       " gave descriptors that this process was not let have, for which it has "
                       "room: SELinux or AppArmor keeps it from the node's files "
                       "(docs/operations.md, Kubernetes)"));
  return Status(Code::kIoError, Text("the node at ", path,
                                     " gave descriptors for which this process has no room: close some, or "
                                     "raise its limit (ulimit -n)"));
}

// Waits until the socket has one of `events`; kTooLate at the deadline.
Status WaitFor(int socket, short events, std::int64_t deadline_ns, const std::string& path) {
  for (;;) {
    std::int64_t left_ns = deadline_ns - NowNs();
    if (left_ns <= 0) return Late(path);
    pollfd waiting{.fd = socket, .events = events, .revents = 0};
    timespec left{.tv_sec = left_ns / 1'000'000'000, .tv_nsec = left_ns % 1'000'000'000};
    int ready = ppoll(&waiting, 1, &left, nullptr);
    if (ready > 0) return Status();
    if (ready < 0 && errno != EINTR)
      return Status(Code::kIoError, Text("socket ", path, ": poll: ", ErrnoText(errno)));
  }
}

Result<std::optional<std::uint32_t>> UserOf(std::string_view text) {
  if (text.empty()) return std::nullopt;
  std::uint32_t uid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), uid);
  if (error == std::errc() && end == text.data() + text.size()) return uid;
  return Error(Code::kInvalid, Text("node_user is \"", text, "\": give a user's number, as in 990, or any"));
}

// Whoever listens is whom bytes are given to and taken from: this user, root, or whom the options name, as
// the kernel says it.
Status CheckListener(const Peer& listener, const ConnectOptions& options, const std::string& path) {
  if (options.node_user == "any") return Status();
  const Result<std::optional<std::uint32_t>> named = UserOf(options.node_user);
  if (!named) return named.error();
  if (listener.uid_known && (listener.uid == geteuid() || listener.uid == 0 || listener.uid == *named))
    return Status();
  const std::string who = listener.uid_known ? Text("user ", listener.uid)
                                             : std::string("a user without a number in this namespace");
  return Status(
      Code::kDenied,
      Text("socket ", path, ": ", who, " listens there (process ", listener.pid, "), and this is user ",
           geteuid(), ": if it is your node, set node_user to ",
           listener.uid_known ? Text(listener.uid) : std::string("any"), "; else name the socket of yours"));
}

Result<Fd> OpenSocket(const std::string& path, std::int64_t deadline_ns) {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Error(Code::kIoError, Text("socket: ", ErrnoText(errno)));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    switch (errno) {
      case EINTR: break;
      case EAGAIN:  // more connect at once than the queue holds
        if (NowNs() >= deadline_ns) return Error(Late(path));
        poll(nullptr, 0, 1);
        break;
      case ENOENT:
      case ECONNREFUSED:
        return Error(Code::kGone, Text("no node listens at ", path, " (", ErrnoText(errno),
                                       "): start one with cisternd, or name its socket"));
      case EACCES:
      case EPERM:
        return Error(Code::kDenied,
                     Text("socket ", path, ": ", ErrnoText(errno),
                          ": run as the node's user, or have its setting clients name this one"));
      case EPROTOTYPE: return Error(Code::kMismatch, Text("what listens at ", path, " is no Cistern node"));
      default: return Error(Code::kIoError, Text("socket ", path, ": connect: ", ErrnoText(errno)));
    }
  }
  return fd;
}

// One message with its descriptors. kGone: the node hung up.
Result<Received> Receive(int socket, std::span<std::byte> message, std::int64_t deadline_ns,
                         const std::string& path) {
  iovec bytes{.iov_base = message.data(), .iov_len = message.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(wire::kMaxDescriptors * sizeof(int))> control;
  for (;;) {
    if (Status status = WaitFor(socket, POLLIN, deadline_ns, path); !status.ok())
      return Error(std::move(status));
    msghdr header{};
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // A reset is told once; what was sent before the node closed can still be read.
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNRESET)) continue;
    if (got < 0) return Error(Code::kIoError, Text("socket ", path, ": receive: ", ErrnoText(errno)));
    if (got == 0) return Error(Code::kGone, Text("the node at ", path, " hung up: connect again"));
    Received received;
    received.bytes = static_cast<std::size_t>(got);
    received.cut = (header.msg_flags & MSG_CTRUNC) != 0;
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
        received.descriptors.emplace_back(fd);
      }
    }
    return received;
  }
}

template <class Message>
Status Send(int socket, const Message& message, const std::string& path) {
  while (send(socket, &message, sizeof(message), MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    // The node may have refused before it read; its reason is waiting to be received.
    if (errno == EPIPE || errno == ECONNRESET)
      return Status(Code::kGone, Text("the node at ", path, " hung up"));
    return Status(Code::kIoError, Text("socket ", path, ": send: ", ErrnoText(errno)));
  }
  return Status();
}

template <std::size_t N>
std::string TextOf(const std::array<char, N>& field) {
  return std::string(field.begin(), std::find(field.begin(), field.end(), '\0'));
}

Status CheckWelcome(const wire::Welcome& welcome, const Received& received, const std::string& path) {
  if (received.bytes < 3 * sizeof(std::uint32_t) || welcome.magic != wire::kProtocolMagic ||
      welcome.kind != wire::MessageKind::kWelcome)
    return Status(Code::kMismatch, Text("what listens at ", path, " is no Cistern node"));
  if (welcome.version != wire::kProtocolVersion)
    return Status(Code::kMismatch,
                  Text("the node at ", path, " speaks protocol version ", welcome.version, ", this client ",
                       wire::kProtocolVersion, ": bring the older of the two up to the other's release"));
  if (received.bytes != sizeof(welcome))
    return Status(Code::kMismatch, Text("the node at ", path, " answered with ", received.bytes,
                                        " bytes, not ", sizeof(welcome)));
  if (welcome.code != static_cast<std::uint32_t>(Code::kOk)) {
    auto code = welcome.code <= static_cast<std::uint32_t>(kLastCode) ? static_cast<Code>(welcome.code)
                                                                      : Code::kDenied;
    return Status(code, TextOf(welcome.message));
  }
  if (received.cut) return WithoutDescriptors(path);
  if (received.descriptors.size() != 6)
    return Status(Code::kMismatch,
                  Text("the node at ", path, " gave ", received.descriptors.size(), " descriptors, not 6"));
  return Status();
}

// The shared files are what this release reads.
Status CheckFiles(Connection& connection) {
  const auto* arena = reinterpret_cast<const arena::ArenaHeader*>(connection.arena.data());
  const auto* index = reinterpret_cast<const arena::IndexHeader*>(connection.index.data());
  if (connection.arena.size() < sizeof(arena::ArenaHeader) ||
      connection.index.size() < arena::kIndexBucketsOffset || arena->magic != arena::kArenaMagic ||
      index->magic != arena::kIndexMagic)
    return Status(Code::kMismatch, "what the node gave is no arena with an index");
  if (arena->version != arena::kFormatVersion || index->version != arena::kFormatVersion)
    return Status(Code::kMismatch,
                  Text("the node's arena has format version ", arena->version, " and its index ",
                       index->version, ", this client reads ", arena::kFormatVersion));
  connection.geometry = {static_cast<std::uint32_t>(arena->alignment),
                         static_cast<std::uint32_t>(arena->header_count)};
  connection.bucket_count = index->bucket_count;
  const std::uint64_t index_entries =
      (connection.index.size() - arena::kIndexBucketsOffset) / sizeof(arena::IndexEntry);
  if (!connection.geometry.valid() || connection.geometry.file_bytes() > connection.arena.size() ||
      connection.bucket_count == 0 || connection.bucket_count > index_entries / arena::kEntriesPerBucket)
    return Status(Code::kMismatch,
                  Text("the node's arena of ", arena->header_count, " heads and its index of ",
                       index->bucket_count, " buckets do not fit their files"));
  if (connection.session.size() < sizeof(wire::SessionMemory))
    return Status(Code::kMismatch, Text("the session's memory has ", connection.session.size(),
                                        " bytes, not ", sizeof(wire::SessionMemory)));
  return Status();
}

// A lock that ends with the process and that no forked child has. By it a node that has no pidfd of this
// process (Linux before 6.5, another pid namespace) learns of its end (R15). False: it cannot be had, and
// hang-up tells.
bool LockWhole(int file) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(file, F_SETLK, &lock) == 0;
}

Status MapAll(Connection& connection, std::vector<Fd>& given) {
  struct Wanted {
    Mapping* into;
    std::string what;
    Access access;
    Pages pages;
  };
  const std::array<Wanted, 4> wanted = {
      {{&connection.arena, "the node's arena", Access::kRead, Pages::kAtTouch},
       {&connection.index, "the node's index", Access::kRead, Pages::kAtTouch},
       {&connection.session, "the session's memory", Access::kReadWrite, Pages::kAtOnce},
       {&connection.staging, kStagingName, Access::kReadWrite, Pages::kAtOnce}}};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    Result<Mapping> mapped =
        Mapping::MapWhole(given[i].get(), wanted[i].what, wanted[i].access, wanted[i].pages);
    if (!mapped) return std::move(mapped.error());
    *wanted[i].into = std::move(*mapped);
  }
  connection.arena_guard = MappingGuard(connection.arena, Access::kRead);
  connection.index_guard = MappingGuard(connection.index, Access::kRead);
  // Kept: a record lock goes with the first descriptor of its file that the process closes.
  connection.session_lock = std::move(given[2]);
  auto* page = reinterpret_cast<wire::SessionMemory*>(connection.session.data());
  const Result<Peer> node = PeerOf(connection.socket.get());
  // A node in this process does not see its lock.
  if (LockWhole(connection.session_lock.get()) && connection.session.size() >= sizeof(*page) && node &&
      node->pid != getpid())
    std::atomic_ref(page->locks).store(1);
  connection.core_event = std::move(given[4]);
  connection.client_event = std::move(given[5]);
  return CheckFiles(connection);
}

struct Clocks {
  std::int64_t monotonic_ns = 0, boot_ns = 0;
  static Clocks Now() { return {SystemClock().Now().ns, BootClock().Now().ns}; }
};

// The node's clocks, which it read between the hello and the welcome, are this process's.
Status CheckClocks(const Connection& connection, const Clocks& before) {
  const auto* page = reinterpret_cast<const wire::SessionMemory*>(connection.session.data());
  const Clocks then{page->monotonic_ns, page->boot_ns}, now = Clocks::Now();
  if (then.monotonic_ns == 0 && then.boot_ns == 0) return Status();  // it does not say
  if (then.monotonic_ns >= before.monotonic_ns && then.monotonic_ns <= now.monotonic_ns &&
      then.boot_ns >= before.boot_ns && then.boot_ns <= now.boot_ns)
    return Status();
  return Status(
      Code::kMismatch,
      Text("the node at ", connection.path, " has other clocks than this process (monotonic ",
           (then.monotonic_ns - now.monotonic_ns) / 1'000'000'000, " s, boot ",
           (then.boot_ns - now.boot_ns) / 1'000'000'000,
           " s apart): leases and deadlines would be of two clocks; run both in one time namespace"));
}

Result<Mapping> MapGranted(const Connection& connection, const Received& received) {
  if (received.cut) return Error(WithoutDescriptors(connection.path));
  if (received.descriptors.size() != 1)
    return Error(Code::kMismatch,
                 Text("the node at ", connection.path, " granted staging without its memory"));
  return Mapping::MapWhole(received.descriptors[0].get(), kStagingName, Access::kReadWrite, Pages::kAtOnce);
}

Result<wire::Hello> HelloFor(const ConnectOptions& options) {
  wire::Hello hello;
  if (options.tenant.empty() || options.tenant.size() >= hello.tenant.size() ||
      options.tenant.find('\0') != std::string::npos)
    return Error(Code::kInvalid, Text("tenant \"", options.tenant, "\" has ", options.tenant.size(),
                                      " bytes, a tenant's name has 1 to ", hello.tenant.size() - 1));
  if (options.deadline_us <= 0)
    return Error(Code::kInvalid,
                 Text("deadline_us is ", options.deadline_us, ": that is in the past, give one over 0"));
  std::copy(options.tenant.begin(), options.tenant.end(), hello.tenant.begin());
  hello.owner = options.owner;
  hello.staging_bytes = options.staging_bytes;
  return hello;
}

}  // namespace

std::int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

std::int64_t DeadlineNs(std::int64_t us, std::int64_t from_ns) {
  return us > (INT64_MAX - from_ns) / 1000 ? INT64_MAX : from_ns + us * 1000;
}

Result<Connection> ConnectToNode(const ConnectOptions& options) {
  std::string path = options.socket.empty() ? wire::DefaultSocketPath() : options.socket;
  if (Status status = wire::CheckSocketPath(path); !status.ok()) return Error(std::move(status));
  const std::int64_t deadline_ns = DeadlineNs(options.deadline_us);
  Result<Fd> socket = OpenSocket(path, deadline_ns);
  if (!socket) return Error(std::move(socket.error()));
  Result<Peer> listener = PeerOf(socket->get());
  if (!listener) return Error(std::move(listener.error()));
  if (Status ours = CheckListener(*listener, options, path); !ours.ok()) return Error(std::move(ours));
  Fd process = PeerProcess(socket->get(), *listener);
  Result<Connection> connection = GreetNode(std::move(*socket), std::move(path), options, deadline_ns);
  if (connection) connection->process = std::move(process);
  return connection;
}

Result<Connection> GreetNode(Fd socket, std::string path, const ConnectOptions& options,
                             std::int64_t deadline_ns) {
  const Clocks before = Clocks::Now();
  Connection connection;
  connection.socket = std::move(socket);
  connection.path = std::move(path);
  Result<wire::Hello> hello = HelloFor(options);
  if (!hello) return Error(std::move(hello.error()));
  Status sent = Send(connection.socket.get(), *hello, connection.path);
  if (!sent.ok() && sent.code() != Code::kGone) return Error(std::move(sent));
  std::span<std::byte> message = std::as_writable_bytes(std::span(&connection.welcome, 1));
  Result<Received> received = Receive(connection.socket.get(), message, deadline_ns, connection.path);
  if (!received) return Error(std::move(received.error()));
  Status status = CheckWelcome(connection.welcome, *received, connection.path);
  if (status.ok()) status = MapAll(connection, received->descriptors);
  if (status.ok()) status = CheckClocks(connection, before);
  if (!status.ok()) return Error(std::move(status));
  return connection;
}

Status AskForStaging(const Connection& connection, std::uint64_t bytes) {
  return Send(connection.socket.get(), wire::MoreStaging{.bytes = bytes}, connection.path);
}

Result<Grant> AwaitStaging(const Connection& connection, std::int64_t deadline_ns) {
  wire::StagingGrant grant;
  Result<Received> received = Receive(connection.socket.get(), std::as_writable_bytes(std::span(&grant, 1)),
                                      deadline_ns, connection.path);
  if (!received) return Error(std::move(received.error()));
  if (received->bytes != sizeof(grant) || grant.magic != wire::kProtocolMagic ||
      grant.kind != wire::MessageKind::kStaging)
    return Error(Code::kMismatch,
                 Text("the node at ", connection.path, " answered a request for staging with ",
                      received->bytes, " other bytes"));
  if (grant.code != static_cast<std::uint32_t>(Code::kOk))
    return Error(
        grant.code <= static_cast<std::uint32_t>(kLastCode) ? static_cast<Code>(grant.code) : Code::kBusy,
        TextOf(grant.message));
  Result<Mapping> memory = MapGranted(connection, *received);
  if (!memory) {
    // What cannot be used is not kept from others.
    const auto* page = reinterpret_cast<const wire::SessionMemory*>(connection.session.data());
    if (page->takes_staging_back != 0) static_cast<void>(GiveStagingBack(connection, grant.area));
    return Error(std::move(memory.error()));
  }
  return Grant{.area = grant.area, .memory = std::move(*memory)};
}

Status GiveStagingBack(const Connection& connection, std::uint32_t area) {
  return Send(connection.socket.get(), wire::ReturnStaging{.area = area}, connection.path);
}

}  // namespace cistern::client
