// SPDX-License-Identifier: Apache-2.0
// The node that a measurement starts for itself.
#include "daemon.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../real_node.h"
#include "base/test_directory.h"
#include "cistern/cistern.h"

namespace cistern {
namespace {

TEST(Daemon, AMeasurementThatIsKilledLeavesNoNodeBehind) {
  const TestDirectory scratch;
  const std::string& directory = scratch.path();
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
}

// As few threads as its user may have, one more each time, until it serves.
void ExpectOrderlyEndsWithout(uid_t user, const std::vector<std::string>& further) {
  if (geteuid() != 0) GTEST_SKIP() << "limits another user's threads: run as root";
  const TestDirectory scratch;
  const std::string& directory = scratch.path();
  ASSERT_EQ(chown(directory.c_str(), user, user), 0);
  const std::string program = DaemonBeside(), memory = directory + "/memory", socket = directory + "/socket";
  std::vector<std::string> arguments = {
      "cisternd", "--memory", "64MiB",    "--memory-dir", memory,        "--socket", socket,
      "--movers", "3",        "--linger", "1ms",          "--log-level", "error"};
  arguments.insert(arguments.end(), further.begin(), further.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  bool served = false;
  for (rlim_t threads = 1; threads <= 64 && !served; ++threads) {
    const pid_t node = fork();
    if (node == 0) {
      const rlimit limit{.rlim_cur = threads, .rlim_max = threads};
      if (setrlimit(RLIMIT_NPROC, &limit) != 0 || setgid(user) != 0 || setuid(user) != 0) _exit(1);
      execv(program.c_str(), argv.data());
      _exit(77);
    }
    int status = -1;
    ASSERT_EQ(waitpid(node, &status, 0), node);
    ASSERT_TRUE(WIFEXITED(status)) << threads << " threads: signal " << WTERMSIG(status);
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << program << " is not another user's to run";
    served = WEXITSTATUS(status) == 0;
    EXPECT_TRUE(served || !std::filesystem::exists(memory + "/default/arena")) << threads << " threads";
  }
  EXPECT_TRUE(served);
}

TEST(Daemon, WhereTheSystemHasNoThreadForItItEndsInOrder) { ExpectOrderlyEndsWithout(54323, {}); }

// As where io_uring is forbidden, which containers do by default.
TEST(Daemon, WhereTheSystemHasNoThreadForRailsWithoutIoUringItEndsInOrder) {
  ExpectOrderlyEndsWithout(54325, {"--loop", "epoll", "--member", "a", "--cell", "http://127.54.3.25:1",
                                   "--cell-address", "127.54.3.25:7420", "--cell-rail-threads", "4"});
}

// Nobody answers for etcd.
TEST(Daemon, WhereTheSystemHasNoThreadForRailsItEndsInOrder) {
  ExpectOrderlyEndsWithout(54324, {"--member", "a", "--cell", "http://127.54.3.24:1", "--cell-address",
                                   "127.54.3.24:7420", "--cell-rail-threads", "4"});
}

// As few descriptors, one more each time, until it serves.
TEST(Daemon, WhereItHasNoDescriptorForItItEndsInOrder) {
  const TestDirectory scratch;
  const std::string& directory = scratch.path();
  const std::string program = DaemonBeside(), memory = directory + "/memory", socket = directory + "/socket";
  bool served = false;
  for (rlim_t descriptors = 4; descriptors <= 256 && !served; ++descriptors) {
    const pid_t node = fork();
    if (node == 0) {
      const rlimit limit{.rlim_cur = descriptors, .rlim_max = descriptors};
      if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(1);
      execl(program.c_str(), "cisternd", "--memory", "64MiB", "--memory-dir", memory.c_str(), "--socket",
            socket.c_str(), "--linger", "1ms", "--log-level", "error", nullptr);
      _exit(77);
    }
    int status = -1;
    ASSERT_EQ(waitpid(node, &status, 0), node);
    ASSERT_TRUE(WIFEXITED(status)) << descriptors << " descriptors: signal " << WTERMSIG(status);
    ASSERT_NE(WEXITSTATUS(status), 77);
    served = WEXITSTATUS(status) == 0;
  }
  EXPECT_TRUE(served);
}

// Its pid; -1: the process has no child of this name.
pid_t ChildOf(pid_t parent, const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    // pid (name) state parent
    if (!std::getline(file, stat)) continue;
    const std::size_t end = stat.rfind(')');
    if (end == stat.npos || stat.substr(stat.find('(') + 1, end - stat.find('(') - 1) != name) continue;
    if (std::stol(stat.substr(end + 4)) == parent) return static_cast<pid_t>(std::stol(stat));
  }
  return -1;
}

TEST(Daemon, TheProcessThatMovesItsMemoryIntoHugePagesEndsWithIt) {
  const TestDirectory scratch;
  const std::string& directory = scratch.path();
  for (const int signal_number : {SIGTERM, SIGKILL}) {
    Result<Daemon> daemon = Daemon::Start(DaemonBeside(), directory, {"--memory", "64MiB"});
    ASSERT_TRUE(daemon.has_value()) << daemon.error().ToString();
    pid_t pages = -1;
    Until([&] { return (pages = ChildOf(daemon->pid(), "cistern-pages")) > 0; });
    const int process = static_cast<int>(syscall(SYS_pidfd_open, pages, 0));
    ASSERT_GE(process, 0);
    kill(daemon->pid(), signal_number);
    pollfd ended{.fd = process, .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&ended, 1, 300'000), 1) << "cistern-pages " << pages << " lives on";
    close(process);
  }
}

// A node that the first engine of a host starts serves those that come later, and ends by itself.
TEST(Daemon, ANodeThatLingersServesWhileItHasAClientAndThenEnds) {
  const TestDirectory scratch;
  const std::string& directory = scratch.path();
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
}

// Who came in after that would be sent away at once, with what it had begun.
TEST(Daemon, ANodeThatEndsForWantOfClientsLetsNobodyInAnyMore) {
  std::atomic<bool> ends = false;
  RealNode node(64u << 20, [&ends](node::NodeOptions& options) {
    options.linger_us = 1;
    options.on_ends = [&ends](const Status&) { ends = true; };
  });
  Until([&] { return ends.load(); });
  EXPECT_FALSE(Store::Connect(node.options()).has_value());
}

// By SIGTERM, with writers and readers at it: it ends by itself, and its successor has each block that a
// writer was told of.
TEST(Daemon, P7EndedUnderLoadItExitsInOrderAndItsSuccessorHasEveryBlockThatWasPublished) {
  constexpr std::size_t kBytes = 50'000;
  constexpr std::uint64_t kMost = 1500, kBeforeItEnds = 300;  // of each engine; as many as fit
  Result<Daemon> node = Daemon::Start(DaemonBeside(), "/dev/shm", {"--memory", "384MiB"});
  ASSERT_TRUE(node.has_value()) << node.error().ToString();
  std::atomic<std::uint64_t> published = 0, wrong = 0;
  std::array<std::vector<std::uint64_t>, 3> told;
  std::vector<std::thread> engines;
  for (std::size_t engine = 0; engine < told.size(); ++engine) {
    Result<Store> store = node->Connect();
    ASSERT_TRUE(store.has_value()) << store.error().ToString();
    const Namespace ns = AttachTest(*store, "loaded");
    engines.emplace_back([&, engine, ns, store = std::move(*store)]() mutable {
      for (std::uint64_t n = engine * kMost; n < (engine + 1) * kMost; ++n) {
        if (!PutBlock(store, ns, n, std::nullopt, kBytes).ok()) return;  // it ends
        told[engine].push_back(n);
        ++published;
        const Result<std::vector<std::byte>> read = store.Get(ns, KeyOf(n));
        if (read && *read != BodyOf(n, kBytes)) ++wrong;
      }
    });
  }
  Until([&] { return published >= kBeforeItEnds; });
  const int process = static_cast<int>(syscall(SYS_pidfd_open, node->pid(), 0));
  ASSERT_GE(process, 0);
  kill(node->pid(), SIGTERM);
  pollfd ended{.fd = process, .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&ended, 1, 300'000), 1) << "it does not end";
  for (std::thread& engine : engines) engine.join();
  siginfo_t how{};
  ASSERT_EQ(waitid(P_PIDFD, static_cast<id_t>(process), &how, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(how.si_code, CLD_EXITED);
  EXPECT_EQ(how.si_status, 0);
  close(process);
  node->Kill();  // reaped
  ASSERT_TRUE(node->Exec().ok());
  Result<Store> store = node->Connect();
  ASSERT_TRUE(store.has_value()) << store.error().ToString();
  const Namespace ns = AttachTest(*store, "loaded");
  std::uint64_t there = 0;
  for (const std::vector<std::uint64_t>& numbers : told) {
    for (const std::uint64_t n : numbers) there += store->Get(ns, KeyOf(n)) == BodyOf(n, kBytes);
  }
  EXPECT_EQ(there, published);
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace cistern
