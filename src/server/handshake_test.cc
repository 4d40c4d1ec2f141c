// SPDX-License-Identifier: Apache-2.0
// What a client is told where the system keeps the node from letting it in.
#include "server/handshake.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string_view>

#include "base/test_call_filter.h"
#include "server/test_server.h"

namespace cistern::server {
namespace {

// Says hello and takes the answer, which may come without descriptors.
RawClient Greet(TestServer& server) {
  RawClient client(server);
  client.Send(RawClient::NewHello());
  client.Receive(client.welcome);
  return client;
}

// Until its end this user's processes have more descriptors under way than the kernel lets this one add to.
class TooManyUnderWay {
 public:
  TooManyUnderWay() {
    Capabilities(&capabilities_, SYS_capget);
    auto without = capabilities_;
    for (int capability : {CAP_SYS_RESOURCE, CAP_SYS_ADMIN}) without[0].effective &= ~(1u << capability);
    Capabilities(&without, SYS_capset);
    getrlimit(RLIMIT_NOFILE, &files_);
    rlimit few = files_;
    few.rlim_cur = kFiles;
    setrlimit(RLIMIT_NOFILE, &few);
    int ends[2];
    CISTERN_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    from_ = Fd(ends[0]);
    to_ = Fd(ends[1]);
    const std::array<std::byte, 1> message{};
    const int descriptor = to_.get();
    int sent = 0;
    for (std::size_t i = 0; i < 2 * kFiles && sent == 0; ++i)
      sent = SendMessage(from_.get(), message, std::span(&descriptor, 1));
    CISTERN_ASSERT(sent == ETOOMANYREFS);
  }
  ~TooManyUnderWay() {
    setrlimit(RLIMIT_NOFILE, &files_);
    Capabilities(&capabilities_, SYS_capset);
  }

 private:
  static constexpr std::size_t kFiles = 200;
  using Sets = std::array<__user_cap_data_struct, 2>;
  static void Capabilities(Sets* sets, long call) {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    CISTERN_ASSERT(syscall(call, &header, sets->data()) == 0);
  }

  Sets capabilities_{};
  rlimit files_{};
  Fd from_, to_;
};

TEST(Handshake, WhoseWelcomeCannotBeSentIsToldWhy) {
  TestServer server;
  {
    const TooManyUnderWay crowd;
    const RawClient client = Greet(server);
    EXPECT_EQ(client.code(), Code::kBusy);
    EXPECT_NE(client.message().find(ErrnoText(ETOOMANYREFS)), std::string::npos) << client.message();
    server.UntilLogged("it could not be welcomed: the node cannot pass its descriptors");
  }
  server.Until([&] { return server.server->empty(); });
  EXPECT_EQ(server.counters().refused, 1u);
  EXPECT_EQ(RawClient::In(server).code(), Code::kOk);
}

// From then on nothing more is watched, as where the user's limit of watches is reached.
void ForbidWatches() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kCallNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, CallArgument(1)),  // operation
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_ADD, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  FilterCalls(steps);
}

void GreetOneThatCannotBeWatched() {
  TestServer server;
  ForbidWatches();
  std::fprintf(stderr, "%s\n", Greet(server).message().c_str());
}

TEST(HandshakeDeathTest, WhoseConnectionCannotBeWatchedIsToldWhy) {
  EXPECT_EXIT((GreetOneThatCannotBeWatched(), std::_Exit(0)), ::testing::ExitedWithCode(0),
              "watch descriptor.*No space left");
}

TEST(Handshake, StagingThatCannotBeSentIsBusyAndTheSessionGoesOn) {
  TestServer server;
  RawClient client = RawClient::In(server);
  const std::uint64_t before = server.counters().staging_bytes;
  wire::StagingGrant grant;
  {
    const TooManyUnderWay crowd;
    client.Send(wire::MoreStaging{.bytes = 4096});
    EXPECT_TRUE(client.Receive(grant).empty());
    EXPECT_EQ(static_cast<Code>(grant.code), Code::kBusy);
    EXPECT_NE(std::string_view(grant.message.data()).find(ErrnoText(ETOOMANYREFS)), std::string_view::npos);
  }
  server.Until([&] { return server.counters().staging_bytes == before; });
  client.Send(wire::MoreStaging{.bytes = 4096});
  EXPECT_EQ(client.Receive(grant).size(), 1u);
  EXPECT_EQ(grant.area, 1u);
}

}  // namespace
}  // namespace cistern::server
