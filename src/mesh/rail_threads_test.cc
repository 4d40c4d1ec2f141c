// SPDX-License-Identifier: Apache-2.0
#include "mesh/rail_threads.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>

#include "base/fd.h"
#include "base/format.h"
#include "store/test_store.h"

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

class NoSink final : public net::RailSink {
 public:
  Status Begin(std::uint32_t, net::ConstPiece, std::uint64_t) override { return Status(); }
  void Take(std::uint32_t, net::ConstPiece) override {}
  void End(std::uint32_t, const Status&) override {}
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
  NoSink sink;
  auto reading = rails.Read(1, questions, sink, still.Now().PlusUs(1'000'000));
  rails.EndReads();
  EXPECT_EQ(t.Run(std::move(reading)).code(), Code::kGone);
  t.Run(rails.Close());
}

}  // namespace
}  // namespace cistern::mesh
