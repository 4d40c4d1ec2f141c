// SPDX-License-Identifier: Apache-2.0
// What ends with a session, however its process goes (R15), and the end of the server.
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstdio>
#include <optional>

#include "base/test_call_filter.h"
#include "server/test_server.h"

namespace cistern::server {
namespace {

TEST(Going, LeasesEndWithTheSession) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  client.Do(client.AcquireOf(1));
  EXPECT_EQ(server.store->occupancy().leases, 1u);
  client.HangUp();
  server.Until([&] { return server.counters().sessions == 0; });
  EXPECT_EQ(server.store->occupancy().leases, 0u);
}

// A process that reads a few blocks and ends is gone before anybody looks at its ring.
TEST(Going, WhatASessionReadLastCountsAsUsed) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  ASSERT_EQ(CodeOf(client.Do(client.AcquireOf(1))), Code::kOk);
  const wire::ViewItem view = client.Reply<wire::ViewItem>();
  server.Settle();
  constexpr std::uint32_t kReads = 300;  // more than one step takes
  for (std::uint32_t i = 0; i < kReads; ++i) client.Touch(i, view);
  client.page().touched = kReads;
  client.HangUp();
  server.Until([&] { return server.counters().sessions == 0; });
  EXPECT_EQ(server.counters().touches, kReads);
  EXPECT_EQ(server.store->counters().touches_applied.value(), kReads);
}

// R15: hang-up does not come while a forked child holds the socket; the pidfd tells.
TEST(Going, LeasesOfAKilledProcessEndThoughItsChildLives) {
  TestServer server;
  int told[2], live[2];
  ASSERT_EQ(pipe(told), 0);
  ASSERT_EQ(pipe(live), 0);
  pid_t client = fork();
  if (client == 0) {
    // Neither ends tidily: the server's threads and files are the parent's.
    Fd connection(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, server.socket().data(), server.socket().size());
    if (connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) _exit(1);
    wire::Hello hello = RawClient::NewHello();
    if (send(connection.get(), &hello, sizeof(hello), 0) < 0) _exit(1);
    if (fork() == 0) {
      // Lives, with the socket open, until the test has seen what it wants.
      char byte;
      close(live[1]);
      [[maybe_unused]] ssize_t end = read(live[0], &byte, 1);
      _exit(0);
    }
    [[maybe_unused]] ssize_t said = write(told[1], "x", 1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(told[0], &byte, 1), 1);
  server.Until([&] { return server.counters().sessions == 1; });
  kill(client, SIGKILL);
  server.Until([&] { return server.counters().sessions == 0; });
  waitpid(client, nullptr, 0);
  for (int fd : {told[0], told[1], live[0], live[1]}) close(fd);
}

// From then on this process gets no pidfds: by a peer's socket as before Linux 6.5, by pid as of a process in
// another pid namespace.
void ForbidPidfds() {
  constexpr std::uint32_t kPeerPidfd = 77;
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kCallNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, CallArgument(2)),  // option
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPeerPidfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  FilterCalls(steps);
}

// A process that has locked a session's memory and a forked child of it that lives on until the end.
class Holder {
 public:
  explicit Holder(int session_memory) {
    int told[2];
    CISTERN_ASSERT(pipe(told) == 0 && pipe(live_) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      struct flock lock{};
      lock.l_type = F_WRLCK;
      lock.l_whence = SEEK_SET;
      if (fcntl(session_memory, F_SETLK, &lock) != 0) _exit(1);
      if (fork() == 0) {
        char byte;
        close(live_[1]);
        [[maybe_unused]] ssize_t end = read(live_[0], &byte, 1);
        _exit(0);
      }
      [[maybe_unused]] ssize_t said = write(told[1], "x", 1);
      pause();
      _exit(0);
    }
    close(told[1]);
    char byte;
    CISTERN_ASSERT(read(told[0], &byte, 1) == 1);
    close(told[0]);
  }
  ~Holder() {
    close(live_[0]);
    close(live_[1]);
  }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
  int live_[2];
};

void SessionsEndWithoutPidfds() {
  ForbidPidfds();
  TestServer server;
  {
    // Gone before the node has looked once.
    RawClient brief = RawClient::In(server);
    Holder holder(brief.session.get());
    brief.page().locks = 1;
    holder.Kill();
    server.server->Tick();
    server.Until([&] { return server.counters().sessions == 0; });
  }
  RawClient client = RawClient::In(server), old = RawClient::In(server);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  client.Do(client.AcquireOf(1));
  std::optional<Holder> holder(std::in_place, client.session.get());
  for (int tick = 0; tick < 3; ++tick) server.server->Tick();
  server.Settle();
  CISTERN_ASSERT(server.counters().sessions == 2 && server.store->occupancy().leases == 1);
  holder->Kill();
  server.server->Tick();
  // The one that never had a lock goes on until it hangs up, for which the child that has its socket must go.
  server.Until([&] { return server.counters().sessions == 1; });
  CISTERN_ASSERT(client.page().ended != 0 && server.store->occupancy().leases == 0);
  holder.reset();
  old.HangUp();
  server.Until([&] { return server.counters().sessions == 0; });
  std::fprintf(stderr, "all ended\n");
}

// R15 on Linux before 6.5, of a client in another pid namespace.
TEST(GoingDeathTest, R15WithoutAPidfdTheLockTellsThoughAForkedChildLives) {
  EXPECT_EXIT((SessionsEndWithoutPidfds(), std::_Exit(0)), ::testing::ExitedWithCode(0), "all ended");
}

// With it, what was ready before a turn gets one step in it.
class Crowd final : public io::Poller {
 public:
  explicit Crowd(io::Loop& loop) : loop_(loop) { loop.AddPoller(*this); }
  bool Poll() override {
    for (int i = 0; i < 256; ++i) loop_.executor().Post([] {});
    return true;
  }

 private:
  io::Loop& loop_;
};

TEST(Going, P4WhatASessionPutsAfterTheLastOfItsOwnerWentEndsWithIt) {
  TestServer server;
  RawClient first = RawClient::In(server);
  wire::Hello hello = RawClient::NewHello();
  hello.owner = first.welcome.owner;
  RawClient last = RawClient::In(server, hello);
  first.Attach();
  std::vector<wire::WriteItem> items(16);  // one after the other, a step each
  for (std::uint8_t i = 0; i < items.size(); ++i)
    items[i] = {
        .key = RawClient::Key(i + 1), .parent = RawClient::Key(100), .bytes = 64u << 10, .put_low = i + 1u};
  wire::Submission write = first.With(wire::Op::kWrite, std::span<const wire::WriteItem>(items));
  write.a = items.size();
  server.Settle();
  {
    Crowd crowd(*server.loop);
    first.Push(write);
    server.Until([&] { return server.store->occupancy().pending > 0; });
    first.HangUp();
    server.Until([&] { return first.page().ended != 0; });
    last.HangUp();
    server.Until([&] { return server.counters().sessions == 1; });
    EXPECT_EQ(server.counters().in_flight, 1u)
        << "the write ended before the last of its owner: nothing was tried";
  }
  server.Until([&] { return server.counters().sessions == 0; });
  EXPECT_EQ(server.store->occupancy().pending, 0u);
  EXPECT_EQ(server.slots->counts().used_slots, 0u);
}

TEST(Going, P4ALeaseThatIsGrantedWhileItsSessionIsEndedEndsWithIt) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  ASSERT_EQ(CodeOf(client.Do(client.Put(1, 0, kBlock))), Code::kOk);
  // Many views, whose end takes longer than a call of few.
  const auto acquire = [&](std::size_t blocks) {
    const std::vector<wire::BlockItem> items(blocks, wire::BlockItem{.key = RawClient::Key(1)});
    wire::Submission call = client.With(wire::Op::kAcquire, std::span<const wire::BlockItem>(items));
    call.a = 60'000'000;
    return call;
  };
  constexpr std::size_t kMany = wire::kArgumentBytes / 2 / sizeof(wire::BlockItem);
  ASSERT_EQ(CodeOf(client.Do(acquire(kMany))), Code::kOk);
  ASSERT_EQ(server.store->occupancy().leases, 1u);
  // Both are taken at once, and the second ends the session.
  client.Push(acquire(kMany / 16));
  const wire::Submission outside{.op = wire::Op::kTouch, .args_offset = UINT32_MAX, .args_bytes = UINT32_MAX};
  client.Push(outside);
  server.Until([&] { return server.counters().sessions == 0; });
  EXPECT_EQ(server.store->occupancy().leases, 0u);
}

TEST(Going, P5NamespacesThatNobodyUsesAnyMoreMakeRoomForOthers) {
  TestServer server;
  RawClient greedy = RawClient::In(server);
  const auto attach_all = [](RawClient& client, std::uint32_t first) {
    std::uint32_t count = 0;
    while (client.AttachModel(std::to_string(first + count)) == Code::kOk) ++count;
    return count;
  };
  EXPECT_EQ(attach_all(greedy, 0), 820u);
  // Another session of the same owner keeps all of them.
  wire::Hello hello = RawClient::NewHello();
  hello.owner = greedy.welcome.owner;
  std::optional<RawClient> joined = RawClient::In(server, hello);
  // One of another owner that only calls in one of them keeps that one.
  greedy.AttachModel("0");
  RawClient user = RawClient::In(server);
  user.ns = greedy.ns;
  EXPECT_EQ(static_cast<Code>(user.Do(user.AcquireOf(1)).code), Code::kOk);
  greedy.HangUp();
  server.Until([&] { return server.counters().sessions == 2; });
  RawClient next = RawClient::In(server);
  EXPECT_EQ(attach_all(next, 1000), 164u);
  joined.reset();
  server.Until([&] { return server.counters().sessions == 2; });
  for (std::uint32_t i = 0; i < 10; ++i) EXPECT_EQ(next.AttachModel(std::to_string(2000 + i)), Code::kOk);
  EXPECT_EQ(server.store->occupancy().namespaces, 984u);
  EXPECT_TRUE(server.store->CheckNamespace(user.ns.slot, user.ns.incarnation).ok());
}

TEST(Going, DrainFinishesWhatIsInFlightAndRefusesTheRest) {
  TestServer server({.session_staging_bytes = 4u << 20});
  RawClient client = RawClient::In(server);
  client.Attach();
  client.PushHeldPut();
  Task<void> drained = server.server->Drain(server.clock.Now().PlusUs(300'000'000));
  client.Push(client.AcquireOf(1));
  server.Until([&] { return client.page().completed == 2; });  // attach, and the acquire that is refused
  client.page().collected = 1;
  EXPECT_EQ(CodeOf(client.Answer()), Code::kGone);
  EXPECT_FALSE(std::filesystem::exists(server.socket()));
  server.movers->LetGo();
  server.Until([&] { return client.page().completed == 3; });
  server.Until([&] { return drained.done(); });
  EXPECT_TRUE(client.HungUp());
  EXPECT_EQ(server.store->occupancy().records, 1u);
  server.server.reset();
}

}  // namespace
}  // namespace cistern::server
