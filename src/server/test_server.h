// SPDX-License-Identifier: Apache-2.0
// A server over a real loop, store, arena and sockets, all on the test's thread, and a client that speaks the
// protocol by hand, so that it can speak it wrongly.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/format.h"
#include "base/log.h"
#include "base/random.h"
#include "base/slow_calls.h"
#include "base/test_directory.h"
#include "catalog/journal.h"
#include "io/loop.h"
#include "memory/movers.h"
#include "memory/slots.h"
#include "server/lanes.h"
#include "server/server.h"
#include "store/block_store.h"
#include "store/remote_blocks.h"
#include "wire/protocol.h"
#include "wire/spec_wire.h"

namespace cistern::server {

inline constexpr std::uint64_t kBlock = 8192;
inline constexpr std::uint64_t kMovedBlock = 3u << 19;  // too large for the core to copy by itself

// Moves when it is told to, on the core.
class CoreMovers final : public memory::Movers {
 public:
  CoreMovers(arena::Words& words, Executor& executor) : words_(words), executor_(executor) {}
  void Submit(memory::MoverJob& job) override {
    job.Move(words_);
    if (hold)
      held.push_back(&job);
    else
      executor_.Post(job);
  }
  // Jobs that are done stay unreported while `hold` is set, as if a mover were slow.
  bool hold = false;
  std::vector<memory::MoverJob*> held;
  void LetGo() {
    hold = false;
    for (memory::MoverJob* job : held) executor_.Post(*job);
    held.clear();
  }

 private:
  arena::Words& words_;
  Executor& executor_;
};

class RawClient;

class TestServer {
 public:
  explicit TestServer(ServerOptions with = {}, store::RemoteBlocks* of_others = nullptr) : remote(of_others) {
    options = with;
    options.socket = directory_.path() + "/socket";
    if (options.staging_budget_bytes == 0) options.staging_budget_bytes = 8u << 20;
    arena_fd_ = MakeShared("arena", geometry.file_bytes(), arena_map_);
    index_fd_ = MakeShared("index", geometry.index_bytes(), index_map_);
    arena.emplace(arena_map_.data(), geometry);
    loop = std::move(*io::MakeLoop(clock, {.kind = io::LoopKind::kEpoll, .poll_us = 0}));
    lanes.emplace(loop->executor());
    movers.emplace(words, loop->executor());
    slots.emplace(words, *arena);
    journal.emplace(*loop, directory_.path(), 1);
    store.emplace(store::BlockStore::Parts{loop->executor(), clock, words, *slots,
                                           arena::IndexSpace(index_map_.data(), geometry.bucket_count()),
                                           *movers, *journal, *log},
                  catalog::StoreOptions{.core_copy_bytes = 1u << 20});
    CISTERN_ASSERT(loop->BlockOn(store->Recover()).ok());
    Result<std::unique_ptr<Server>> opened = Open();
    CISTERN_ASSERT(opened.has_value());
    server = std::move(*opened);
  }
  ~TestServer() {
    if (server != nullptr) loop->BlockOn(server->Drain(clock.Now()));
    server.reset();
    store.reset();
  }

  Result<std::unique_ptr<Server>> Open() {
    return Server::Open({*loop,
                         *lanes,
                         *store,
                         *movers,
                         *log,
                         arena_fd_.get(),
                         index_fd_.get(),
                         1,
                         [this](std::span<std::byte> bytes) {
                           for (std::byte& b : bytes) b = static_cast<std::byte>(random_.Next());
                         },
                         [this] { return NoStatus(loop->executor()); },
                         /*device=*/nullptr,
                         /*report=*/nullptr,
                         /*drop=*/nullptr,
                         /*resize=*/nullptr,
                         remote,
                         /*drain=*/nullptr,
                         /*inquire=*/nullptr,
                         &slow_calls,
                         /*node_of=*/nullptr,
                         [this](const NamespaceSpec& spec, Instant) { return Agree(loop->executor(), spec); },
                         [this](const NamespaceSpec& spec, bool attached, Instant) {
                           return Agreed(loop->executor(), spec, attached);
                         }},
                        options);
  }

  static Task<std::string> NoStatus(Executor&) { co_return "{}"; }
  // Every name is this node's.
  Task<Status> Agree(Executor&, const NamespaceSpec& spec) {
    agreed_on.push_back(spec.name);
    co_return Status();
  }
  Task<void> Agreed(Executor&, const NamespaceSpec& spec, bool attached) {
    if (!attached) given_back.push_back(spec.name);
    co_return;
  }

  // Turns the loop until it is so; a watchdog ends a test that waits in vain.
  void Until(const std::function<bool()>& so) {
    const Instant end = clock.Now().PlusUs(300'000'000);
    while (!so()) {
      CISTERN_ASSERT(clock.Now() < end);
      loop->PollOnce();
    }
  }
  // Turns until there is nothing left to do now.
  void Settle() {
    for (int quiet = 0; quiet < 200;) quiet = loop->PollOnce() ? 0 : quiet + 1;
  }

  store::RemoteBlocks* const remote;
  const std::string& socket() const { return options.socket; }
  const ServerCounters& counters() const { return server->counters(); }
  // Lines come from the logger's thread, a little later.
  void UntilLogged(std::string_view text) {
    Until([&] {
      std::lock_guard lock(lines_mutex_);
      return lines_.find(text) != std::string::npos;
    });
  }

  std::mutex lines_mutex_;
  std::string lines_;
  SystemClock clock;
  arena::RealWords words;
  arena::Geometry geometry{4096, 2};
  ServerOptions options;
  std::vector<std::string> agreed_on;   // names, as others were asked for them
  std::vector<std::string> given_back;  // and those of attaches that failed
  std::optional<arena::ArenaSpace> arena;
  std::unique_ptr<Logger> log = MakeLog();
  SlowCalls slow_calls{clock, *log};
  std::unique_ptr<io::Loop> loop;
  std::optional<Lanes> lanes;
  std::optional<CoreMovers> movers;
  std::optional<memory::Slots> slots;
  std::optional<catalog::Journal> journal;
  std::optional<store::BlockStore> store;
  std::unique_ptr<Server> server;

 private:
  std::unique_ptr<Logger> MakeLog() {
    return Logger::ToSink(LogLevel::kDebug, [this](LogLevel, std::string_view line) {
      std::lock_guard lock(lines_mutex_);
      lines_.append(line);
    });
  }
  static Fd MakeShared(const char* name, std::uint64_t bytes, Mapping& mapping) {
    Fd file(memfd_create(name, MFD_CLOEXEC));
    CISTERN_ASSERT(ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
    mapping = std::move(*Mapping::Map(file.get(), name, 0, bytes, Access::kReadWrite));
    return Fd(open(Text("/proc/self/fd/", file.get()).c_str(), O_RDONLY | O_CLOEXEC));
  }

  const TestDirectory directory_;
  Fd arena_fd_, index_fd_;
  Mapping arena_map_, index_map_;
  Random random_{1};
};

// Speaks the protocol by hand.
class RawClient {
 public:
  explicit RawClient(TestServer& server) : server_(&server) {
    socket_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, server.socket().data(), server.socket().size());
    CISTERN_ASSERT(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  // Says hello and takes the answer.
  static RawClient In(TestServer& server) { return In(server, NewHello()); }
  static RawClient In(TestServer& server, const wire::Hello& hello) {
    RawClient client(server);
    client.Send(hello);
    client.TakeWelcome();
    return client;
  }
  static wire::Hello NewHello(std::string_view tenant = "default") {
    wire::Hello hello;
    std::copy(tenant.begin(), tenant.end(), hello.tenant.begin());
    return hello;
  }

  template <class Message>
  void Send(const Message& message) {
    CISTERN_ASSERT(send(socket_.get(), &message, sizeof(message), MSG_NOSIGNAL) ==
                   static_cast<ssize_t>(sizeof(message)));
  }
  void TakeWelcome() {
    std::vector<Fd> given = Receive(welcome);
    if (given.size() < 6) return;
    arena = std::move(given[0]);
    session = std::move(given[2]);
    staging = std::move(given[3]);
    core_event = std::move(given[4]);
    client_event = std::move(given[5]);
    memory_ = std::move(
        *Mapping::Map(session.get(), "session", 0, sizeof(wire::SessionMemory), Access::kReadWrite));
    staging_map_ =
        std::move(*Mapping::Map(staging.get(), "staging", 0, welcome.staging_bytes, Access::kReadWrite));
  }
  Code code() const { return static_cast<Code>(welcome.code); }
  std::string message() const { return welcome.message.data(); }

  // One message with its descriptors.
  template <class Message>
  std::vector<Fd> Receive(Message& message) {
    iovec bytes{&message, sizeof(message)};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control;
    msghdr header{};
    ssize_t got = -1;
    server_->Until([&] {
      header = {};
      header.msg_iov = &bytes;
      header.msg_iovlen = 1;
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      got = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      return got >= 0 || (errno != EAGAIN && errno != ECONNRESET);
    });
    CISTERN_ASSERT(got == static_cast<ssize_t>(sizeof(message)));
    std::vector<Fd> given;
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
      for (std::size_t at = 0; at + CMSG_LEN(0) < part->cmsg_len; at += sizeof(int)) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(part) + at, sizeof(fd));
        given.emplace_back(fd);
      }
    }
    return given;
  }
  // Whether the node has closed the connection.
  bool HungUp() const {
    pollfd asked{socket_.get(), POLLRDHUP, 0};
    return poll(&asked, 1, 0) > 0 && (asked.revents & (POLLHUP | POLLRDHUP)) != 0;
  }

  wire::SessionMemory& page() { return *reinterpret_cast<wire::SessionMemory*>(memory_.data()); }
  std::span<std::byte> staging_bytes() { return staging_map_.bytes(); }

  void Push(wire::Submission entry) {
    if (entry.deadline_ns == 0) entry.deadline_ns = server_->clock.Now().PlusUs(300'000'000).ns;
    page().submissions[page().submitted % wire::kRingEntries] = entry;
    std::atomic_ref(page().submitted).fetch_add(1);
    Wake();
  }
  void Wake() { io::SignalEventFd(core_event.get()); }
  // Puts arguments at the start of the area and leaves the second half for the reply.
  template <class Item>
  wire::Submission With(wire::Op op, std::span<const Item> items) {
    if (!items.empty()) std::memcpy(page().arguments, items.data(), items.size_bytes());
    wire::Submission entry;
    entry.op = op;
    entry.namespace_slot = ns.slot;
    entry.incarnation = ns.incarnation;
    entry.args_bytes = static_cast<std::uint32_t>(items.size_bytes());
    entry.reply_offset = wire::kArgumentBytes / 2;
    entry.reply_bytes = wire::kArgumentBytes / 2;
    return entry;
  }
  // The answer to the oldest call.
  wire::Completion Answer() {
    server_->Until([&] { return page().completed != page().collected || HungUp(); });
    wire::Completion completion = page().completions[page().collected % wire::kRingEntries];
    page().collected = page().collected + 1;
    return completion;
  }
  wire::Completion Do(const wire::Submission& entry) {
    Push(entry);
    return Answer();
  }
  std::string ReplyText() {
    return reinterpret_cast<const char*>(page().arguments + wire::kArgumentBytes / 2);
  }
  template <class Item>
  Item Reply(std::size_t at = 0) {
    Item item;
    std::memcpy(&item, page().arguments + wire::kArgumentBytes / 2 + at * sizeof(item), sizeof(item));
    return item;
  }

  // A namespace of one full group with one part.
  void Attach() { CISTERN_ASSERT(AttachModel("m") == Code::kOk); }
  Code AttachModel(std::string model) {
    NamespaceSpec spec;
    spec.fields = {{"model", std::move(model)}};
    spec.groups.push_back({.name = "all"});
    return AttachSpec(spec);
  }
  Code AttachSpec(const NamespaceSpec& spec) {
    const std::vector<std::byte> list = *wire::EncodeSpec(spec);
    std::vector<std::byte> args(sizeof(wire::AttachArgs));
    wire::AttachArgs head{.spec_bytes = static_cast<std::uint32_t>(list.size())};
    std::memcpy(args.data(), &head, sizeof(head));
    args.insert(args.end(), list.begin(), list.end());
    wire::Completion answer = Do(With(wire::Op::kAttach, std::span<const std::byte>(args)));
    if (static_cast<Code>(answer.code) == Code::kOk) ns = Reply<wire::AttachReply>();
    return static_cast<Code>(answer.code);
  }
  static wire::KeyItem Key(std::uint8_t name) {
    wire::KeyItem item;
    item.bytes.fill(static_cast<std::byte>(name));
    item.size = 32;
    return item;
  }
  // One block of `bytes` from the start of staging.
  wire::Submission Put(std::uint8_t name, std::uint8_t parent, std::uint64_t bytes) {
    wire::WriteItem item;
    item.key = Key(name);
    if (parent != 0) item.parent = Key(parent);
    item.bytes = bytes;
    item.put_low = name;
    wire::Submission entry = With(wire::Op::kWrite, std::span<const wire::WriteItem>(&item, 1));
    entry.a = 1;
    return entry;
  }
  // A put whose mover reports when it is let go.
  void PushHeldPut(std::uint8_t name = 1) {
    server_->movers->hold = true;
    Push(Put(name, 0, kMovedBlock));
    server_->Until([&] { return !server_->movers->held.empty(); });
  }
  // Writes the touch at that place of the ring, as a client does that read the view without a call. `touched`
  // is the test's to set.
  void Touch(std::uint32_t at, const wire::ViewItem& view) {
    page().touches[at] = std::uint64_t{view.place} << 32 | static_cast<std::uint32_t>(view.generation);
  }
  wire::Submission AcquireOf(std::uint8_t name) {
    wire::BlockItem item{.key = Key(name)};
    wire::Submission entry = With(wire::Op::kAcquire, std::span<const wire::BlockItem>(&item, 1));
    entry.a = 1'000'000;
    return entry;
  }

  wire::Welcome welcome;
  wire::AttachReply ns;
  Fd arena, session, staging, core_event, client_event;

 private:
  TestServer* server_;
  Fd socket_;
  Mapping memory_, staging_map_;

 public:
  int fd() const { return socket_.get(); }
  void HangUp() { socket_.Close(); }
};

inline Code CodeOf(const wire::Completion& completion) { return static_cast<Code>(completion.code); }

// A hello of another version, tenant or owner.
inline Code Greet(TestServer& server, const wire::Hello& hello, std::string* message = nullptr) {
  RawClient client(server);
  client.Send(hello);
  client.Receive(client.welcome);
  if (message != nullptr) *message = client.message();
  return client.code();
}

}  // namespace cistern::server
