// SPDX-License-Identifier: Apache-2.0
#include "mesh/rail_threads.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>

#include "base/fd.h"
#include "base/format.h"
#include "base/test_held_lane.h"
#include "mesh/rail_thread.h"
#include "mesh/test_peer_message.h"
#include "net/tcp_network.h"
#include "store/block_store_fixture.h"

namespace cistern::mesh {
namespace {

// A peer of which nothing is known but where it serves blocks.
class PeerAt : public PeerLinks {
 public:
  explicit PeerAt(std::string address) : address_(std::move(address)) {}
  virtual ~PeerAt() = default;
  std::vector<std::uint64_t> Reachable() const override { return {}; }
  bool SameZone(std::uint64_t) const override { return false; }
  Status Tell(std::uint64_t, std::uint16_t, net::ConstPiece) override {
    return Status(Code::kGone, "silent");
  }
  void TellLatest(std::uint64_t, std::uint16_t, net::ConstPiece) override {}
  Task<Result<std::vector<std::byte>>> Ask(std::uint64_t, std::uint16_t, std::vector<std::byte>,
                                           Instant) override {
    return {};
  }
  std::string RailAddress(std::uint64_t) const override { return address_; }

 private:
  const std::string address_;
};

// It takes connections and says nothing.
class SilentPeer final : public PeerAt {
 public:
  SilentPeer() : SilentPeer(Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) {}

 private:
  explicit SilentPeer(Fd socket) : PeerAt(ListenOn(socket.get())), socket_(std::move(socket)) {}
  static std::string ListenOn(int socket) {
    sockaddr_in any{.sin_family = AF_INET};
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(any);
    auto* const address = reinterpret_cast<sockaddr*>(&any);
    EXPECT_EQ(::bind(socket, address, size) | ::listen(socket, 16), 0);
    EXPECT_EQ(::getsockname(socket, address, &size), 0);
    return Text("127.0.0.1:", ntohs(any.sin_port));
  }
  const Fd socket_;
};

class OneEnd final : public net::RailSink {
 public:
  Status Begin(std::uint32_t, net::ConstPiece, std::uint64_t) override { return Status(); }
  void Take(std::uint32_t, net::ConstPiece) override {}
  void End(std::uint32_t, const Status& ended) override { status = ended; }
  Status status;
};

// The core waits for the threads and does nothing else meanwhile. Their clock stands, so that no deadline of
// a dial comes, and no end that waits for one.
TEST(RailThreadsTest, P5AnEndWaitsForNoDial) {
  store::TestStore t;
  SimulatedClock still;
  const std::array<net::CellKey, 1> keys{};
  const net::TlsContext context = std::move(*net::TlsContext::OfCellKeys(keys));
  const SilentPeer peer;
  const arena::Reader<arena::Words> reader(t.words, t.arena, t.index);
  auto started = RailThreads::Start({.core = *t.loop,
                                     .clock = still,
                                     .store = *t.store,
                                     .reader = reader,
                                     .links = peer,
                                     .context = &context,
                                     .loop = {.kind = io::LoopKind::kEpoll, .poll_us = 0}},
                                    "127.0.0.1:0");
  ASSERT_TRUE(started.has_value()) << started.error().ToString();
  RailThreads& rails = **started;
  const std::array<std::byte, 8> question{};
  const net::ConstPiece questions[] = {question};
  OneEnd sink;
  auto reading = rails.Read(1, questions, sink, still.Now().PlusUs(1'000'000));
  rails.EndReads();
  EXPECT_EQ(t.Run(std::move(reading)).code(), Code::kGone);
  t.Run(rails.Close());
}

TEST(RailThreadsTest, WhyNoRailIsOpenIsKnownUntilOneIs) {
  store::TestStore t;
  const SystemClock clock;
  const arena::Reader<arena::Words> reader(t.words, t.arena, t.index);
  std::string address;
  {
    auto listens = net::ListenFor(std::array<io::Loop*, 1>{&*t.loop}, "127.0.0.1:0");
    ASSERT_TRUE(listens.has_value());
    address = listens->front()->address();
  }
  const PeerAt peer(address);
  const auto start = [&](const std::string& listen) {
    return std::move(*RailThreads::Start({.core = *t.loop,
                                          .clock = clock,
                                          .store = *t.store,
                                          .reader = reader,
                                          .links = peer,
                                          .loop = {.kind = io::LoopKind::kEpoll, .poll_us = 0}},
                                         listen));
  };
  const std::array<std::byte, 8> question{};
  const net::ConstPiece questions[] = {question};
  OneEnd sink;
  const std::unique_ptr<RailThreads> rails = start("127.0.0.1:0");
  const auto read = [&] { return t.Run(rails->Read(1, questions, sink, clock.Now().PlusUs(60'000'000))); };
  EXPECT_TRUE(rails->WhyNone(1).ok());
  EXPECT_FALSE(read().ok());
  EXPECT_THAT(std::string(rails->WhyNone(1).message()), testing::HasSubstr(address));
  EXPECT_EQ(rails->WithoutRail(), 1u);
  const std::unique_ptr<RailThreads> other = start(address);
  (void)read();  // what is asked is no request of a block: a rail that is open says so
  EXPECT_TRUE(rails->WhyNone(1).ok()) << rails->WhyNone(1).ToString();
  EXPECT_EQ(rails->WithoutRail(), 0u);
  for (RailThreads* one : {rails.get(), other.get()}) {
    one->EndReads();
    t.Run(one->Close());
  }
}

// A thread that reads from itself a block that is not in memory.
class RailThreadTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto attached = t_.Run(t_.store->Attach(store::OneGroup()));
    ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
    const ServedNamespaces served = {{request_.name, {attached->slot, attached->incarnation}}};
    common_.view.Set(Answered{.history = request_.history}, std::make_shared<const ServedNamespaces>(served));
    std::unique_ptr<io::Loop> loop =
        std::move(*io::MakeLoop(clock_, {.kind = io::LoopKind::kEpoll, .poll_us = 0}));
    io::Loop* const of_thread = loop.get();
    thread_.emplace(common_, std::move(loop));
    const auto listen = [&](bool) -> Result<std::unique_ptr<net::Listener>> {
      auto listeners = net::ListenFor(std::span(&of_thread, 1), "127.0.0.1:0");
      if (!listeners) return Error(std::move(listeners.error()));
      address_ = listeners->front()->address();
      return std::move(listeners->front());
    };
    Status no_fabric;
    ASSERT_TRUE(thread_->Start(listen, std::nullopt, &no_fabric).ok());
  }
  void TearDown() override {
    if (!common_.brings.closed()) t_.Run(common_.brings.Close());
    if (thread_) thread_->Join();
  }
  Task<Status> Read() {
    return thread_->Read(1, address_, questions_, sink_, clock_.Now().PlusUs(kLongUs), &rails_);
  }

  static constexpr std::int64_t kLongUs = 60'000'000;
  const BlockRequest request_{.history = 1,
                              .name = {.tenant = "default"},
                              .key = store::Key(1),
                              .body_bytes = 4096,
                              .worth_us = kLongUs};
  const std::vector<std::byte> question_ = Encode(request_);
  const std::array<net::ConstPiece, 1> questions_ = {net::ConstPiece(question_)};
  store::TestStore t_;
  const SystemClock clock_;
  HeldLane lane_{t_.loop->executor()};
  RailCommon common_{*t_.loop,
                     clock_,
                     arena::Reader<arena::Words>(t_.words, t_.arena, t_.index),
                     nullptr,
                     {},
                     {},
                     net::Bandwidth(0),
                     StoreKeeper(t_.loop->executor(), *t_.store, catalog::Caller{1, {}}),
                     TaskGroup(t_.loop->executor()),
                     &lane_};
  std::optional<RailThread> thread_;
  std::string address_;
  OneEnd sink_;
  std::size_t rails_ = 0;
};

TEST_F(RailThreadTest, WhatIsNotInMemoryIsAnsweredAtOnceByANodeThatEnds) {
  t_.Run(common_.brings.Close());
  (void)t_.Run(Read());
  EXPECT_EQ(sink_.status.code(), Code::kGone) << sink_.status.ToString();
}

TEST_F(RailThreadTest, P5WhatIsToBeBroughtForAPeerWaitsForItsTurnInTheLane) {
  Task<Status> reading = Read();
  while (!lane_.waits()) t_.loop->Turn();
  EXPECT_FALSE(reading.done());
  lane_.LetGo();
  (void)t_.Run(std::move(reading));
  EXPECT_EQ(sink_.status.code(), Code::kMiss) << sink_.status.ToString();
  EXPECT_EQ(rails_, 1u);
  t_.Run(common_.brings.Close());
  EXPECT_EQ(lane_.users, 0);
}

}  // namespace
}  // namespace cistern::mesh
