// SPDX-License-Identifier: Apache-2.0
#include "mesh/rail_threads.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>

#include "base/fd.h"
#include "base/format.h"
#include "mesh/peer_message.h"
#include "mesh/rail_thread.h"
#include "net/tcp_network.h"
#include "store/block_store_fixture.h"

namespace cistern::mesh {
namespace {

// A peer that takes connections and says nothing.
class SilentPeer final : public PeerLinks {
 public:
  SilentPeer() {
    sockaddr_in any{.sin_family = AF_INET};
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(any);
    auto* const address = reinterpret_cast<sockaddr*>(&any);
    EXPECT_EQ(::bind(socket_.get(), address, size) | ::listen(socket_.get(), 16), 0);
    EXPECT_EQ(::getsockname(socket_.get(), address, &size), 0);
    address_ = Text("127.0.0.1:", ntohs(any.sin_port));
  }
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
  Fd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string address_;
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

// A thread that reads from itself.
TEST(RailThreadsTest, WhatIsNotInMemoryIsAnsweredAtOnceByANodeThatEnds) {
  constexpr std::int64_t kLongUs = 60'000'000;
  store::TestStore t;
  const SystemClock clock;
  const auto attached = t.Run(t.store->Attach(store::OneGroup()));
  ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
  RailCommon common{*t.loop,
                    clock,
                    arena::Reader<arena::Words>(t.words, t.arena, t.index),
                    nullptr,
                    {},
                    {},
                    net::Bandwidth(0),
                    StoreKeeper(t.loop->executor(), *t.store, catalog::Caller{1, {}}),
                    TaskGroup(t.loop->executor())};
  const BlockRequest request{.history = 1,
                             .name = {.tenant = "default"},
                             .key = store::Key(1),
                             .body_bytes = 4096,
                             .worth_us = kLongUs};
  const ServedNamespaces served = {{request.name, {attached->slot, attached->incarnation}}};
  common.view.Set(Answered{.history = request.history}, std::make_shared<const ServedNamespaces>(served));
  t.Run(common.brings.Close());
  std::unique_ptr<io::Loop> loop =
      std::move(*io::MakeLoop(clock, {.kind = io::LoopKind::kEpoll, .poll_us = 0}));
  io::Loop* const of_thread = loop.get();
  RailThread thread(common, std::move(loop));
  std::string address;
  const auto listen = [&](bool) -> Result<std::unique_ptr<net::Listener>> {
    auto listeners = net::ListenFor(std::span(&of_thread, 1), "127.0.0.1:0");
    if (!listeners) return Error(std::move(listeners.error()));
    address = listeners->front()->address();
    return std::move(listeners->front());
  };
  Status no_fabric;
  ASSERT_TRUE(thread.Start(listen, std::nullopt, &no_fabric).ok());
  const std::vector<std::byte> question = Encode(request);
  const net::ConstPiece questions[] = {question};
  OneEnd sink;
  (void)t.Run(thread.Read(1, address, questions, sink, clock.Now().PlusUs(kLongUs)));
  EXPECT_EQ(sink.status.code(), Code::kGone) << sink.status.ToString();
  thread.Join();
}

}  // namespace
}  // namespace cistern::mesh
