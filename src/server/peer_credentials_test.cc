// SPDX-License-Identifier: Apache-2.0
#include "server/peer_credentials.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace cistern::server {
namespace {

// A connection of this process with itself; as who it counts, each case says.
class PeerCredentials : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    near_ = Fd(ends[0]);
    far_ = Fd(ends[1]);
  }
  Status Check(const Peer& peer, const PeerRules& rules = {}) {
    return CheckCredentials(near_.get(), peer, rules);
  }
  static Peer Other() { return {.uid = static_cast<std::uint32_t>(geteuid()) + 12345, .pid = 1}; }
  Fd near_, far_;
};

TEST_F(PeerCredentials, R12TheOwnUserComesInAndAnotherIsToldWhatToWrite) {
  EXPECT_TRUE(Check(*PeerOf(near_.get())).ok());
  const Status denied = Check(Other());
  EXPECT_EQ(denied.code(), Code::kDenied);
  EXPECT_NE(denied.message().find("clients = [\"user:" + std::to_string(Other().uid) + "\"]"),
            std::string::npos)
      << denied.ToString();
}

TEST_F(PeerCredentials, R12AUserAGroupOrAnyoneIsLetInByName) {
  EXPECT_TRUE(Check(Other(), {.users = {Other().uid}}).ok());
  EXPECT_EQ(Check(Other(), {.users = {Other().uid + 1}}).code(), Code::kDenied);
  EXPECT_TRUE(Check(Other(), {.groups = {getegid()}}).ok());
  EXPECT_EQ(Check(Other(), {.groups = {getegid() + 54321}}).code(), Code::kDenied);
  EXPECT_TRUE(Check(Other(), {.anyone = true}).ok());
}

// All users without a number in a user namespace are called by the same one there.
TEST_F(PeerCredentials, R12AUserWithoutANumberIsNobodyThatIsNamed) {
  Peer peer = *PeerOf(near_.get());
  peer.uid_known = false;
  EXPECT_EQ(Check(peer).code(), Code::kDenied);
  EXPECT_EQ(Check(peer, {.users = {peer.uid}}).code(), Code::kDenied);
  EXPECT_TRUE(Check(peer, {.anyone = true}).ok());
}

}  // namespace
}  // namespace cistern::server
