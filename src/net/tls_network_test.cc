// SPDX-License-Identifier: Apache-2.0
#include "net/tls_network.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random_bytes.h"
#include "io/simulated_loop.h"
#include "net/simulated_network.h"
#include "net/test_pair.h"

namespace cistern::net {
namespace {

TlsContext OfKey(std::uint64_t seed) {
  CellKey key;
  FillRandom(seed, key.bytes);
  return std::move(*TlsContext::OfCellKeys({&key, 1}));
}

class TlsNetworkTest : public testing::Test {
 protected:
  Instant After(std::int64_t us) const { return clock_.Now().PlusUs(us); }

  SimulatedClock clock_;
  io::SimulatedDisk disk_{1};
  std::unique_ptr<io::Loop> loop_ = std::move(*io::SimulatedLoop::Make(clock_, disk_, 1));
  SimulatedNetwork network_{loop_->executor(), 1};
  std::unique_ptr<Network> here_ = network_.Host("here"), there_ = network_.Host("there");
  const TlsContext ours_ = OfKey(1), another_ = OfKey(2);
  TlsNetwork server_{*there_, ours_}, client_{*here_, ours_}, stranger_{*here_, another_};
};

TEST_F(TlsNetworkTest, EndsThatHoldTheKeyTalkAndOthersAreRefused) {
  const auto listener = std::move(*server_.Listen("there:0"));
  auto near = loop_->BlockOn(client_.Connect(listener->address(), After(1'000'000)));
  ASSERT_TRUE(near.has_value()) << near.error().ToString();
  auto far = loop_->BlockOn(listener->Accept(After(1'000'000)));
  ASSERT_TRUE(far.has_value());
  std::vector<std::byte> sent(100'000), received(sent.size());
  FillRandom(3, sent);
  auto sending = SendAll(loop_->executor(), **near, sent, After(1'000'000));
  EXPECT_TRUE(loop_->BlockOn(ReceiveAll(loop_->executor(), **far, received, After(1'000'000))).ok());
  EXPECT_TRUE(loop_->BlockOn(std::move(sending)).ok());
  EXPECT_EQ(sent, received);

  const auto refused = loop_->BlockOn(stranger_.Connect(listener->address(), After(1'000'000)));
  EXPECT_FALSE(refused.has_value());
  EXPECT_EQ(loop_->BlockOn(listener->Accept(After(3'000'000))).error().code(), Code::kTooLate);
  EXPECT_EQ(listener->refused().code(), Code::kDenied);
  EXPECT_NE(listener->refused().message().find("here:"), std::string_view::npos) << "who it was";
  ASSERT_TRUE(loop_->BlockOn(client_.Connect(listener->address(), After(1'000'000))).has_value());
  EXPECT_TRUE(loop_->BlockOn(listener->Accept(After(1'000'000))).has_value());
  EXPECT_TRUE(listener->refused().ok());
}

TEST_F(TlsNetworkTest, ThoseThatSayNothingKeepNobodyOut) {
  const auto listener = std::move(*server_.Listen("there:0"));
  std::vector<std::unique_ptr<Stream>> silent;
  for (std::size_t i = 0; i + 1 < TlsNetwork::kHandshakes; ++i)
    silent.push_back(std::move(*loop_->BlockOn(here_->Connect(listener->address(), After(1'000'000)))));
  const auto near = loop_->BlockOn(client_.Connect(listener->address(), After(1'000'000)));
  EXPECT_TRUE(near.has_value());
  EXPECT_TRUE(loop_->BlockOn(listener->Accept(After(1'000'000))).has_value());
}

TEST_F(TlsNetworkTest, MoreThanThereIsRoomForThatSayNothingKeepAMemberOutForLessThanItsDial) {
  const auto listener = std::move(*server_.Listen("there:0"));
  std::vector<std::unique_ptr<Stream>> silent;
  for (std::size_t i = 0; i < 2 * TlsNetwork::kHandshakes; ++i)
    silent.push_back(std::move(*loop_->BlockOn(here_->Connect(listener->address(), After(1'000'000)))));
  const auto near = loop_->BlockOn(client_.Connect(listener->address(), After(1'000'000)));
  EXPECT_TRUE(near.has_value()) << near.error().ToString();
  EXPECT_TRUE(loop_->BlockOn(listener->Accept(After(1'000'000))).has_value());
}

TEST_F(TlsNetworkTest, ListenerThatGoesTakesItsHandshakesAlong) {
  auto listener = std::move(*server_.Listen("there:0"));
  auto silent = std::move(*loop_->BlockOn(here_->Connect(listener->address(), After(1'000'000))));
  listener.reset();
  std::array<std::byte, 1> byte{};
  const Piece piece(byte);
  const auto received = loop_->BlockOn(silent->Receive({&piece, 1}, After(1'000'000)));
  EXPECT_TRUE(!received || *received == 0u);
}

}  // namespace
}  // namespace cistern::net
