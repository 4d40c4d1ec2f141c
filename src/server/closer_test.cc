// SPDX-License-Identifier: Apache-2.0
#include "server/closer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/assert.h"
#include "server/test_server.h"

namespace cistern::server {
namespace {

constexpr uid_t kUser = 54326;  // of root's threads there is no limit

void LetGoOfStrangersWhereThereIsNoThread() {
  if (geteuid() == 0) CISTERN_ASSERT(setgid(kUser) == 0 && setuid(kUser) == 0);
  TestServer server;
  rlimit usual{};
  CISTERN_ASSERT(getrlimit(RLIMIT_NPROC, &usual) == 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = usual.rlim_max};
  CISTERN_ASSERT(setrlimit(RLIMIT_NPROC, &none) == 0);
  std::vector<Fd> strangers;
  while (strangers.size() < Closer::kMaxStrangers) {
    int ends[2];
    CISTERN_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    server.server->Adopt(Fd(ends[0]));
    strangers.emplace_back(ends[1]);
    for (const char message : {'a', 'b'}) CISTERN_ASSERT(send(ends[1], &message, 1, 0) == 1);
    server.Until([&] { return server.counters().refused == strangers.size(); });
  }
  CISTERN_ASSERT(setrlimit(RLIMIT_NPROC, &usual) == 0);
  server.server->Tick();
  std::fprintf(stderr, "%s\n", RawClient::In(server).code() == Code::kOk ? "let in" : "refused");
}

TEST(CloserDeathTest, WhatTheSystemHadNoThreadForIsClosedWhenItHasOne) {
  EXPECT_EXIT((LetGoOfStrangersWhereThereIsNoThread(), std::_Exit(0)), ::testing::ExitedWithCode(0),
              "let in");
}

}  // namespace
}  // namespace cistern::server
