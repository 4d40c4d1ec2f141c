// SPDX-License-Identifier: Apache-2.0
// One address whose connections several loops share.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <thread>
#include <vector>

#include "base/task_group.h"
#include "net/tcp_network.h"

namespace cistern::net {
namespace {

constexpr std::size_t kLoops = 3;

class SharedListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (auto& loop : loops_) loop = std::move(*io::MakeLoop(clock_));
    client_loop_ = std::move(*io::MakeLoop(clock_));
    client_.emplace(*client_loop_);
    std::vector<io::Loop*> all;
    for (const auto& loop : loops_) all.push_back(loop.get());
    auto listeners = ListenFor(all, "127.0.0.1:0");
    ASSERT_TRUE(listeners.has_value()) << listeners.error().ToString();
    listeners_ = std::move(*listeners);
    ASSERT_EQ(listeners_.size(), kLoops);
  }
  Instant Soon() const { return clock_.Now().PlusUs(60'000'000); }
  void Connect() {
    auto connect = client_->Connect(listeners_[0]->address(), Soon());
    while (!connect.done()) {
      (void)client_loop_->PollOnce();
      (void)loops_[0]->PollOnce();
    }
    auto made = connect.Take();
    ASSERT_TRUE(made.has_value()) << made.error().ToString();
    near_.push_back(std::move(*made));
  }
  // All loops turn, on this thread, until so many connections have come to theirs.
  void AcceptMore(std::size_t count) {
    std::array<std::optional<Task<Result<std::unique_ptr<Stream>>>>, kLoops> accepts;
    for (std::size_t came = 0; came < count;) {
      for (std::size_t at = 0; at < kLoops; ++at) {
        if (!accepts[at]) accepts[at] = listeners_[at]->Accept(Instant::Never());
        (void)loops_[at]->PollOnce();
        if (!accepts[at]->done()) continue;
        auto stream = accepts[at]->Take();
        accepts[at].reset();
        ASSERT_TRUE(stream.has_value()) << stream.error().ToString();
        far_[at].push_back(std::move(*stream));
        ++came;
      }
    }
  }

  SystemClock clock_;
  std::array<std::unique_ptr<io::Loop>, kLoops> loops_;
  std::unique_ptr<io::Loop> client_loop_;
  std::optional<TcpNetwork> client_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<Stream>> near_;
  std::array<std::vector<std::unique_ptr<Stream>>, kLoops> far_;
};

TEST_F(SharedListenerTest, ConnectionsOfAHostAreSpreadOverTheLoopsAndFillWhereOnesEnded) {
  for (int i = 0; i < 6; ++i) Connect();
  AcceptMore(6);
  for (const auto& streams : far_) EXPECT_EQ(streams.size(), 2u);
  far_[1].clear();
  for (int i = 0; i < 2; ++i) Connect();
  AcceptMore(2);
  for (const auto& streams : far_) EXPECT_EQ(streams.size(), 2u);
}

TEST_F(SharedListenerTest, WhoNobodyAsksForYetWaits) {
  // Up to as many as the system's queue has room for stay there.
  constexpr std::size_t kMany = 100;
  for (std::size_t i = 0; i < kMany; ++i) Connect();
  AcceptMore(kMany);
  std::size_t all = 0;
  for (const auto& streams : far_) all += streams.size();
  EXPECT_EQ(all, kMany);
}

TEST_F(SharedListenerTest, AnAddressInUseIsRefused) {
  io::Loop* const loop = client_loop_.get();
  const auto second = ListenFor({&loop, 1}, listeners_[0]->address());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), Code::kBusy);
}

// Sends back what comes, on the loop's own thread.
class Echo final {
 public:
  Echo(io::Loop& loop, std::unique_ptr<Listener> listener)
      : loop_(loop), listener_(std::move(listener)), tasks_(loop.executor()) {}

  Executor& executor() { return loop_.executor(); }
  void Run() {
    tasks_.Spawn(AcceptAll());
    loop_.Run();
    tasks_.Drop();
    listener_.reset();
  }

 private:
  Task<void> AcceptAll() {
    for (;;) {
      auto stream = co_await listener_->Accept(Instant::Never());
      if (stream) tasks_.Spawn(Serve(std::move(*stream)));
    }
  }
  Task<void> Serve(std::unique_ptr<Stream> stream) {
    std::array<std::byte, 4096> bytes;
    for (;;) {
      const Piece into(bytes);
      const auto came = co_await stream->Receive({&into, 1}, Instant::Never());
      if (!came || *came == 0) co_return;
      const ConstPiece from(bytes.data(), *came);
      const Status sent = co_await stream->Send({&from, 1}, Instant::Never());
      if (!sent.ok()) co_return;
    }
  }

  io::Loop& loop_;
  std::unique_ptr<Listener> listener_;
  TaskGroup tasks_;
};

TEST_F(SharedListenerTest, EachLoopServesItsOwnOnAThreadOfItsOwn) {
  const std::string address = listeners_[0]->address();
  std::vector<std::unique_ptr<Echo>> echoes;
  std::vector<std::thread> threads;
  for (std::size_t at = 0; at < kLoops; ++at)
    echoes.push_back(std::make_unique<Echo>(*loops_[at], std::move(listeners_[at])));
  for (const auto& echo : echoes) threads.emplace_back([&echo] { echo->Run(); });
  for (std::uint8_t i = 0; i < 60; ++i) {
    auto made = client_loop_->BlockOn(client_->Connect(address, Soon()));
    ASSERT_TRUE(made.has_value()) << made.error().ToString();
    const std::array<std::byte, 1> said = {std::byte{i}};
    std::array<std::byte, 1> heard{};
    const ConstPiece from(said);
    const Piece into(heard);
    ASSERT_TRUE(client_loop_->BlockOn((*made)->Send({&from, 1}, Soon())).ok());
    const auto came = client_loop_->BlockOn((*made)->Receive({&into, 1}, Soon()));
    ASSERT_TRUE(came.has_value()) << came.error().ToString();
    EXPECT_EQ(heard[0], said[0]);
    if (i % 2 == 0) near_.push_back(std::move(*made));
  }
  // The one that takes connections for the others ends first.
  for (std::size_t at = 0; at < kLoops; ++at) {
    loops_[at]->Stop();
    threads[at].join();
  }
}

}  // namespace
}  // namespace cistern::net
