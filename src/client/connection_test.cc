// SPDX-License-Identifier: Apache-2.0
// The handshake against a node that is none, or another release.
#include "client/connection.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/test_descriptors.h"
#include "client/channel.h"

namespace cistern::client {
namespace {

// Answers the first message with `answer`.
Result<Connection> Greet(std::span<const std::byte> answer, std::int64_t deadline_ns = INT64_MAX) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  std::thread node([&] {
    std::array<std::byte, 1024> hello;
    EXPECT_EQ(recv(ends[0], hello.data(), hello.size(), 0), static_cast<ssize_t>(sizeof(wire::Hello)));
    if (!answer.empty()) {
      EXPECT_EQ(send(ends[0], answer.data(), answer.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(answer.size()));
    }
  });
  ConnectOptions options;
  Result<Connection> connection = GreetNode(Fd(ends[1]), "the node", options, deadline_ns);
  node.join();
  close(ends[0]);
  return connection;
}

TEST(Handshake, AnotherVersionIsToldWithBothVersions) {
  wire::Welcome welcome;
  welcome.version = 9;
  Result<Connection> connection = Greet(std::as_bytes(std::span(&welcome, 1)));
  ASSERT_FALSE(connection.has_value());
  EXPECT_EQ(connection.error().code(), Code::kMismatch);
  EXPECT_NE(connection.error().message().find("version 9, this client 1"), std::string::npos)
      << connection.error().message();
}

TEST(Handshake, ARefusalIsItsCodeAndMessage) {
  wire::Welcome welcome;
  welcome.code = static_cast<std::uint32_t>(Code::kBusy);
  std::strcpy(welcome.message.data(), "too many");
  Result<Connection> connection = Greet(std::as_bytes(std::span(&welcome, 1)));
  ASSERT_FALSE(connection.has_value());
  EXPECT_EQ(connection.error().code(), Code::kBusy);
  EXPECT_EQ(connection.error().message(), "too many");
  welcome.message.fill('x');  // does not end
  welcome.code = 77;
  connection = Greet(std::as_bytes(std::span(&welcome, 1)));
  EXPECT_EQ(connection.error().code(), Code::kDenied);
  EXPECT_EQ(connection.error().message().size(), welcome.message.size());
}

TEST(Handshake, OtherBytesAreNoNode) {
  const std::array<std::byte, 5> few{};
  EXPECT_EQ(Greet(few).error().code(), Code::kMismatch);
  const std::array<std::byte, 300> many{};
  EXPECT_EQ(Greet(many).error().code(), Code::kMismatch);
  wire::Welcome welcome;  // ok, without descriptors
  EXPECT_EQ(Greet(std::as_bytes(std::span(&welcome, 1))).error().code(), Code::kMismatch);
}

// As the kernel cuts what a security module keeps from this process: it has room for more.
TEST(Handshake, DescriptorsThatAreHeldBackAreNoLimitsFault) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Fd node(ends[0]);
  wire::Welcome welcome;
  std::array<int, wire::kMaxDescriptors + 1> descriptors;
  descriptors.fill(STDERR_FILENO);
  ASSERT_EQ(SendDescriptors(node.get(), std::as_bytes(std::span(&welcome, 1)), descriptors), 0);
  const Result<Connection> connection = GreetNode(Fd(ends[1]), "the node", ConnectOptions(), INT64_MAX);
  ASSERT_FALSE(connection.has_value());
  EXPECT_EQ(connection.error().code(), Code::kDenied);
  EXPECT_NE(connection.error().message().find("SELinux"), std::string::npos) << connection.error().message();
}

// Listens at `path` as another user, until the test is over.
class Stranger {
 public:
  explicit Stranger(const std::string& path) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      path.copy(address.sun_path, sizeof(address.sun_path) - 1);
      const int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
      const bool listens = setgid(kUser) == 0 && setuid(kUser) == 0 &&
                           bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                           listen(listener, 16) == 0;
      const char byte = listens ? 'y' : 'n';
      static_cast<void>(!write(ready[1], &byte, 1));
      for (;;) pause();
    }
    char byte = 'n';
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'y');
    close(ready[0]);
    close(ready[1]);
  }
  ~Stranger() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  static constexpr uid_t kUser = 54321;

 private:
  pid_t pid_;
};

TEST(Handshake, R12AnotherUserWhoListensIsNotTalkedTo) {
  if (geteuid() != 0) GTEST_SKIP() << "listens as another user: run as root";
  std::string directory = (std::filesystem::temp_directory_path() / "cistern-connect-XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  ASSERT_EQ(chmod(directory.c_str(), 01777), 0);
  {
    ConnectOptions options;
    options.socket = directory + "/socket";
    Stranger stranger(options.socket);
    Result<Connection> connection = ConnectToNode(options);
    ASSERT_FALSE(connection.has_value());
    EXPECT_EQ(connection.error().code(), Code::kDenied) << connection.error().ToString();
    EXPECT_NE(connection.error().message().find("user 54321 listens there"), std::string::npos)
        << connection.error().ToString();
    // One that is named is talked to, and says nothing.
    options.deadline_us = 1'000;
    for (const auto& [node_user, code] :
         {std::pair("54321", Code::kTooLate), std::pair("any", Code::kTooLate),
          std::pair("54322", Code::kDenied), std::pair("cistern", Code::kInvalid)}) {
      options.node_user = node_user;
      EXPECT_EQ(ConnectToNode(options).error().code(), code) << node_user;
    }
  }
  std::filesystem::remove_all(directory);
}

TEST(Handshake, SilenceEndsWithTheDeadline) {
  EXPECT_EQ(Greet({}, DeadlineNs(1'000)).error().code(), Code::kTooLate);
}

TEST(NodeDeadline, P3LeavesTheAnswerItsTimeBeforeTheCallsOwn) {
  EXPECT_EQ(NodeDeadlineNs(5'000'000'000, 4'000'000'000), 4'990'000'000);
  EXPECT_EQ(NodeDeadlineNs(5'000'000'000, 4'992'000'000), 4'999'000'000);
  EXPECT_EQ(NodeDeadlineNs(5'000'000'000, 5'000'000'001), 5'000'000'000);
  EXPECT_EQ(NodeDeadlineNs(INT64_MAX, 0), INT64_MAX - 10'000'000);
}

// The whole connect has one deadline: what the socket took is gone for the welcome.
TEST(Handshake, P3ADeadlineThatPassedBeforeTheHelloLeavesNothingToWaitFor) {
  EXPECT_EQ(Greet({}, NowNs()).error().code(), Code::kTooLate);
}

}  // namespace
}  // namespace cistern::client
