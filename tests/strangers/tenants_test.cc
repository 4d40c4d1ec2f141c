// SPDX-License-Identifier: Apache-2.0
// Promise 8: no byte and no presence crosses a tenant. Two nodes of two tenants over one memory directory,
// and what another user learns at the socket.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "../real_node.h"
#include "client/connection.h"
#include "wire/protocol.h"

namespace cistern {
namespace {

constexpr std::size_t kBytes = 64u << 10;

class Tenants : public ::testing::Test {
 protected:
  static ConnectOptions OptionsOf(const RealNode& node, const std::string& tenant) {
    ConnectOptions options = node.options();
    options.tenant = tenant;
    return options;
  }
  void SetUp() override {
    Result<Store> a = Store::Connect(OptionsOf(node_a, "a")), b = Store::Connect(OptionsOf(node_b, "b"));
    ASSERT_TRUE(a.has_value() && b.has_value());
    store_a.emplace(std::move(*a));
    store_b.emplace(std::move(*b));
    ns_a = AttachTest(*store_a);
    ns_b = AttachTest(*store_b);
    ASSERT_TRUE(PutBlock(*store_a, ns_a, 1, std::nullopt, kBytes).ok());
  }

  RealNode node_a{128u << 20, [](node::NodeOptions& options) { options.tenant = "a"; }};
  RealNode node_b{128u << 20, [this](node::NodeOptions& options) {
                    options.tenant = "b";
                    options.memory_dir = node_a.directory() + "/memory";
                  }};
  std::optional<Store> store_a, store_b;
  Namespace ns_a, ns_b;
};

TEST_F(Tenants, P8AnotherTenantsBlockIsNeitherFoundNorReadNorDropped) {
  const BlockKey key = KeyOf(1);
  const BlockRef ref{key};
  EXPECT_EQ(store_b->Match(ns_b, std::span(&key, 1)).Wait()->blocks, 0u);
  EXPECT_EQ(store_b->Get(ns_b, key).error().code(), Code::kMiss);
  EXPECT_FALSE(store_b->Acquire(ns_b, std::span(&ref, 1)).Wait().has_value());
  EXPECT_EQ(StatusNumber(*store_b, "records"), 0u);
  EXPECT_EQ(store_b->Drop(ns_b, std::span(&key, 1)).Wait().value_or(0), 0u);
  // The same key holds each tenant's own bytes.
  const std::vector<std::byte> other = BodyOf(2, kBytes);
  ASSERT_TRUE(store_b->Put(ns_b, key, std::nullopt, other).ok());
  EXPECT_EQ(*store_b->Get(ns_b, key), other);
  EXPECT_EQ(*store_a->Get(ns_a, key), BodyOf(1, kBytes));
}

// Searched for in all that a client of the other tenant has mapped.
TEST_F(Tenants, P8NoByteOfABlockOrItsKeyIsInWhatAnotherTenantMaps) {
  const BlockKey key = KeyOf(1);
  const std::vector<std::byte> body = BodyOf(1, kBytes);
  const auto has = [](const Mapping& map, std::span<const std::byte> bytes) {
    return memmem(map.data(), map.size(), bytes.data(), bytes.size()) != nullptr;
  };
  const client::Connection own = *client::ConnectToNode(OptionsOf(node_a, "a"));
  EXPECT_TRUE(has(own.arena, std::as_bytes(std::span(key.bytes))));
  EXPECT_TRUE(has(own.arena, std::span(body).first(256)));
  const client::Connection other = *client::ConnectToNode(OptionsOf(node_b, "b"));
  for (const Mapping* map : {&other.arena, &other.index, &other.session, &other.staging}) {
    EXPECT_FALSE(has(*map, std::as_bytes(std::span(key.bytes))));
    EXPECT_FALSE(has(*map, std::span(body).first(256)));
  }
}

TEST_F(Tenants, P8AnotherTenantsNameOrOwnerOpensNothing) {
  Result<client::Connection> named = client::ConnectToNode(OptionsOf(node_a, "b"));
  ASSERT_FALSE(named.has_value());
  EXPECT_EQ(named.error().code(), Code::kDenied);
  ConnectOptions joins = OptionsOf(node_b, "b");
  joins.owner = store_a->owner();
  Result<client::Connection> joined = client::ConnectToNode(joins);
  ASSERT_FALSE(joined.has_value());
  EXPECT_EQ(joined.error().code(), Code::kDenied);
}

// ---- another user ---------------------------------------------------------------------------------------

constexpr uid_t kStranger = 54321;

struct Learned {
  int opened = 0;  // files of the node's memory
  ssize_t bytes = -1;
  int descriptors = 0;
  wire::Welcome welcome;
};

// What a process of another user finds out, told over a pipe.
Learned AskAsStranger(const std::string& socket, const std::string& memory) {
  int told[2];
  EXPECT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    Learned learned;
    if (setgid(kStranger) != 0 || setuid(kStranger) != 0) _exit(1);
    for (const char* name : {"/a/arena", "/a/index", "/a/lock", "/a/journal"})
      learned.opened += open((memory + name).c_str(), O_RDONLY) >= 0;
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) _exit(2);
    wire::Hello hello;
    hello.tenant[0] = 'a';
    static_cast<void>(!send(fd, &hello, sizeof(hello), MSG_NOSIGNAL));
    iovec bytes{&learned.welcome, sizeof(learned.welcome)};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control;
    msghdr header{};
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    do {
      learned.bytes = recvmsg(fd, &header, 0);
    } while (learned.bytes < 0 && errno == ECONNRESET);
    learned.descriptors = CMSG_FIRSTHDR(&header) != nullptr ? 1 : 0;
    _exit(write(told[1], &learned, sizeof(learned)) == sizeof(learned) ? 0 : 3);
  }
  close(told[1]);
  Learned learned;
  EXPECT_EQ(read(told[0], &learned, sizeof(learned)), static_cast<ssize_t>(sizeof(learned)));
  close(told[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return learned;
}

// Even where the socket's mode lets everybody connect.
TEST_F(Tenants, P8AnotherUserLearnsNothingAtTheSocket) {
  if (geteuid() != 0) GTEST_SKIP() << "asks as another user: run as root";
  ASSERT_EQ(chmod(node_a.directory().c_str(), 0755), 0);
  ASSERT_EQ(chmod(node_a.socket().c_str(), 0666), 0);
  const std::string memory = node_a.directory() + "/memory";
  const Learned with = AskAsStranger(node_a.socket(), memory);
  const BlockKey key = KeyOf(1);
  ASSERT_EQ(store_a->Drop(ns_a, std::span(&key, 1)).Wait().value_or(0), 1u);
  const Learned without = AskAsStranger(node_a.socket(), memory);

  EXPECT_EQ(with.opened, 0);
  ASSERT_EQ(with.bytes, static_cast<ssize_t>(sizeof(wire::Welcome)));
  EXPECT_EQ(with.descriptors, 0);
  EXPECT_EQ(static_cast<Code>(with.welcome.code), Code::kDenied);
  EXPECT_EQ(with.welcome.owner, OwnerToken{});
  EXPECT_EQ(
      with.welcome.session + with.welcome.node_pid + with.welcome.boot_count + with.welcome.staging_bytes,
      0u);
  EXPECT_EQ(std::memcmp(&with.welcome, &without.welcome, sizeof(wire::Welcome)), 0) << "presence shows";
}

}  // namespace
}  // namespace cistern
