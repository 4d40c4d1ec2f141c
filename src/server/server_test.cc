// SPDX-License-Identifier: Apache-2.0
// Who comes in, who stays out, and what a session may do, against a real store (R12, R13, R15).
#include "server/server.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>

#include "server/closer.h"
#include "server/test_server.h"
#include "wire/match_wire.h"

// Read by ThreadSanitizer alone, which cannot see how the library behind the log synchronises.
extern "C" const char* __tsan_default_suppressions() { return "race:spdlog\n"; }

namespace cistern::server {
namespace {

constexpr std::uint64_t kBlock = 8192;
constexpr std::uint64_t kMovedBlock = 3u << 19;  // too large for the core to copy by itself

Code CodeOf(const wire::Completion& completion) { return static_cast<Code>(completion.code); }

// A hello of another version, tenant or owner.
Code Greet(TestServer& server, const wire::Hello& hello, std::string* message = nullptr) {
  RawClient client(server);
  client.Send(hello);
  client.Receive(client.welcome);
  if (message != nullptr) *message = client.message();
  return client.code();
}

// ---- coming in ------------------------------------------------------------------------------------------

TEST(Hello, R12TheArenaCannotBeMadeWritable) {
  TestServer server;
  RawClient client = RawClient::In(server);
  ASSERT_EQ(client.code(), Code::kOk) << client.message();
  void* arena = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, client.arena.get(), 0);
  ASSERT_NE(arena, MAP_FAILED);
  EXPECT_NE(mprotect(arena, 4096, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(errno, EACCES);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, client.arena.get(), 0), MAP_FAILED);
  munmap(arena, 4096);
}

TEST(Hello, R13TheSessionsMemoryCannotBePulledAway) {
  TestServer server;
  RawClient client = RawClient::In(server);
  EXPECT_NE(ftruncate(client.session.get(), 0), 0);
  EXPECT_NE(ftruncate(client.staging.get(), 1 << 30), 0);
  EXPECT_EQ(fcntl(client.staging.get(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

// A client that could fill the counter and clear O_NONBLOCK would block the core in its next signal.
TEST(Hello, R13WhatTheCoreSignalsCannotBeFilled) {
  TestServer server;
  RawClient client = RawClient::In(server);
  const std::uint64_t full = UINT64_MAX - 1;
  ASSERT_LT(write(client.client_event.get(), &full, sizeof(full)), 0);
  ASSERT_EQ(fcntl(client.client_event.get(), F_SETFL, 0), 0);
  client.Attach();
  client.page().client_sleeps = 1;
  // Each answer is a signal, and none of them is read.
  for (int i = 0; i < 3; ++i) {
    pollfd asked{client.client_event.get(), POLLIN, 0};
    EXPECT_EQ(poll(&asked, 1, 0), i == 0 ? 0 : 1);
    client.Do(client.With(wire::Op::kRelease, std::span<const std::byte>()));
  }
}

template <class Message>
int SendAlong(int socket, Message message, int descriptor) {
  iovec bytes{.iov_base = &message, .iov_len = sizeof(message)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(descriptor));
  return sendmsg(socket, &header, MSG_NOSIGNAL) < 0 ? errno : 0;
}

TEST(Hello, R13DescriptorsThatAClientSendsDoNotReachTheNode) {
  TestServer server;
  RawClient client(server);
  int takes = 0;
  socklen_t size = sizeof(takes);
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS
  if (getsockopt(client.fd(), SOL_SOCKET, kPassRights, &takes, &size) != 0)
    GTEST_SKIP() << "refusing them is of Linux 6.16";
  EXPECT_EQ(SendAlong(client.fd(), RawClient::NewHello(), client.fd()), EPERM);  // not accepted yet
  client.Send(RawClient::NewHello());
  client.TakeWelcome();
  ASSERT_EQ(client.code(), Code::kOk) << client.message();
  EXPECT_EQ(SendAlong(client.fd(), RawClient::NewHello(), client.fd()), EPERM);
  client.Attach();
}

// A TCP connection of which the last owner waits for its other end, which takes nothing.
class Lingering {
 public:
  Lingering() {
    Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    CISTERN_ASSERT(bind(listener.get(), any, size) == 0 && listen(listener.get(), 1) == 0);
    CISTERN_ASSERT(getsockname(listener.get(), any, &size) == 0);
    connection = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CISTERN_ASSERT(connect(connection.get(), any, size) == 0);
    peer_ = Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const linger an_hour{.l_onoff = 1, .l_linger = 3600};
    CISTERN_ASSERT(setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &an_hour, sizeof(an_hour)) == 0);
    const std::vector<std::byte> much(1u << 20);
    while (send(connection.get(), much.data(), much.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) continue;
  }
  Fd connection;

 private:
  Fd peer_;  // ends the wait when it goes
};

// Where the kernel takes them, as of a connection that was not made at the socket.
TEST(Hello, R13ADescriptorThatIsLongInGoingKeepsNobodyWaiting) {
  TestServer server;
  RawClient honest = RawClient::In(server);
  std::array<Lingering, 3> sent;
  std::array<Fd, 3> clients;
  const auto in = [&](Fd& client) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    client = Fd(ends[1]);
    server.server->Adopt(Fd(ends[0]));
  };
  const auto send_last = [](const Fd& client, const auto& message, Lingering& along) {
    ASSERT_EQ(SendAlong(client.get(), message, along.connection.get()), 0);
    along.connection.Close();
  };
  in(clients[0]);
  send_last(clients[0], RawClient::NewHello(), sent[0]);
  server.Until([&] { return server.counters().refused == 1; });
  honest.Attach();
  for (std::size_t i : {1, 2}) {
    in(clients[i]);
    const wire::Hello hello = RawClient::NewHello();
    ASSERT_EQ(send(clients[i].get(), &hello, sizeof(hello), 0), static_cast<ssize_t>(sizeof(hello)));
    server.Until([&] { return server.counters().sessions == 2; });
    // The one that is read, and one that is left behind another when its sender hangs up.
    const wire::MoreStaging more{.bytes = 4096};
    if (i == 2) {
      ASSERT_EQ(send(clients[i].get(), &more, sizeof(more), 0), static_cast<ssize_t>(sizeof(more)));
    }
    send_last(clients[i], more, sent[i]);
    if (i == 2) clients[i].Close();
    server.Until([&] { return server.counters().sessions == 1; });
    EXPECT_EQ(CodeOf(honest.Do(honest.AcquireOf(1))), Code::kOk);
  }
}

// A connection that is made elsewhere, and its other end.
Fd Adopted(TestServer& server) {
  int ends[2];
  CISTERN_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  server.server->Adopt(Fd(ends[0]));
  return Fd(ends[1]);
}

TEST(Hello, R13StrangersWhoLeaveSomethingUnreadTakeNoSessionsPlace) {
  TestServer server({.max_sessions = 2});
  Lingering sent;
  const Fd first = Adopted(server);
  ASSERT_EQ(SendAlong(first.get(), RawClient::NewHello(), sent.connection.get()), 0);
  sent.connection.Close();
  server.Until([&] { return server.counters().refused == 1; });
  std::vector<Fd> strangers;
  for (std::uint64_t i = 2; i <= 12; ++i) {
    strangers.push_back(Adopted(server));
    const std::array<char, 2> messages = {'a', 'b'};
    for (const char& message : messages) ASSERT_EQ(send(strangers.back().get(), &message, 1, 0), 1);
    server.Until([&] { return server.counters().refused == i; });
  }
  EXPECT_EQ(RawClient::In(server).code(), Code::kOk);
}

TEST(Hello, R13NobodyIsAcceptedWhileTooManyStrangersAreLetGoOf) {
  TestServer server;
  std::vector<Lingering> sent(Closer::kMaxStrangers);
  std::vector<Fd> strangers;
  for (Lingering& along : sent) {
    strangers.push_back(Adopted(server));
    ASSERT_EQ(SendAlong(strangers.back().get(), RawClient::NewHello(), along.connection.get()), 0);
    along.connection.Close();
    server.Until([&] { return server.counters().refused == strangers.size(); });
  }
  RawClient waiting(server);
  waiting.Send(RawClient::NewHello());
  server.Settle();
  EXPECT_EQ(server.counters().sessions, 0u);
  sent.clear();
  waiting.TakeWelcome();
  EXPECT_EQ(waiting.code(), Code::kOk);
}

TEST(Hello, AnotherVersionIsToldBothVersions) {
  TestServer server;
  wire::Hello hello = RawClient::NewHello();
  hello.version = 7;
  std::string message;
  EXPECT_EQ(Greet(server, hello, &message), Code::kMismatch);
  EXPECT_NE(message.find("version 7"), std::string::npos) << message;
  EXPECT_NE(message.find("this node 1"), std::string::npos) << message;
}

TEST(Hello, AnotherFirstMessageIsToldItsKind) {
  TestServer server;
  wire::Hello hello = RawClient::NewHello();
  hello.kind = wire::MessageKind::kMoreStaging;
  std::string message;
  EXPECT_EQ(Greet(server, hello, &message), Code::kMismatch);
  EXPECT_NE(message.find("of kind 3, a client begins with kind 1"), std::string::npos) << message;
}

TEST(Hello, AnotherTenantIsDenied) {
  TestServer server;
  std::string message;
  EXPECT_EQ(Greet(server, RawClient::NewHello("other"), &message), Code::kDenied);
  EXPECT_NE(message.find("tenant other"), std::string::npos) << message;
}

TEST(Hello, AForeignOwnerTokenIsDeniedAndAnOpenOneJoins) {
  TestServer server;
  RawClient first = RawClient::In(server);
  wire::Hello hello = RawClient::NewHello();
  hello.owner = first.welcome.owner;
  RawClient second = RawClient::In(server, hello);
  EXPECT_EQ(second.code(), Code::kOk);
  EXPECT_EQ(second.welcome.owner, first.welcome.owner);
  hello.owner[3] ^= std::byte{1};
  EXPECT_EQ(Greet(server, hello), Code::kDenied);
  // A token ends with its last session.
  hello.owner = first.welcome.owner;
  first.HangUp();
  second.HangUp();
  server.Until([&] { return server.counters().sessions == 0; });
  EXPECT_EQ(Greet(server, hello), Code::kDenied);
}

TEST(Hello, BytesThatAreNoHelloGetAnAnswerAndNoSession) {
  TestServer server;
  RawClient client(server);
  client.Send(std::array<char, 20>{"GET / HTTP/1.1\r\n"});
  client.Receive(client.welcome);
  EXPECT_EQ(client.code(), Code::kMismatch);
  EXPECT_EQ(server.counters().accepted, 0u);
}

TEST(Hello, WhoSaysNothingIsSentAway) {
  TestServer server({.hello_us = 1'000});
  RawClient client(server);
  server.Until([&] { return client.HungUp(); });
}

TEST(Hello, R13SilentConnectionsKeepNobodyOutAndTheOldestGoesFirst) {
  TestServer server({.hello_us = 60'000'000});
  std::vector<RawClient> silent;
  for (int i = 0; i < 100; ++i) {
    silent.emplace_back(server);
    server.Settle();
  }
  EXPECT_EQ(RawClient::In(server).code(), Code::kOk);
  EXPECT_TRUE(silent.front().HungUp());
  EXPECT_FALSE(silent.back().HungUp());
}

// A session is made in many turns, in any of which a node may look whether it has clients.
TEST(Hello, WhoSaidItIsMissedNeitherBeforeItsSessionStandsNorAfter) {
  TestServer server;
  EXPECT_TRUE(server.server->empty());
  RawClient client(server);
  client.Send(RawClient::NewHello());
  server.Until([&] { return !server.server->empty(); });
  EXPECT_EQ(server.counters().sessions, 0u);
  server.Until([&] { return server.counters().sessions > 0 || server.server->empty(); });
  EXPECT_EQ(server.counters().sessions, 1u);
  client.TakeWelcome();
  EXPECT_FALSE(server.server->empty());
  client.HangUp();
  server.Until([&] { return server.server->empty(); });
}

TEST(Hello, PastTheLimitOfSessionsTheAnswerIsBusy) {
  TestServer server({.max_sessions = 2});
  RawClient first = RawClient::In(server), second = RawClient::In(server);
  std::string message;
  EXPECT_EQ(Greet(server, RawClient::NewHello(), &message), Code::kBusy);
  EXPECT_NE(message.find("the limit is 2"), std::string::npos) << message;
  second.HangUp();
  server.Until([&] { return server.counters().sessions == 1; });
  EXPECT_EQ(RawClient::In(server).code(), Code::kOk);
}

TEST(Hello, R13AWelcomeThatNobodyTakesCountsAsASessionUntilItsSocketIsClosed) {
  TestServer server({.max_sessions = 2});
  {
    std::vector<RawClient> silent;
    for (int i = 0; i < 2; ++i) {
      silent.emplace_back(server);
      silent.back().Send(RawClient::NewHello());
      server.Until([&] { return server.counters().sessions == 1; });
      ASSERT_EQ(shutdown(silent.back().fd(), SHUT_WR), 0);
      server.Until([&] { return server.counters().sessions == 0; });
    }
    server.server->Tick();
    EXPECT_EQ(Greet(server, RawClient::NewHello()), Code::kBusy);
  }
  server.server->Tick();
  EXPECT_EQ(RawClient::In(server).code(), Code::kOk);
}

TEST(Hello, AThousandSessionsAreServed) {
  constexpr std::uint32_t kSessions = 1000;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 12 * kSessions)
    GTEST_SKIP() << "both ends of a thousand sessions take 12,000 descriptors";
  TestServer server;
  wire::Hello hello = RawClient::NewHello();
  hello.staging_bytes = 4096;
  std::vector<RawClient> sessions;
  while (sessions.size() < kSessions) sessions.push_back(RawClient::In(server, hello));
  EXPECT_EQ(Greet(server, hello), Code::kBusy);
  sessions.back().Attach();
}

TEST(Hello, R13TheNumberOfSessionsFollowsFromTheMemory) {
  EXPECT_EQ(MaxSessions(std::uint64_t{64} << 20), 32u);
  EXPECT_EQ(MaxSessions(std::uint64_t{1} << 40), 1000u);
  const std::uint64_t memory = std::uint64_t{8} << 30;
  EXPECT_LE(MaxSessions(memory) * sizeof(wire::SessionMemory), memory / 16);
  EXPECT_GT((MaxSessions(memory) + 1) * sizeof(wire::SessionMemory), memory / 16);
}

// ---- staging --------------------------------------------------------------------------------------------

TEST(StagingAreas, ComeFromABudgetAndGoBackWithTheSession) {
  TestServer server({.staging_budget_bytes = 6u << 20});
  RawClient client = RawClient::In(server);
  EXPECT_EQ(client.welcome.staging_bytes, 1u << 20);
  wire::StagingGrant grant;
  client.Send(wire::MoreStaging{.bytes = 3u << 20});
  EXPECT_EQ(client.Receive(grant).size(), 1u);
  EXPECT_EQ(grant.code, 0u) << grant.message.data();
  EXPECT_EQ(grant.area, 1u);
  client.Send(wire::MoreStaging{.bytes = 2u << 20});
  EXPECT_EQ(client.Receive(grant).size(), 0u);
  EXPECT_EQ(static_cast<Code>(grant.code), Code::kBusy);
  client.Send(wire::MoreStaging{.bytes = UINT64_MAX});
  client.Receive(grant);
  EXPECT_EQ(static_cast<Code>(grant.code), Code::kBusy);
  EXPECT_EQ(server.counters().staging_bytes, 4u << 20);
  client.HangUp();
  server.Until([&] { return server.counters().staging_bytes == 0; });
}

TEST(StagingAreas, GoBackWhileTheSessionGoesOn) {
  TestServer server({.staging_budget_bytes = 5u << 20});
  RawClient client = RawClient::In(server);
  EXPECT_EQ(client.page().takes_staging_back, 1u);
  wire::StagingGrant grant;
  for (int round = 0; round < 3; ++round) {
    client.Send(wire::MoreStaging{.bytes = 1u << 20});
    EXPECT_EQ(client.Receive(grant).size(), 1u);
    EXPECT_EQ(grant.area, 1u);
    client.Send(wire::MoreStaging{.bytes = 2u << 20});
    EXPECT_EQ(client.Receive(grant).size(), 1u) << grant.message.data();
    EXPECT_EQ(grant.area, 2u);
    client.Send(wire::ReturnStaging{.area = 1});
    client.Send(wire::ReturnStaging{.area = 2});
    client.Send(wire::MoreStaging{.bytes = 3u << 20});
    EXPECT_EQ(client.Receive(grant).size(), 1u) << grant.message.data();
    EXPECT_EQ(grant.area, 1u);
    client.Send(wire::ReturnStaging{.area = 1});
    server.Until([&] { return server.counters().staging_bytes == 1u << 20; });
  }
}

TEST(StagingAreas, WhatWasNotGrantedIsNotTakenBack) {
  for (const std::uint64_t area : {std::uint64_t{0}, std::uint64_t{1}, UINT64_MAX}) {
    TestServer server;
    RawClient client = RawClient::In(server);
    client.Send(wire::ReturnStaging{.area = area});
    server.Until([&] { return server.counters().sessions == 0; });
  }
}

TEST(StagingAreas, P5AnOwnerLeavesSomethingForOthers) {
  TestServer server({.staging_budget_bytes = 10u << 20});
  wire::Hello greedy = RawClient::NewHello();
  greedy.staging_bytes = 10u << 20;
  EXPECT_EQ(Greet(server, greedy), Code::kBusy);
  greedy.staging_bytes = 8u << 20;
  RawClient all = RawClient::In(server, greedy);
  EXPECT_EQ(all.welcome.staging_bytes, 8u << 20);
  // Not with another session of its own either; another owner has what it starts with.
  greedy.owner = all.welcome.owner;
  greedy.staging_bytes = 1u << 20;
  EXPECT_EQ(Greet(server, greedy), Code::kBusy);
  EXPECT_EQ(RawClient::In(server).code(), Code::kOk);
}

TEST(StagingAreas, P5WhatIsBeingMadeForAnOwnerCountsAsItsOwn) {
  TestServer server({.staging_budget_bytes = 20u << 20});
  RawClient first = RawClient::In(server);
  wire::Hello another = RawClient::NewHello();
  another.owner = first.welcome.owner;
  RawClient second = RawClient::In(server, another);
  server.movers->hold = true;
  first.Send(wire::MoreStaging{.bytes = 8u << 20});
  server.Until([&] { return !server.movers->held.empty(); });
  second.Send(wire::MoreStaging{.bytes = 7u << 20});
  another.staging_bytes = 7u << 20;
  RawClient third(server);
  third.Send(another);
  server.Settle();
  server.movers->LetGo();
  wire::StagingGrant grant;
  EXPECT_EQ(first.Receive(grant).size(), 1u);
  EXPECT_EQ(second.Receive(grant).size(), 0u);
  EXPECT_EQ(static_cast<Code>(grant.code), Code::kBusy);
  third.Receive(third.welcome);
  EXPECT_EQ(third.code(), Code::kBusy);
  EXPECT_EQ(server.counters().staging_bytes, 10u << 20);
}

TEST(StagingAreas, AWriteKeepsTheAreaThatItReadsAndNoOther) {
  TestServer server({.session_staging_bytes = 2u << 20});
  RawClient client = RawClient::In(server);
  client.Attach();
  client.Send(wire::MoreStaging{.bytes = 1u << 20});
  wire::StagingGrant grant;
  EXPECT_EQ(client.Receive(grant).size(), 1u);
  const std::uint64_t both = server.counters().staging_bytes;
  server.movers->hold = true;
  client.Push(client.Put(1, 0, kMovedBlock));
  server.Until([&] { return !server.movers->held.empty(); });
  client.Send(wire::ReturnStaging{.area = 1});
  server.Settle();
  EXPECT_EQ(server.counters().staging_bytes, both - grant.bytes);
  server.movers->LetGo();
  EXPECT_EQ(CodeOf(client.Answer()), Code::kOk);
}

TEST(StagingAreas, P5TheyTakeNoDescriptorOfTheNode) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  TestServer server({.staging_budget_bytes = 20u << 20});
  RawClient client = RawClient::In(server);
  const auto before = descriptors();
  for (std::uint32_t area = 1; area < wire::kMaxStagingAreas; ++area) {
    client.Send(wire::MoreStaging{.bytes = 4096});
    wire::StagingGrant grant;
    ASSERT_EQ(client.Receive(grant).size(), 1u) << grant.message.data();  // closed here
  }
  EXPECT_EQ(descriptors(), before);
}

// What a client does not receive counts against the node, which then can send nobody a descriptor.
TEST(StagingAreas, R13WhoHasNotTakenItsLastAnswerIsEndedAtItsNextQuestion) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Send(wire::MoreStaging{.bytes = 4096});
  server.Settle();
  client.Send(wire::ReturnStaging{.area = 1});
  server.Settle();
  EXPECT_FALSE(client.HungUp());
  client.Send(wire::MoreStaging{.bytes = 4096});
  server.Settle();
  EXPECT_TRUE(client.HungUp());
  EXPECT_EQ(server.counters().ended_forged, 1u);
}

TEST(StagingAreas, WhatIsWishedAtHelloCountsToo) {
  TestServer server({.staging_budget_bytes = 6u << 20});
  wire::Hello hello = RawClient::NewHello();
  hello.staging_bytes = 4u << 20;
  RawClient client = RawClient::In(server, hello);
  EXPECT_EQ(client.welcome.staging_bytes, 4u << 20);
  EXPECT_EQ(Greet(server, hello), Code::kBusy);
}

TEST(StagingAreas, R13WhatASessionStartsWithIsOutOfTheBudget) {
  TestServer server({.staging_budget_bytes = (2u << 20) + 4096});
  RawClient first = RawClient::In(server);
  RawClient second = RawClient::In(server);
  EXPECT_EQ(server.counters().staging_bytes, 2u << 20);
  std::string message;
  EXPECT_EQ(Greet(server, RawClient::NewHello(), &message), Code::kBusy);
  EXPECT_NE(message.find("1048576 bytes asked for, 4096 of 2101248 are left"), std::string::npos) << message;
  // Who asks for less finds room, and what a session had is the next one's.
  wire::Hello small = RawClient::NewHello();
  small.staging_bytes = 1;
  EXPECT_EQ(RawClient::In(server, small).welcome.staging_bytes, 4096u);
  first.HangUp();
  server.Until([&] { return server.counters().sessions < 2; });
  EXPECT_EQ(RawClient::In(server).code(), Code::kOk);
}

// ---- calls ----------------------------------------------------------------------------------------------

TEST(Calls, APutIsAcquiredByAnotherSession) {
  TestServer server;
  RawClient writer = RawClient::In(server), reader = RawClient::In(server);
  writer.Attach();
  reader.Attach();
  EXPECT_EQ(writer.ns.slot, reader.ns.slot);
  std::fill_n(writer.staging_bytes().begin(), kBlock, std::byte{7});
  wire::Completion answer = writer.Do(writer.Put(1, 0, kBlock));
  ASSERT_EQ(CodeOf(answer), Code::kOk) << writer.ReplyText();
  EXPECT_EQ(writer.Reply<wire::WriteReplyItem>().state,
            static_cast<std::uint16_t>(store::PartOutcome::State::kPublished));
  answer = reader.Do(reader.AcquireOf(1));
  ASSERT_EQ(CodeOf(answer), Code::kOk) << reader.ReplyText();
  EXPECT_NE(answer.a, 0u);
  wire::ViewItem view = reader.Reply<wire::ViewItem>();
  EXPECT_EQ(view.bytes, kBlock);
  EXPECT_EQ(*server.arena->slot(view.place), std::byte{7});
  // Only who took the lease may give it back.
  wire::Submission release{.op = wire::Op::kRelease, .a = answer.a};
  EXPECT_NE(CodeOf(writer.Do(release)), Code::kOk);
  EXPECT_EQ(CodeOf(reader.Do(release)), Code::kOk);
  EXPECT_EQ(server.store->occupancy().leases, 0u);
}

// What a call is about stays in the call: its line says how much and where, and no key.
TEST(Calls, ASlowOneIsSaidWithWhereItsTimeWentAndWithoutItsKeys) {
  TestServer server({.session_staging_bytes = 4u << 20});
  server.slow_calls.SetBound(1);
  RawClient client = RawClient::In(server);
  client.Attach();
  server.movers->hold = true;
  client.Push(client.Put('k', 0, kMovedBlock));
  server.Until([&] { return !server.movers->held.empty(); });
  const Instant waits = server.clock.Now();
  server.Until([&] { return server.clock.Now().UsSince(waits) > 1'000; });
  server.movers->LetGo();
  ASSERT_EQ(CodeOf(client.Answer()), Code::kOk) << client.ReplyText();
  const SlowCall& call = server.slow_calls.last().front();
  EXPECT_EQ(call.kind, CallKind::kWrite);
  EXPECT_EQ(call.count, 1u);
  EXPECT_EQ(call.session, client.welcome.session);
  EXPECT_EQ(call.process, static_cast<std::uint64_t>(getpid()));
  EXPECT_EQ(call.namespace_fingerprint, server.store->FingerprintAt(client.ns.slot));
  EXPECT_GE(call.stations.at(Station::kMover).ns, 1'000'000);
  server.UntilLogged(Text("slow: write of 1 parts for session ", call.session));
  const std::lock_guard lock(server.lines_mutex_);
  EXPECT_EQ(server.lines_.find("kkkk"), std::string::npos);
  EXPECT_EQ(server.lines_.find("6b6b"), std::string::npos);
}

// One acquire of a poll is answered in it, the others as steps of their own: whatever way, each has its
// lease.
TEST(Calls, AcquiresOfOnePollAreEachAnswered) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  ASSERT_EQ(CodeOf(client.Do(client.Put(1, 0, kBlock))), Code::kOk);
  for (std::uint64_t ticket = 1; ticket <= 3; ++ticket) {
    wire::Submission acquire = client.AcquireOf(1);
    acquire.ticket = ticket;
    if (ticket == 2) acquire.a = 0;  // a lease of no time: said by the way of all that is wrong
    client.Push(acquire);
  }
  std::map<std::uint64_t, wire::Completion> answers;
  for (int i = 0; i < 3; ++i) {
    const wire::Completion answer = client.Answer();
    answers[answer.ticket] = answer;
  }
  EXPECT_EQ(CodeOf(answers[1]), Code::kOk);
  EXPECT_EQ(CodeOf(answers[2]), Code::kInvalid);
  EXPECT_EQ(CodeOf(answers[3]), Code::kOk);
  EXPECT_NE(answers[1].a, answers[3].a);
  EXPECT_EQ(server.store->occupancy().leases, 2u);
  EXPECT_EQ(server.store->occupancy().leased_blocks, 2u);
}

TEST(Calls, AHoldMatchesTheRestItself) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  for (std::uint8_t name : {1, 2, 3})
    client.Do(client.Put(name, static_cast<std::uint8_t>(name - 1), kBlock));
  std::vector<wire::KeyItem> chain = {RawClient::Key(1), RawClient::Key(2), RawClient::Key(3),
                                      RawClient::Key(4)};
  wire::Submission hold = client.With(wire::Op::kHold, std::span<const wire::KeyItem>(chain));
  hold.a = 1'000'000;
  hold.b = 1;
  wire::Completion answer = client.Do(hold);
  ASSERT_EQ(CodeOf(answer), Code::kOk) << client.ReplyText();
  EXPECT_NE(answer.a, 0u);
  EXPECT_EQ(answer.b, 3u);
  const auto reply_of = [&](const wire::Completion& completion) {
    return wire::ReadMatchReply(
        std::span(client.page().arguments).subspan(wire::kArgumentBytes / 2, completion.reply_bytes));
  };
  const auto runs = reply_of(answer);
  ASSERT_TRUE(runs.has_value()) << runs.error().ToString();
  ASSERT_EQ(runs->size(), 1u);
  EXPECT_EQ(runs->front().blocks, 3u);
  EXPECT_EQ(runs->front().where, Where::kMemory);
  // As of a client that expects no runs.
  hold.reply_bytes = sizeof(wire::MatchReply);
  answer = client.Do(hold);
  EXPECT_EQ(answer.b, 3u);
  EXPECT_EQ(answer.reply_bytes, 0u);
  wire::Submission rest = client.With(wire::Op::kMatchRest, std::span<const wire::KeyItem>(chain).subspan(1));
  rest.a = 1;
  answer = client.Do(rest);
  ASSERT_EQ(CodeOf(answer), Code::kOk) << client.ReplyText();
  EXPECT_EQ(client.Reply<wire::MatchReply>().blocks, 2u);
  EXPECT_EQ(reply_of(answer)->front().blocks, 2u);
  rest = client.With(wire::Op::kMatchRest, std::span<const wire::KeyItem>(chain).subspan(3));
  rest.a = 3;
  EXPECT_TRUE(reply_of(client.Do(rest))->empty());
  rest.reply_bytes = sizeof(wire::MatchReply);
  EXPECT_EQ(CodeOf(client.Do(rest)), Code::kInvalid);
}

// Members that have a block more than the node.
class OneMore final : public store::RemoteBlocks {
 public:
  Executor& executor() const { return *on; }
  bool MayHaveMore(std::uint32_t, std::span<const BlockKey>, std::size_t) override { return true; }
  Task<std::vector<MatchRun>> Match(std::uint32_t, std::span<const BlockKey>, std::size_t, Instant) override {
    co_return std::vector<MatchRun>{{.blocks = 1, .where = Where::kPeer}};
  }
  bool Found(std::uint32_t, std::span<const catalog::BlockName>) const override { return false; }
  Task<std::vector<store::RemoteMiss>> Bring(std::uint32_t, std::span<const catalog::BlockName>,
                                             Instant) override {
    co_return std::vector<store::RemoteMiss>();
  }
  Executor* on = nullptr;
};

TEST(Calls, WhatAMemberHasIsNoMissOfAMatch) {
  OneMore members;
  TestServer server({}, &members);
  members.on = &server.loop->executor();
  RawClient client = RawClient::In(server);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  for (const std::uint64_t last : {2, 4}) {
    const std::uint64_t before = server.store->counters().miss_unknown.value();
    std::vector<wire::KeyItem> chain;
    for (std::uint64_t n = 1; n <= last; ++n) chain.push_back(RawClient::Key(n));
    const wire::Completion answer =
        client.Do(client.With(wire::Op::kMatchRest, std::span<const wire::KeyItem>(chain)));
    ASSERT_EQ(CodeOf(answer), Code::kOk) << client.ReplyText();
    EXPECT_EQ(client.Reply<wire::MatchReply>().blocks, 2u);
    EXPECT_EQ(server.store->counters().miss_unknown.value() - before, last - 2);
  }
}

TEST(Calls, HintsOfAMatchAreCheckedAndChangeNoAnswer) {
  TestServer server;
  RawClient client = RawClient::In(server);
  EXPECT_EQ(client.page().takes_hints, 1u);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  const std::vector<wire::KeyItem> chain = {RawClient::Key(1), RawClient::Key(2)};
  wire::Submission rest = client.With(wire::Op::kMatchRest, std::span<const wire::KeyItem>(chain));
  wire::Submission hold = client.With(wire::Op::kHold, std::span<const wire::KeyItem>(chain));
  hold.a = 1'000'000;
  for (const unsigned outlook : {0u, 1u, 3u}) {
    for (const unsigned importance : {0u, 1u, 2u, 3u}) {
      rest.flags = hold.flags = static_cast<std::uint16_t>(wire::kPartial | outlook << wire::kOutlookShift |
                                                           importance << wire::kImportanceShift);
      rest.b = kMaxNextTurnMs;
      ASSERT_EQ(CodeOf(client.Do(rest)), Code::kOk) << client.ReplyText();
      EXPECT_EQ(client.Reply<wire::MatchReply>().blocks, 1u);
      hold.b = std::uint64_t{kMaxNextTurnMs} << wire::kNextTurnShift | 1;
      EXPECT_EQ(client.Do(hold).b, 1u) << client.ReplyText();
    }
  }
  const auto refused = [&](const wire::Submission& entry, std::string_view text) {
    EXPECT_EQ(CodeOf(client.Do(entry)), Code::kInvalid) << text;
    EXPECT_NE(client.ReplyText().find(text), std::string::npos) << client.ReplyText();
  };
  rest.b = std::uint64_t{1} << 40;
  refused(rest, "next_turn_ms: is 4294967295, at most 86400000");
  hold.b = (std::uint64_t{kMaxNextTurnMs} + 1) << wire::kNextTurnShift;
  refused(hold, "next_turn_ms: is 86400001, at most 86400000");
  rest.b = 1;
  rest.flags = 2 << wire::kOutlookShift;
  refused(rest, "outlook ended");
  rest.flags = 128;
  refused(rest, "flags 128");
  hold.flags = wire::kWholeChain;
  refused(hold, "flags 64");
}

// The call itself may have taken longer than the lease lasts.
TEST(Calls, AnAcquireSaysWhenItsLeaseEnds) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  ASSERT_EQ(CodeOf(client.Do(client.Put(1, 0, kBlock))), Code::kOk);
  const std::vector<wire::BlockItem> many(store::kAtOnce + 1, wire::BlockItem{.key = RawClient::Key(1)});
  for (const bool in_step : {true, false}) {
    wire::Submission acquire = in_step
                                   ? client.AcquireOf(1)
                                   : client.With(wire::Op::kAcquire, std::span<const wire::BlockItem>(many));
    acquire.a = 1'000'000;
    const Instant asked = server.clock.Now();
    const wire::Completion granted = client.Do(acquire);
    ASSERT_NE(granted.a, 0u);
    EXPECT_GE(granted.b, static_cast<std::uint64_t>(asked.PlusUs(1'000'000).ns));
    EXPECT_LE(granted.b, static_cast<std::uint64_t>(server.clock.Now().PlusUs(1'000'000).ns));
  }
}

TEST(Calls, ANodeOfMemoryAloneSaysThatItHasNoLowerTier) {
  TestServer server;
  RawClient client = RawClient::In(server);
  EXPECT_EQ(client.page().has_lower, 0u);
}

TEST(Calls, WhatIsWrongWithACallIsItsAnswer) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  const wire::Submission good = client.Put(1, 0, kBlock);
  auto refused = [&](const wire::Submission& entry, Code code, std::string_view text) {
    wire::Completion answer = client.Do(entry);
    EXPECT_EQ(CodeOf(answer), code) << text;
    EXPECT_NE(client.ReplyText().find(text), std::string::npos) << client.ReplyText();
  };
  wire::Submission wrong = good;
  wrong.op = static_cast<wire::Op>(99);
  refused(wrong, Code::kMismatch, "operation 99");
  wrong.op = wire::Op::kNone;
  refused(wrong, Code::kInvalid, "operation 0");
  wrong = client.With(wire::Op::kStatus, std::span<const std::byte>());
  wrong.a = 99;
  refused(wrong, Code::kMismatch, "status: 99");
  wrong = good;
  for (const std::int64_t deadline_ns : {std::int64_t{1}, std::int64_t{-1}, INT64_MIN}) {
    wrong.deadline_ns = deadline_ns;
    refused(wrong, Code::kTooLate, "after its deadline");
    EXPECT_EQ(client.ReplyText().find('-'), std::string::npos) << client.ReplyText();
  }
  wrong = good;
  wrong.a = 100'000;
  refused(wrong, Code::kInvalid, "100000 parts");
  wrong = good;
  wrong.incarnation += 1;
  EXPECT_EQ(CodeOf(client.Do(wrong)), Code::kMiss);
  wrong = client.Put(1, 0, 2u << 20);
  refused(wrong, Code::kInvalid, "not in this session's staging");
  wire::WriteItem item{.key = RawClient::Key(1), .staging_area = 9, .bytes = 1};
  wrong = client.With(wire::Op::kWrite, std::span<const wire::WriteItem>(&item, 1));
  wrong.a = 1;
  refused(wrong, Code::kInvalid, "staging area 9");
  item = {.key = RawClient::Key(1), .staging_offset = UINT64_MAX, .bytes = 2};
  wrong = client.With(wire::Op::kWrite, std::span<const wire::WriteItem>(&item, 1));
  wrong.a = 1;
  refused(wrong, Code::kInvalid, "not in this session's staging");
  item = {.key = RawClient::Key(1), .bytes = 1, .checksums_offset = UINT32_MAX};
  wrong = client.With(wire::Op::kWrite, std::span<const wire::WriteItem>(&item, 1));
  wrong.a = 1;
  refused(wrong, Code::kInvalid, "checksums");
  wire::KeyItem key{.size = 33};
  refused(client.With(wire::Op::kTouch, std::span<const wire::KeyItem>(&key, 1)), Code::kInvalid,
          "a key of 33 bytes: keys have 1 to 32");
  std::array<std::byte, 39> odd{};
  refused(client.With(wire::Op::kDrop, std::span<const std::byte>(odd)), Code::kInvalid, "39 bytes");
  wrong = client.AcquireOf(1);
  wrong.a = 61'000'000;
  refused(wrong, Code::kInvalid, "61000000 us");
  wrong = client.AcquireOf(1);
  wrong.reply_bytes = 0;
  EXPECT_EQ(CodeOf(client.Do(wrong)), Code::kInvalid);
  EXPECT_EQ(server.counters().sessions, 1u);
  EXPECT_EQ(server.store->occupancy().records, 0u);
}

TEST(Calls, ChecksumsThatDifferPublishNothing) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  struct {
    wire::WriteItem item;
    std::uint32_t crc = 12345;
  } args{.item = {.key = RawClient::Key(1),
                  .bytes = kBlock,
                  .put_low = 1,
                  .checksums_offset = sizeof(wire::WriteItem)}};
  wire::Submission entry = client.With(wire::Op::kWrite, std::as_bytes(std::span(&args, 1)));
  entry.args_bytes = sizeof(wire::WriteItem) + 4;
  entry.a = 1;
  wire::Completion answer = client.Do(entry);
  ASSERT_EQ(CodeOf(answer), Code::kOk);
  EXPECT_NE(client.Reply<wire::WriteReplyItem>().code, 0u);
  EXPECT_EQ(server.store->occupancy().records, 0u);
}

TEST(Calls, ManyKeysAreTakenInSteps) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  std::vector<wire::KeyItem> keys(wire::kMaxKeysPerCall / 2, RawClient::Key(9));
  server.store->TakeLongestStep();
  ASSERT_EQ(CodeOf(client.Do(client.With(wire::Op::kTouch, std::span<const wire::KeyItem>(keys)))),
            Code::kOk);
  EXPECT_LE(server.store->TakeLongestStep(), kStepTouches);
}

TEST(Calls, TouchesOfTheRingAreRangeChecked) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  for (std::uint32_t i = 0; i < wire::kTouchEntries; ++i) client.page().touches[i] = ~std::uint64_t{0} - i;
  client.page().touched = wire::kTouchEntries;
  client.Do(client.AcquireOf(1));
  server.Until([&] { return server.counters().touches == wire::kTouchEntries; });
  EXPECT_EQ(server.store->counters().touches_applied.value(), 0u);
}

// A client that finds everything in memory reads without a call.
TEST(Calls, WhatIsReadOutOfMemoryCountsThoughTheClientCallsNothing) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  ASSERT_EQ(CodeOf(client.Do(client.AcquireOf(1))), Code::kOk);
  const wire::ViewItem view = client.Reply<wire::ViewItem>();
  server.Until([&] { return client.page().core_sleeps != 0; });  // it is not polled any more
  client.Touch(0, view);
  client.page().touched = 1;
  server.server->Tick();
  server.Settle();
  EXPECT_EQ(server.store->counters().touches_applied.value(), 1u);
}

// ---- bounds ---------------------------------------------------------------------------------------------

TEST(Bounds, WhoNeverCollectsLosesCompletionsAndOthersAreServed) {
  TestServer server;
  RawClient deaf = RawClient::In(server), other = RawClient::In(server);
  deaf.Attach();
  other.Attach();
  wire::Submission call = deaf.AcquireOf(1);
  for (std::uint32_t i = 0; i < 3 * wire::kRingEntries; ++i) {
    deaf.Push(call);
    server.Until(
        [&] { return deaf.page().taken == deaf.page().submitted && server.counters().in_flight == 0; });
  }
  EXPECT_EQ(server.counters().completions_lost, 2 * wire::kRingEntries + 1 - 1);
  EXPECT_EQ(CodeOf(other.Do(other.Put(1, 0, kBlock))), Code::kOk);
}

// Staging may have more, and each part of a call as many checksums.
TEST(Bounds, R13APartOfMoreThanABodyMayHaveIsRefusedBeforeItIsTaken) {
  TestServer server({.staging_budget_bytes = 2 * kMaxBodyBytes});
  wire::Hello large = RawClient::NewHello();
  large.staging_bytes = kMaxBodyBytes + 4096;
  RawClient client = RawClient::In(server, large);
  ASSERT_EQ(client.code(), Code::kOk) << client.message();
  client.Attach();
  EXPECT_EQ(CodeOf(client.Do(client.Put(1, 0, kMaxBodyBytes + 1))), Code::kInvalid);
  EXPECT_EQ(CodeOf(client.Do(client.Put(1, 0, kBlock))), Code::kOk);
}

TEST(Bounds, ASessionThatSubmitsALotDoesNotStarveAnother) {
  TestServer server;
  RawClient greedy = RawClient::In(server), other = RawClient::In(server);
  greedy.Attach();
  other.Attach();
  for (std::uint32_t i = 0; i < wire::kRingEntries; ++i) greedy.Push(greedy.AcquireOf(1));
  other.Push(other.AcquireOf(1));
  server.Until([&] { return other.page().completed == 2; });
  EXPECT_LT(greedy.page().completed, 64u);
}

TEST(Bounds, P5ASessionThatNeverStopsTouchingLeavesATurnToAnother) {
  TestServer server;
  RawClient greedy = RawClient::In(server), other = RawClient::In(server);
  other.Attach();
  ASSERT_EQ(CodeOf(other.Do(other.Put(1, 0, kBlock))), Code::kOk);
  ASSERT_EQ(CodeOf(other.Do(other.AcquireOf(1))), Code::kOk);
  const auto view = other.Reply<wire::ViewItem>();
  const auto touch_on = [&] { greedy.page().touched = greedy.page().touched + wire::kTouchEntries; };
  touch_on();
  greedy.Wake();
  server.Until([&] { return server.counters().touches > 0; });
  other.Touch(0, view);
  other.page().touched = 1;
  other.Wake();
  for (int i = 0; i < 10'000 && server.store->counters().touches_applied.value() == 0; ++i) {
    touch_on();
    server.loop->PollOnce();
  }
  EXPECT_EQ(server.store->counters().touches_applied.value(), 1u);
}

// In counted work: steps of the core from the moment that a put is submitted until it is done.
TEST(Bounds, P5ACallWaitsForAStepOfEachOtherSessionAtMostWhateverTheyAsk) {
  constexpr std::size_t kGreedy = 3, kLargeCalls = 3;
  constexpr std::uint64_t kStepsBetweenLooks = 16;
  TestServer server;
  RawClient honest = RawClient::In(server);
  honest.Attach();
  const auto steps_of_put = [&](std::uint8_t name) {
    const std::uint64_t before = server.loop->executor().steps();
    EXPECT_EQ(CodeOf(honest.Do(honest.Put(name, 0, kBlock))), Code::kOk);
    return server.loop->executor().steps() - before;
  };
  steps_of_put(1);
  const std::uint64_t alone = steps_of_put(2);
  std::vector<RawClient> greedy;
  for (std::size_t i = 0; i < kGreedy; ++i) greedy.push_back(RawClient::In(server));
  // As many keys as a call may have, then the rest of the ring with calls of one block.
  const std::vector<wire::KeyItem> keys(wire::kArgumentBytes / sizeof(wire::KeyItem) / (kLargeCalls + 1),
                                        RawClient::Key(9));
  for (RawClient& client : greedy) {
    client.Attach();
    const wire::Submission large = client.With(wire::Op::kTouch, std::span<const wire::KeyItem>(keys));
    wire::Submission small = large;
    small.args_bytes = sizeof(wire::KeyItem);
    for (std::size_t i = 0; i < wire::kRingEntries - 1; ++i) client.Push(i < kLargeCalls ? large : small);
  }
  server.Until([&] {
    return std::ranges::all_of(greedy, [](RawClient& client) { return client.page().taken >= kLargeCalls; });
  });
  for (std::uint8_t name = 3; name < 9; ++name) {
    EXPECT_LE(steps_of_put(name), (1 + kGreedy) * alone + kStepsBetweenLooks);
    for (RawClient& client : greedy) ASSERT_LT(client.page().completed, client.page().submitted);
  }
  server.Settle();
}

// ---- forged ---------------------------------------------------------------------------------------------

class Forged : public ::testing::Test {
 protected:
  void EndsFor(RawClient& client, std::string_view text) {
    client.Wake();
    server.Until([&] { return client.HungUp(); });
    EXPECT_EQ(server.counters().ended_forged, 1u);
    server.UntilLogged(text);
    // The others do not notice.
    RawClient other = RawClient::In(server);
    other.Attach();
    EXPECT_EQ(CodeOf(other.Do(other.Put(1, 0, kBlock))), Code::kOk);
  }
  TestServer server;
};

TEST_F(Forged, R13AStepLargerThanTheRingEndsTheSession) {
  RawClient client = RawClient::In(server);
  client.page().submitted = wire::kRingEntries + 1;
  EndsFor(client, "submissions ahead");
}

TEST_F(Forged, ArgumentsOutsideTheAreaEndTheSession) {
  RawClient client = RawClient::In(server);
  wire::Submission entry{.op = wire::Op::kTouch, .args_offset = UINT32_MAX, .args_bytes = UINT32_MAX};
  client.Push(entry);
  EndsFor(client, "the area has");
}

TEST_F(Forged, MoreArgumentsInFlightThanTheAreaHoldsEndTheSession) {
  RawClient client = RawClient::In(server);
  client.Attach();
  wire::Submission entry = client.With(wire::Op::kTouch, std::span<const wire::KeyItem>());
  entry.args_bytes = wire::kArgumentBytes;
  client.Push(entry);
  client.Push(entry);
  EndsFor(client, "bytes in flight");
}

TEST_F(Forged, CollectingWhatWasNeverMadeEndsTheSession) {
  RawClient client = RawClient::In(server);
  client.Attach();
  client.page().collected = 1000;
  client.Push(client.AcquireOf(1));
  EndsFor(client, "never made");
}

TEST_F(Forged, AMessageThatIsNoneEndsTheSession) {
  RawClient client = RawClient::In(server);
  client.Send(std::uint64_t{42});
  EndsFor(client, "a message of 8 bytes");
}

// ---- going ----------------------------------------------------------------------------------------------

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
  constexpr auto kNumber = offsetof(seccomp_data, nr);
  constexpr auto kThirdArgument = offsetof(seccomp_data, args) + 2 * sizeof(std::uint64_t);
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kThirdArgument),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPeerPidfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{.len = std::size(steps), .filter = steps};
  CISTERN_ASSERT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CISTERN_ASSERT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
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

// A name that was claimed stands for its list in the whole cell.
TEST(Names, AnAttachThatIsRefusedHereAsksNobodyForItsName) {
  TestServer server;
  RawClient client = RawClient::In(server);
  NamespaceSpec large{.name = "large", .fields = {{"model", "x"}}, .groups = {{.name = "all"}}};
  large.groups[0].part_bytes = {server.slots->max_body_bytes() + 1};
  EXPECT_EQ(client.AttachSpec(large), Code::kInvalid);
  EXPECT_TRUE(server.agreed_on.empty()) << server.agreed_on[0];
  NamespaceSpec named{.name = "one", .fields = {{"model", "x"}}, .groups = {{.name = "all"}}};
  EXPECT_EQ(client.AttachSpec(named), Code::kOk);
  NamespaceSpec other = named;
  other.fields[0].second = "y";
  EXPECT_EQ(client.AttachSpec(other), Code::kMismatch);
  EXPECT_EQ(server.agreed_on, std::vector<std::string>{"one"});
  // Past its share of the table.
  std::uint32_t count = 0;
  while (client.AttachModel(std::to_string(count)) == Code::kOk) ++count;
  other.name = "late";
  EXPECT_EQ(client.AttachSpec(other), Code::kBusy);
  EXPECT_EQ(server.agreed_on.size(), 1u);
  // A name more of a list that has a place.
  named.name = "two";
  EXPECT_EQ(client.AttachSpec(named), Code::kOk);
  EXPECT_EQ(server.agreed_on.back(), "two");
}

TEST(Names, TheNameOfAnAttachThatFailsIsGivenBack) {
  TestServer server;
  RawClient client = RawClient::In(server);
  const NamespaceSpec named{.name = "one", .fields = {{"model", "x"}}, .groups = {{.name = "all"}}};
  // The journal takes nothing more, as on a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  EXPECT_NE(client.AttachSpec(named), Code::kOk);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(server.agreed_on, std::vector<std::string>{"one"});
  EXPECT_EQ(server.given_back, std::vector<std::string>{"one"});
  EXPECT_EQ(client.AttachSpec(named), Code::kOk);
  EXPECT_EQ(server.given_back.size(), 1u);
}

TEST(Going, R6StagingOfADeadSessionStaysUntilItsMoverLetGo) {
  TestServer server({.session_staging_bytes = 4u << 20});
  RawClient client = RawClient::In(server);
  client.Attach();
  server.movers->hold = true;
  client.Push(client.Put(1, 0, kMovedBlock));
  server.Until([&] { return !server.movers->held.empty(); });
  client.HangUp();
  server.Settle();
  EXPECT_EQ(server.counters().sessions, 1u);
  server.movers->LetGo();
  server.Until([&] { return server.counters().sessions == 0; });
}

TEST(Going, WhatWasMadeForAnOwnerThatIsGoneIsFreedByMovers) {
  TestServer server;
  RawClient first = RawClient::In(server);
  wire::Hello hello = RawClient::NewHello();
  hello.owner = first.welcome.owner;
  server.movers->hold = true;
  RawClient late(server);
  late.Send(hello);
  server.Until([&] { return !server.movers->held.empty(); });
  first.HangUp();
  server.Until([&] { return server.counters().sessions == 0; });
  // A job at a time, and none behind the last that makes something.
  const auto do_one = [&] {
    server.movers->LetGo();
    server.movers->hold = true;
    server.Settle();
  };
  while (server.counters().refused == 0) do_one();
  late.Receive(late.welcome);
  EXPECT_EQ(late.code(), Code::kDenied);
  server.server->Tick();
  EXPECT_EQ(server.counters().staging_bytes, 0u);
  int jobs = 0;
  for (; !server.movers->held.empty(); ++jobs) do_one();
  EXPECT_EQ(jobs, 3);  // its rings; what it would have staged with, in a piece and the end of it
}

TEST(Going, DrainFinishesWhatIsInFlightAndRefusesTheRest) {
  TestServer server({.session_staging_bytes = 4u << 20});
  RawClient client = RawClient::In(server);
  client.Attach();
  server.movers->hold = true;
  client.Push(client.Put(1, 0, kMovedBlock));
  server.Until([&] { return !server.movers->held.empty(); });
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
