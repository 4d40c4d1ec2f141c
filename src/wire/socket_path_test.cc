// SPDX-License-Identifier: Apache-2.0
#include "wire/socket_path.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "base/fd.h"

namespace cistern::wire {
namespace {

namespace fs = std::filesystem;

class SocketPath : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = (fs::temp_directory_path() / "cistern-meet-XXXXXX").string();
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    directories_ = {root_ + "/login", root_ + "/own"};
  }
  void TearDown() override { fs::remove_all(root_); }
  void Make(const std::string& directory, fs::perms mode = fs::perms::owner_all) {
    fs::create_directory(directory);
    fs::permissions(directory, mode);
  }
  // Who listens there as long as it lives; its file stays.
  Fd ListenIn(const std::string& directory) {
    const std::string path = directory + "/cistern.sock";
    Fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener.get(), 8), 0);
    return listener;
  }
  std::string Found() const { return fs::path(SocketPathIn(directories_)).parent_path().filename(); }

  std::string root_;
  std::array<std::string, 2> directories_;
};

TEST_F(SocketPath, TheFirstThatIsThereIsTakenAndTheLastIsWhereTheNodeMakesOne) {
  EXPECT_EQ(Found(), "own");
  Make(directories_[1]);
  EXPECT_EQ(Found(), "own");
  Make(directories_[0]);
  EXPECT_EQ(Found(), "login");
}

TEST_F(SocketPath, ALoginDoesNotPartAUsersClientsFromTheNodeThatStoodBefore) {
  Make(directories_[1]);
  Fd node = ListenIn(directories_[1]);
  Make(directories_[0]);
  EXPECT_EQ(Found(), "own");
  node.Close();  // a dead node's socket is no meeting place
  EXPECT_EQ(Found(), "login");
}

TEST_F(SocketPath, OfTwoNodesTheFirstIsMet) {
  Make(directories_[0]);
  Make(directories_[1]);
  const Fd first = ListenIn(directories_[0]), second = ListenIn(directories_[1]);
  EXPECT_EQ(Found(), "login");
}

TEST_F(SocketPath, R12WhereOthersMayPutASocketNobodyIsMet) {
  Make(directories_[0]);
  Make(directories_[1], fs::perms::all);
  const Fd listener = ListenIn(directories_[1]);
  EXPECT_EQ(Found(), "login");
}

}  // namespace
}  // namespace cistern::wire
