// SPDX-License-Identifier: Apache-2.0
// Who comes in and who stays out, and what a session is given (R12, R13).
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/test_descriptors.h"
#include "server/closer.h"
#include "server/test_server.h"

namespace cistern::server {
namespace {

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
  return SendDescriptors(socket, std::as_bytes(std::span(&message, 1)), std::span(&descriptor, 1));
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
  EXPECT_EQ(server.counters().refused, 1u);
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
  EXPECT_EQ(server.counters().refused, 0u) << "an engine whose node was restarted is no stranger";
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

}  // namespace
}  // namespace cistern::server
