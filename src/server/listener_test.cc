// SPDX-License-Identifier: Apache-2.0
#include "server/listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/format.h"

namespace cistern::server {
namespace {

class ListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = (std::filesystem::temp_directory_path() / "cistern-listen-XXXXXX").string();
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/s";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  // A socket file as a dead node leaves it.
  void LeaveStale() {
    Fd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  std::string directory_, path_;
};

TEST_F(ListenerTest, APathThatIsTooLongIsNamedWithItsLimit) {
  Result<Listener> bound = Listener::Bind(directory_ + "/" + std::string(200, 'x'));
  ASSERT_FALSE(bound.has_value());
  EXPECT_EQ(bound.error().code(), Code::kInvalid);
  EXPECT_NE(bound.error().message().find("at most 107"), std::string::npos) << bound.error().ToString();
}

TEST_F(ListenerTest, ASocketInUseNamesItsPathAndProcess) {
  Result<Listener> first = Listener::Bind(path_);
  ASSERT_TRUE(first.has_value());
  Result<Listener> second = Listener::Bind(path_);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), Code::kBusy);
  EXPECT_NE(second.error().message().find(path_), std::string::npos);
  EXPECT_NE(second.error().message().find(Text("process ", getpid())), std::string::npos)
      << second.error().ToString();
}

TEST_F(ListenerTest, AModeThatLetsOthersTryIsGivenWhereItIsAskedFor) {
  Result<Listener> bound = Listener::Bind(path_, 0666);
  ASSERT_TRUE(bound.has_value());
  struct stat about;
  ASSERT_EQ(stat(path_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0666u);
}

TEST_F(ListenerTest, WhatADeadNodeLeftIsReplaced) {
  LeaveStale();
  EXPECT_TRUE(Listener::Bind(path_).has_value());
}

TEST_F(ListenerTest, AFileThatIsNoSocketStays) {
  std::ofstream(path_) << "precious";
  Result<Listener> bound = Listener::Bind(path_);
  ASSERT_FALSE(bound.has_value());
  EXPECT_EQ(bound.error().code(), Code::kInvalid);
  EXPECT_EQ(std::filesystem::file_size(path_), 8u);
}

TEST_F(ListenerTest, R12TheModeIs0660) {
  Result<Listener> bound = Listener::Bind(path_);
  ASSERT_TRUE(bound.has_value());
  struct stat about;
  ASSERT_EQ(stat(path_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0660u);
}

TEST_F(ListenerTest, TheFileGoesWithTheListenerUnlessItIsAnothers) {
  {
    ASSERT_TRUE(Listener::Bind(path_).has_value());
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  {
    Result<Listener> bound = Listener::Bind(path_);
    ASSERT_TRUE(bound.has_value());
    std::filesystem::rename(path_, path_ + "2");  // keeps the inode in use
    LeaveStale();
  }
  EXPECT_TRUE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace cistern::server
