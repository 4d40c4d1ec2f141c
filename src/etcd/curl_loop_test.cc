// SPDX-License-Identifier: Apache-2.0
#include "etcd/curl_loop.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/test_call_filter.h"

namespace cistern::etcd {
namespace {

constexpr int kForbidden = 16;

// From then on none of so many descriptors from `first` on is watched, as where the user's limit of watches
// is reached.
void ForbidWatchesFrom(int first) {
  const auto begin = static_cast<std::uint32_t>(first);
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kCallNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 6),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, CallArgument(1)),  // operation
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_ADD, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, CallArgument(2)),  // descriptor
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, begin, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, begin + kForbidden, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  FilterCalls(steps);
}

void BreakTheWatchOfOneOfThree() {
  SystemClock clock;
  const auto loop = std::move(*io::MakeLoop(clock, {.kind = io::LoopKind::kEpoll}));
  const auto until = [&](const std::function<bool()>& so) {
    const Instant end = clock.Now().PlusUs(60'000'000);
    while (!so()) {
      CISTERN_ASSERT(clock.Now() < end);
      loop->PollOnce();
    }
  };
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  CISTERN_ASSERT(bind(listener.get(), any, size) == 0 && listen(listener.get(), 8) == 0);
  CISTERN_ASSERT(getsockname(listener.get(), any, &size) == 0);
  std::vector<Fd> accepted;
  const auto answers = [&](std::string_view answer) {
    for (Fd one; (one = Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))).valid();) {
      CISTERN_ASSERT(send(one.get(), answer.data(), answer.size(), MSG_NOSIGNAL) > 0);
      accepted.push_back(std::move(one));
    }
  };
  const auto curl = std::move(*CurlLoop::Open(*loop, {}));
  const CurlRequest request{.url = Text("http://127.0.0.1:", ntohs(address.sin_port), "/"),
                            .unread_bytes = 1000};

  const auto first = curl->Start(request);
  std::string got;
  until([&] {
    answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
    return (got += first->TakeAll()) == "one";
  });
  ForbidWatchesFrom(Fd(dup(STDERR_FILENO)).get());
  const auto second = curl->Start(request);
  until([&] { return second->ended(); });
  CISTERN_ASSERT(send(accepted[0].get(), "3\r\ntwo\r\n", 8, MSG_NOSIGNAL) == 8);
  until([&] { return first->ended() || (got += first->TakeAll()) == "onetwo"; });
  std::vector<Fd> others;
  while (others.size() < kForbidden) others.emplace_back(dup(STDERR_FILENO));
  const auto third = curl->Start(request);
  until([&] {
    answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    return third->ended();
  });
  std::fprintf(stderr, "'%s' '%s' '%s'\n", first->failure().c_str(), second->failure().c_str(),
               third->failure().c_str());
}

TEST(CurlLoopDeathTest, ATransferThatCannotBeWatchedFailsAlone) {
  EXPECT_EXIT((BreakTheWatchOfOneOfThree(), std::_Exit(0)), ::testing::ExitedWithCode(0),
              "'' '.*No space left.*' ''");
}

}  // namespace
}  // namespace cistern::etcd
