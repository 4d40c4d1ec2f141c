// SPDX-License-Identifier: Apache-2.0
// What a stream promises, of both networks, TCP by both real loops.
#include "net/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/fd.h"
#include "base/random_bytes.h"
#include "io/simulated_loop.h"
#include "net/simulated_network.h"
#include "net/tcp_network.h"

namespace cistern::net {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<std::byte> Bytes(std::size_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(count);
  FillRandom(seed, bytes);
  return bytes;
}

// Two hosts and a connection between them.
class NetworkTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string_view kind = GetParam();
    if (kind == "simulated") {
      loop_ = std::move(*io::SimulatedLoop::Make(simulated_clock_, disk_, 1));
      simulated_.emplace(loop_->executor(), 7);
      here_ = simulated_->Host("here");
      there_ = simulated_->Host("there");
    } else {
      io::LoopOptions options;
      options.kind = kind == "epoll" ? io::LoopKind::kEpoll : io::LoopKind::kUring;
      auto made = io::MakeLoop(clock_, options);
      if (!made) GTEST_SKIP() << made.error().ToString();
      loop_ = std::move(*made);
      here_ = std::make_unique<TcpNetwork>(*loop_);
      there_ = std::make_unique<TcpNetwork>(*loop_);
    }
    auto listener = there_->Listen(Address());
    ASSERT_TRUE(listener.has_value()) << listener.error().ToString();
    listener_ = std::move(*listener);
  }
  std::string Address(int port = 0) const {
    return (simulated_ ? "there:" : "127.0.0.1:") + std::to_string(port);
  }
  Instant Soon() const { return loop_->clock().Now().PlusUs(60'000'000); }
  Instant Past() const { return loop_->clock().Now(); }

  void Connect() {
    auto made = loop_->BlockOn(here_->Connect(listener_->address(), Soon()));
    ASSERT_TRUE(made.has_value()) << made.error().ToString();
    near_ = std::move(*made);
    auto accepted = loop_->BlockOn(listener_->Accept(Soon()));
    ASSERT_TRUE(accepted.has_value()) << accepted.error().ToString();
    far_ = std::move(*accepted);
  }
  Task<Status> SendBytes(Executor&, Stream& stream, ConstPiece bytes, Instant deadline) {
    co_return co_await stream.Send({&bytes, 1}, deadline);
  }
  // Until so many are there, or the end.
  Task<Status> ReceiveBytes(Executor&, Stream& stream, std::span<std::byte> into) {
    while (!into.empty()) {
      auto bytes = co_await stream.Receive({&into, 1}, Soon());
      if (!bytes) co_return bytes.error();
      if (*bytes == 0) co_return Status(Code::kGone, "it ended");
      into = into.subspan(*bytes);
    }
    co_return Status();
  }
  Executor& executor() { return loop_->executor(); }

  SystemClock clock_;
  SimulatedClock simulated_clock_;
  io::SimulatedDisk disk_{1};
  std::unique_ptr<io::Loop> loop_;
  std::optional<SimulatedNetwork> simulated_;
  std::unique_ptr<Network> here_, there_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Stream> near_, far_;
};

TEST_P(NetworkTest, MegabytesArriveInOrderBothWaysAtOnce) {
  Connect();
  const std::vector<std::byte> out = Bytes(20'000'001, 1), back = Bytes(9'000'003, 2);
  std::vector<std::byte> got_there(out.size()), got_back(back.size());
  auto a = SendBytes(executor(), *near_, out, Soon());
  auto b = SendBytes(executor(), *far_, back, Soon());
  auto c = ReceiveBytes(executor(), *far_, got_there);
  EXPECT_EQ(loop_->BlockOn(ReceiveBytes(executor(), *near_, got_back)).ToString(), "ok");
  EXPECT_EQ(loop_->BlockOn(std::move(c)).ToString(), "ok");
  EXPECT_EQ(loop_->BlockOn(std::move(a)).ToString(), "ok");
  EXPECT_EQ(loop_->BlockOn(std::move(b)).ToString(), "ok");
  EXPECT_TRUE(got_there == out);
  EXPECT_TRUE(got_back == back);
}

TEST_P(NetworkTest, PiecesAreGatheredAndScattered) {
  Connect();
  const std::vector<std::byte> bytes = Bytes(200'000, 3);
  std::vector<ConstPiece> out;
  for (std::size_t at = 0, size = 0; at < bytes.size(); at += size, size = size * 2 + 1) {
    size = std::min(size, bytes.size() - at);
    out.emplace_back(std::span(bytes).subspan(at, size));
  }
  auto sent = near_->Send(out, Soon());
  std::vector<std::byte> first(3), second(0), rest(bytes.size() - 3);
  std::array<Piece, 3> into = {first, second, rest};
  std::size_t had = 0;
  while (had < bytes.size()) {
    auto got = loop_->BlockOn(far_->Receive(into, Soon()));
    ASSERT_TRUE(got.has_value() && *got > 0);
    had += *got;
    if (had >= 3) {
      into = {Piece(), Piece(), Piece(rest).subspan(had - 3)};
    } else {
      into[0] = Piece(first).subspan(had);
    }
    if (had == bytes.size()) break;
  }
  EXPECT_TRUE(loop_->BlockOn(std::move(sent)).ok());
  first.insert(first.end(), rest.begin(), rest.end());
  EXPECT_TRUE(first == bytes);
}

TEST_P(NetworkTest, TheOtherSidesCloseIsAnEndAfterItsLastByte) {
  Connect();
  const std::vector<std::byte> bytes = Bytes(100'000, 4);
  EXPECT_TRUE(loop_->BlockOn(SendBytes(executor(), *near_, bytes, Soon())).ok());
  near_.reset();
  std::vector<std::byte> got(bytes.size());
  EXPECT_TRUE(loop_->BlockOn(ReceiveBytes(executor(), *far_, got)).ok());
  EXPECT_TRUE(got == bytes);
  const Piece into(got);
  auto end = loop_->BlockOn(far_->Receive({&into, 1}, Soon()));
  ASSERT_TRUE(end.has_value()) << end.error().ToString();
  EXPECT_EQ(*end, 0u);
}

TEST_P(NetworkTest, ACloseHereEndsWhoWaitsHere) {
  Connect();
  std::vector<std::byte> into(1);
  auto waiting = ReceiveBytes(executor(), *near_, into);
  EXPECT_FALSE(waiting.done());
  near_->Close();
  EXPECT_EQ(loop_->BlockOn(std::move(waiting)).code(), Code::kGone);
  EXPECT_EQ(loop_->BlockOn(SendBytes(executor(), *near_, into, Soon())).code(), Code::kGone);
}

TEST_P(NetworkTest, AReceivePastItsDeadlineIsTooLateAndTheNextOneGoesOn) {
  Connect();
  std::vector<std::byte> into(4);
  const Piece piece(into);
  auto late = loop_->BlockOn(near_->Receive({&piece, 1}, Past()));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), Code::kTooLate);
  EXPECT_THAT(std::string(late.error().message()), HasSubstr("before the deadline"));
  const std::vector<std::byte> bytes = Bytes(4, 5);
  EXPECT_TRUE(loop_->BlockOn(SendBytes(executor(), *far_, bytes, Soon())).ok());
  EXPECT_TRUE(loop_->BlockOn(ReceiveBytes(executor(), *near_, into)).ok());
  EXPECT_TRUE(into == bytes);
}

TEST_P(NetworkTest, ASendThatNobodyTakesEndsAtItsDeadlineAndClosesTheStream) {
  Connect();
  const std::vector<std::byte> bytes = Bytes(64u << 20, 6);
  EXPECT_EQ(loop_->BlockOn(SendBytes(executor(), *near_, bytes, loop_->clock().Now().PlusUs(1000))).code(),
            Code::kTooLate);
  EXPECT_EQ(loop_->BlockOn(SendBytes(executor(), *near_, bytes, Soon())).code(), Code::kGone);
}

TEST_P(NetworkTest, WhereNobodyListensIsSaidByAddress) {
  // A port that no program of a host takes by chance.
  const std::string address = Address(1);
  auto made = loop_->BlockOn(here_->Connect(address, Soon()));
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), Code::kIoError);
  EXPECT_THAT(std::string(made.error().message()), HasSubstr(address));
}

TEST_P(NetworkTest, AnAddressInUseIsRefused) {
  auto second = there_->Listen(listener_->address());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), Code::kBusy);
}

TEST_P(NetworkTest, AnAcceptPastItsDeadlineIsTooLate) {
  EXPECT_EQ(loop_->BlockOn(listener_->Accept(Past())).error().code(), Code::kTooLate);
}

INSTANTIATE_TEST_SUITE_P(Networks, NetworkTest, ::testing::Values("io_uring", "epoll", "simulated"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(CongestionControlTest, NoSegmentWaitsForATimerBetweenHostsThatAreNear) {
  EXPECT_EQ(BetterCongestionControl("bbr", 50).front(), "cubic");
  EXPECT_EQ(BetterCongestionControl("bbr2", 2'000).back(), "reno");
  EXPECT_TRUE(BetterCongestionControl("bbr", 2'001).empty());
  EXPECT_TRUE(BetterCongestionControl("cubic", 50).empty());
  EXPECT_TRUE(BetterCongestionControl("dctcp", 50).empty());
}

TEST(CongestionControlTest, BothEndsOfAConnectionTakeTheBetterOne) {
  const auto control_of = [](int socket) {
    std::array<char, 16> name{};
    socklen_t size = name.size() - 1;
    const bool is_tcp = ::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0;
    return is_tcp ? std::optional<std::string>(name.data()) : std::nullopt;
  };
  const Fd other(::socket(AF_INET, SOCK_STREAM, 0));
  const std::string of_system = control_of(other.get()).value();
  if (!of_system.starts_with("bbr")) GTEST_SKIP() << of_system << ", this system's, does not pace";
  SystemClock clock;
  auto loop = std::move(*io::MakeLoop(clock, {.kind = io::LoopKind::kEpoll}));
  TcpNetwork network(*loop);
  auto listener = std::move(*network.Listen("127.0.0.1:0"));
  const auto near = std::move(*loop->BlockOn(network.Connect(listener->address(), Instant::Never())));
  const auto far = std::move(*loop->BlockOn(listener->Accept(Instant::Never())));
  std::vector<std::string> of_connections;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage peer;
    socklen_t size = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (auto control = control_of(fd)) of_connections.push_back(*control);
  }
  EXPECT_THAT(of_connections, SizeIs(2));
  EXPECT_THAT(of_connections, Each(AnyOf("cubic", "reno")));
}

// Else whoever died without a word, or behind a way that was cut, is waited for without end: a rail that is
// served has nothing to send by itself.
TEST(TcpStreamTest, BothEndsOfAConnectionAskWhetherTheOtherOneIsThere) {
  SystemClock clock;
  auto loop = std::move(*io::MakeLoop(clock, {.kind = io::LoopKind::kEpoll}));
  TcpNetwork network(*loop);
  auto listener = std::move(*network.Listen("127.0.0.1:0"));
  const auto near = std::move(*loop->BlockOn(network.Connect(listener->address(), Instant::Never())));
  const auto far = std::move(*loop->BlockOn(listener->Accept(Instant::Never())));
  std::vector<int> asks;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in peer;
    socklen_t size = sizeof(peer);
    const bool connected = ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
    if (!connected || peer.sin_family != AF_INET) continue;
    int asks_here = 0;
    size = sizeof(asks_here);
    ASSERT_EQ(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &asks_here, &size), 0);
    asks.push_back(asks_here);
  }
  EXPECT_THAT(asks, ElementsAre(1, 1));
}

class TcpAddressTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TcpAddressTest, WhatIsNoAddressIsRefusedWithAnExample) {
  SystemClock clock;
  auto loop = std::move(*io::MakeLoop(clock, {.kind = io::LoopKind::kEpoll}));
  TcpNetwork network(*loop);
  auto made = network.Listen(GetParam());
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), Code::kInvalid);
  EXPECT_THAT(std::string(made.error().message()), HasSubstr("10.0.0.7:7420"));
}

INSTANTIATE_TEST_SUITE_P(Wrong, TcpAddressTest,
                         ::testing::Values("", "10.0.0.7", ":1", "10.0.0.7:", "10.0.0.7:65536", "10.0.0.7:7x",
                                           "fd00::7:7420x", "[fd00::7:7420", "host:7420", "[10.0.0.7]:1"));

// ---- what the simulated network alone can show

class SimulatedNetworkTest : public ::testing::Test {
 protected:
  SimulatedNetworkTest() {
    listener_ = std::move(*b_->Listen("b:1"));
    near_ = std::move(*loop_->BlockOn(a_->Connect("b:1", Instant::Never())));
    far_ = std::move(*loop_->BlockOn(listener_->Accept(Instant::Never())));
  }
  Instant After(std::int64_t us) const { return clock_.Now().PlusUs(us); }

  SimulatedClock clock_;
  io::SimulatedDisk disk_{1};
  std::unique_ptr<io::Loop> loop_ = std::move(*io::SimulatedLoop::Make(clock_, disk_, 1));
  SimulatedNetwork network_{loop_->executor(), 1};
  std::unique_ptr<Network> a_ = network_.Host("a"), b_ = network_.Host("b");
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Stream> near_, far_;
  std::array<std::byte, 8> bytes_{};
  const Piece into_{bytes_};
  const ConstPiece out_{bytes_};
};

TEST_F(SimulatedNetworkTest, ACutWayDelaysAndTheOtherDirectionGoesOn) {
  network_.Cut("a", "b");
  EXPECT_TRUE(loop_->BlockOn(near_->Send({&out_, 1}, After(1000))).ok());
  EXPECT_TRUE(loop_->BlockOn(far_->Send({&out_, 1}, After(1000))).ok());
  EXPECT_TRUE(loop_->BlockOn(near_->Receive({&into_, 1}, After(1000))).has_value());
  EXPECT_EQ(loop_->BlockOn(far_->Receive({&into_, 1}, After(1'000'000))).error().code(), Code::kTooLate);
  network_.Heal("a", "b");
  EXPECT_EQ(*loop_->BlockOn(far_->Receive({&into_, 1}, After(1'000'000))), 8u);
}

TEST_F(SimulatedNetworkTest, ACutWayLetsNobodyConnect) {
  network_.Cut("b", "a");
  EXPECT_EQ(loop_->BlockOn(a_->Connect("b:1", After(1'000'000))).error().code(), Code::kTooLate);
}

TEST_F(SimulatedNetworkTest, AResetEndsBothSides) {
  auto waiting = near_->Receive({&into_, 1}, Instant::Never());
  network_.Reset("b", "a");
  EXPECT_EQ(loop_->BlockOn(std::move(waiting)).error().code(), Code::kGone);
  EXPECT_EQ(loop_->BlockOn(far_->Send({&out_, 1}, After(1))).code(), Code::kGone);
}

TEST_F(SimulatedNetworkTest, AStoppedHostAnswersNoMore) {
  network_.Stop("b");
  EXPECT_EQ(loop_->BlockOn(near_->Receive({&into_, 1}, Instant::Never())).error().code(), Code::kGone);
  EXPECT_EQ(loop_->BlockOn(a_->Connect("b:1", After(1'000'000))).error().code(), Code::kIoError);
}

TEST_F(SimulatedNetworkTest, BytesTakeTheirTime) {
  const std::vector<std::byte> megabyte(1'000'000);
  const ConstPiece piece(megabyte);
  const Instant before = clock_.Now();
  auto sent = near_->Send({&piece, 1}, Instant::Never());
  for (std::size_t had = 0; had < megabyte.size();) {
    had += *loop_->BlockOn(far_->Receive({&into_, 1}, Instant::Never()));
  }
  EXPECT_GE(clock_.Now().UsSince(before), 200) << "5,000 bytes a microsecond";
}

}  // namespace
}  // namespace cistern::net
