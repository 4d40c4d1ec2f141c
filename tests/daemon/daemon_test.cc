// SPDX-License-Identifier: Apache-2.0
// The node that a measurement starts for itself.
#include "daemon.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cistern/cistern.h"

namespace cistern {
namespace {

TEST(Daemon, AMeasurementThatIsKilledLeavesNoNodeBehind) {
  std::string directory = "/dev/shm/cistern-test-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t measurement = fork();
  if (measurement == 0) {
    Result<Daemon> daemon = Daemon::Start(DaemonBeside(), directory, {"--memory", "64MiB"});
    const pid_t pid = daemon ? daemon->pid() : -1;
    if (write(told[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    for (;;) pause();
  }
  pid_t node = -1;
  ASSERT_EQ(read(told[0], &node, sizeof(node)), static_cast<ssize_t>(sizeof(node)));
  ASSERT_GT(node, 0);
  const int process = static_cast<int>(syscall(SYS_pidfd_open, node, 0));
  ASSERT_GE(process, 0);
  kill(measurement, SIGKILL);
  waitpid(measurement, nullptr, 0);
  pollfd ended{.fd = process, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 300'000), 1) << "cisternd " << node << " lives on";
  kill(node, SIGKILL);
  for (int fd : {process, told[0], told[1]}) close(fd);
  std::filesystem::remove_all(directory);
}

// A node that the first engine of a host starts serves those that come later, and ends by itself.
TEST(Daemon, ANodeThatLingersServesWhileItHasAClientAndThenEnds) {
  std::string directory = "/dev/shm/cistern-test-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::vector<std::string> flags = {"--memory", "64MiB", "--linger", "300ms"};
  std::optional<Daemon> used;
  Result<Store> client = Error(Code::kGone, "");
  // A node that has lingered before its client came is replaced by another.
  for (int starts = 0; !client.has_value() && starts < 100; ++starts) {
    used.reset();
    Result<Daemon> started = Daemon::Start(DaemonBeside(), directory, flags);
    if (!started) continue;
    used.emplace(std::move(*started));
    ConnectOptions options;
    options.socket = used->socket();
    client = Store::Connect(options);
  }
  ASSERT_TRUE(client.has_value()) << client.error().ToString();
  std::optional<Daemon> alone;
  int process = -1;
  for (int starts = 0; process < 0 && starts < 100; ++starts) {
    alone.reset();
    if (Result<Daemon> started = Daemon::Start(DaemonBeside(), directory, flags)) {
      alone.emplace(std::move(*started));
      process = static_cast<int>(syscall(SYS_pidfd_open, alone->pid(), 0));
    }
  }
  ASSERT_GE(process, 0);

  pollfd with_client{
      .fd = static_cast<int>(syscall(SYS_pidfd_open, used->pid(), 0)), .events = POLLIN, .revents = 0};
  pollfd without{.fd = process, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&without, 1, 300'000), 1) << "a node without a client lives on";
  EXPECT_EQ(poll(&with_client, 1, 0), 0) << "a node ended that had a client";
  EXPECT_TRUE(client->StatusJson().has_value());
  {
    Store leaves = std::move(*client);
  }
  EXPECT_EQ(poll(&with_client, 1, 300'000), 1) << "a node lives on after its last client left";
  close(with_client.fd);
  close(without.fd);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace cistern
