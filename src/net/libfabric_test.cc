// SPDX-License-Identifier: Apache-2.0
// The real library, over its TCP provider: the same calls as on a device. CISTERN_FABRIC names another
// provider, for the machine of `./dev lab rdma`, which has a device.
#include "net/libfabric.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "base/random_bytes.h"
#include "net/libfabric_calls.h"
#include "net/rail.h"
#include "net/tcp_network.h"

namespace cistern::net {
namespace {

constexpr std::size_t kMiB = 1u << 20;

LibfabricOptions Options() {
  const char* const provider = std::getenv("CISTERN_FABRIC");
  const char* const address = std::getenv("CISTERN_FABRIC_ADDRESS");
  return {.provider = provider == nullptr ? "tcp;ofi_rxm" : provider,
          .address = address == nullptr ? "127.0.0.1" : address};
}

std::vector<std::byte> Filled(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> memory(bytes);
  FillRandom(seed, memory);
  return memory;
}

class LibfabricTest : public ::testing::Test {
 public:
  Executor& executor() { return loop_->executor(); }

 protected:
  std::unique_ptr<Libfabric> Open(bool polled = false) {
    LibfabricOptions options = Options();
    options.polled = polled;
    auto fabric = Libfabric::Open(*loop_, options);
    EXPECT_TRUE(fabric.has_value()) << fabric.error().ToString();
    return fabric ? std::move(*fabric) : nullptr;
  }
  Instant After(std::int64_t us) { return loop_->clock().Now().PlusUs(us); }
  // From `from` on, through the reader's buffer.
  Task<Status> Read(FabricReader& reader, FabricPlace from, std::size_t bytes, std::vector<std::byte>* out) {
    const Piece into = reader.buffer().first(bytes);
    const Status status = co_await reader.Read(from, into, After(20'000'000));
    if (status.ok()) out->assign(into.begin(), into.end());
    co_return status;
  }

  SystemClock clock_;
  std::unique_ptr<io::Loop> loop_ = std::move(*io::MakeLoop(clock_));
};

TEST_F(LibfabricTest, BytesOfAnotherMemberAreReadInPlace) {
  const std::vector<std::byte> memory = Filled(4 * kMiB, 1);
  auto holder = Open(), asker = Open();
  ASSERT_TRUE(holder && asker);
  ASSERT_TRUE(holder->Register(memory).ok());
  EXPECT_EQ(holder->registered_bytes(), memory.size());
  auto reader = asker->ReaderOf(holder->name());
  ASSERT_TRUE(reader.has_value()) << reader.error().ToString();
  for (const std::size_t at : {std::size_t{0}, std::size_t{4'097}, 3 * kMiB}) {
    const ConstPiece bytes = ConstPiece(memory).subspan(at, FabricReader::kReadBytes);
    std::vector<std::byte> out;
    const Status status = loop_->BlockOn(Read(**reader, *holder->PlaceOf(bytes), bytes.size(), &out));
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(std::ranges::equal(out, bytes));
  }
}

TEST_F(LibfabricTest, AProviderThatCannotSignalIsLookedAt) {
  const std::vector<std::byte> memory = Filled(kMiB, 1);
  auto holder = Open(true), asker = Open(true);
  ASSERT_TRUE(holder && asker);
  ASSERT_TRUE(holder->Register(memory).ok());
  auto reader = asker->ReaderOf(holder->name());
  ASSERT_TRUE(reader.has_value());
  std::vector<std::byte> out;
  const ConstPiece bytes = ConstPiece(memory).first(FabricReader::kReadBytes);
  const Status status = loop_->BlockOn(Read(**reader, *holder->PlaceOf(bytes), bytes.size(), &out));
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(std::ranges::equal(out, bytes));
}

TEST_F(LibfabricTest, OnlyWhatIsRegisteredHasAPlace) {
  const std::vector<std::byte> memory = Filled(kMiB, 1), other = Filled(kMiB, 2);
  auto holder = Open();
  ASSERT_TRUE(holder);
  ASSERT_TRUE(holder->Register(memory).ok());
  EXPECT_TRUE(holder->PlaceOf(memory).has_value());
  EXPECT_FALSE(holder->PlaceOf(other).has_value());
  EXPECT_FALSE(holder->PlaceOf({memory.data() + 1, memory.size()}).has_value());
  EXPECT_FALSE(holder->PlaceOf({memory.data() - 1, 2}).has_value());
  // The middle goes; what stays on both sides is registered anew.
  holder->Deregister(std::span(memory).subspan(4'096, 8'192));
  EXPECT_EQ(holder->registered_bytes(), memory.size() - 8'192);
  EXPECT_TRUE(holder->PlaceOf(std::span(memory).first(4'096)).has_value());
  EXPECT_FALSE(holder->PlaceOf(std::span(memory).subspan(4'095, 2)).has_value());
  EXPECT_TRUE(holder->PlaceOf(std::span(memory).subspan(12'288)).has_value());
}

TEST_F(LibfabricTest, WhatWasTakenBackIsReadByNobody) {
  std::vector<std::byte> memory = Filled(kMiB, 1);
  auto holder = Open(), asker = Open();
  ASSERT_TRUE(holder && asker);
  ASSERT_TRUE(holder->Register(memory).ok());
  auto reader = asker->ReaderOf(holder->name());
  ASSERT_TRUE(reader.has_value());
  const FabricPlace place = *holder->PlaceOf(std::span(memory).first(4'096));
  std::vector<std::byte> out;
  ASSERT_TRUE(loop_->BlockOn(Read(**reader, place, 4'096, &out)).ok());
  holder->Deregister(memory);
  EXPECT_FALSE(loop_->BlockOn(Read(**reader, place, 4'096, &out)).ok());
  // Another registration is another place, and another endpoint reads it.
  ASSERT_TRUE(holder->Register(memory).ok());
  reader = asker->ReaderOf(holder->name());
  ASSERT_TRUE(reader.has_value());
  const FabricPlace anew = *holder->PlaceOf(std::span(memory).first(4'096));
  const Status status = loop_->BlockOn(Read(**reader, anew, 4'096, &out));
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(std::ranges::equal(out, std::span(memory).first(4'096)));
}

TEST_F(LibfabricTest, AClosedReaderEndsItsReadsAndOthersGoOn) {
  const std::vector<std::byte> memory = Filled(kMiB, 1);
  auto holder = Open(), asker = Open();
  ASSERT_TRUE(holder && asker);
  ASSERT_TRUE(holder->Register(memory).ok());
  auto first = asker->ReaderOf(holder->name());
  auto second = asker->ReaderOf(holder->name());
  ASSERT_TRUE(first && second);
  std::vector<std::byte> out;
  auto read = Read(**first, *holder->PlaceOf(std::span(memory).first(4'096)), 4'096, &out);
  (*first)->Close();
  EXPECT_EQ(loop_->BlockOn(std::move(read)).code(), Code::kGone);
  EXPECT_EQ(loop_->BlockOn(Read(**first, {}, 1, &out)).code(), Code::kGone);
  EXPECT_TRUE(
      loop_->BlockOn(Read(**second, *holder->PlaceOf(std::span(memory).first(4'096)), 4'096, &out)).ok());
}

// A member that is stopped says nothing for as long as it likes: the deadline is ours.
TEST_F(LibfabricTest, AReadOfAMemberThatIsGoneEndsByItsDeadline) {
  const std::vector<std::byte> memory = Filled(kMiB, 1);
  auto holder = Open(), asker = Open();
  ASSERT_TRUE(holder && asker);
  ASSERT_TRUE(holder->Register(memory).ok());
  const FabricPlace place = *holder->PlaceOf(std::span(memory).first(4'096));
  const std::vector<std::byte> name(holder->name().begin(), holder->name().end());
  holder.reset();
  auto reader = asker->ReaderOf(name);
  ASSERT_TRUE(reader.has_value());
  const Piece into = (*reader)->buffer().first(4'096);
  EXPECT_FALSE(loop_->BlockOn((*reader)->Read(place, into, After(50'000))).ok());
}

// ---- a rail between two members whose bodies the device fetches

class OneBlock final : public RailSource {
 public:
  OneBlock(Executor& executor, ConstPiece block) : executor_(executor), block_(block) {}
  Executor& executor() { return executor_; }
  Task<Answer> Find(ConstPiece, Instant) override {
    Answer answer;
    answer.body = {block_};
    co_return answer;
  }
  bool Stands(std::uint64_t) const override { return true; }
  bool Sent(std::uint64_t) override { return true; }

 private:
  Executor& executor_;
  const ConstPiece block_;
};

class OneSink final : public RailSink {
 public:
  Status Begin(std::uint32_t, ConstPiece, std::uint64_t) override { return Status(); }
  void Take(std::uint32_t, ConstPiece bytes) override { body.insert(body.end(), bytes.begin(), bytes.end()); }
  void End(std::uint32_t, const Status& status) override { end = status; }

  std::vector<std::byte> body;
  Status end;
};

// kTooLate: the device was late, as on a loaded host, and the rail asks it no more.
Status ReadOverDeviceAndStream(io::Loop& loop, Libfabric& holder, Libfabric& asker) {
  const std::vector<std::byte> memory = Filled(5 * kMiB + 77, 3);
  EXPECT_TRUE(holder.Register(memory).ok());
  const auto after = [&](std::int64_t us) { return loop.clock().Now().PlusUs(us); };
  TcpNetwork network(loop);
  auto listener = std::move(*network.Listen("127.0.0.1:0"));
  auto near = std::move(*loop.BlockOn(network.Connect(listener->address(), after(20'000'000))));
  auto far = std::move(*loop.BlockOn(listener->Accept(after(20'000'000))));
  OneBlock source(loop.executor(), memory);
  auto serving = ServeRail(*far, source, &holder);
  Status by_device;
  {
    Counter fetched;
    asker.CountIn(fetched);
    RailReader reader(std::move(near), &asker);
    const std::array<std::byte, 1> question{};
    const ConstPiece asked(question);
    const auto read = [&] {
      OneSink sink;
      const Status status = loop.BlockOn(reader.Read({&asked, 1}, sink, after(20'000'000)));
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_TRUE(sink.end.ok()) << sink.end.ToString();
      EXPECT_TRUE(sink.body == memory);
    };
    // The first may be asked before the other side has said what it has.
    while (fetched.value() == 0 && reader.fabric_status().ok()) read();
    by_device = reader.fabric_status();
    holder.Deregister(memory);
    const std::uint64_t before = fetched.value();
    read();
    EXPECT_EQ(fetched.value(), before) << "what is not registered comes over the stream";
    reader.Close();
  }
  far->Close();
  (void)loop.BlockOn(std::move(serving));
  return by_device;
}

TEST_F(LibfabricTest, ARailsBodiesComeOverTheDeviceAndOverTheStreamWhereItFails) {
  Status status(Code::kTooLate);
  while (status.code() == Code::kTooLate && !HasFailure()) {
    auto holder = Open(), asker = Open();
    ASSERT_TRUE(holder && asker);
    status = ReadOverDeviceAndStream(*loop_, *holder, *asker);
  }
  EXPECT_TRUE(status.ok()) << status.ToString();
}

// The holder is another process, whose memory a file shares with it: as an arena's does.
TEST_F(LibfabricTest, AnotherProcessServesItsSharedMemory) {
  std::array<int, 2> says{}, ends{};
  ASSERT_EQ(::pipe(says.data()), 0);
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto give_up = [] { ::_exit(1); };
    ::close(ends[1]);
    SystemClock clock;
    auto loop = std::move(*io::MakeLoop(clock));
    const int file = ::memfd_create("arena", MFD_CLOEXEC);
    if (::ftruncate(file, kMiB) != 0) give_up();
    void* const mapped = ::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) give_up();
    const std::span<std::byte> memory(static_cast<std::byte*>(mapped), kMiB);
    FillRandom(11, memory);
    auto fabric = Libfabric::Open(*loop, Options());
    if (!fabric || !(*fabric)->Register(memory).ok()) give_up();
    const auto name = (*fabric)->name();
    const std::uint64_t bytes = name.size();
    const FabricPlace place = *(*fabric)->PlaceOf(memory);
    if (::write(says[1], &bytes, 8) != 8 || ::write(says[1], name.data(), bytes) < 0 ||
        ::write(says[1], &place, sizeof(place)) < 0)
      give_up();
    auto end = loop->Watch(ends[0], io::WatchMode::kLevel, [&](std::uint32_t) { ::_exit(0); });
    if (!end) give_up();
    loop->Run();
  }
  ::close(ends[0]);
  ::close(says[1]);
  std::uint64_t bytes = 0;
  ASSERT_EQ(::read(says[0], &bytes, 8), 8);
  std::vector<std::byte> name(bytes);
  FabricPlace place;
  ASSERT_EQ(::read(says[0], name.data(), bytes), static_cast<ssize_t>(bytes));
  ASSERT_EQ(::read(says[0], &place, sizeof(place)), static_cast<ssize_t>(sizeof(place)));
  auto asker = Open();
  ASSERT_TRUE(asker);
  auto reader = asker->ReaderOf(name);
  ASSERT_TRUE(reader.has_value()) << reader.error().ToString();
  const std::vector<std::byte> expected = Filled(kMiB, 11);
  for (std::size_t at = 0; at < kMiB; at += FabricReader::kReadBytes) {
    std::vector<std::byte> out;
    const Status status =
        loop_->BlockOn(Read(**reader, {place.address + at, place.key}, FabricReader::kReadBytes, &out));
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(std::ranges::equal(out, std::span(expected).subspan(at, FabricReader::kReadBytes)));
  }
  ::close(ends[1]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  ::close(says[0]);
}

TEST_F(LibfabricTest, HandlersOfSignalsStayAsTheyWere) {
  constexpr std::array kSignals = {SIGINT, SIGTERM, SIGBUS, SIGSEGV, SIGILL, SIGABRT};
  const auto now = [&] {
    std::array<void (*)(int), kSignals.size()> handlers{};
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction action{};
      EXPECT_EQ(::sigaction(kSignals[i], nullptr, &action), 0);
      handlers[i] = action.sa_handler;
    }
    return handlers;
  };
  const auto before = now();
  EXPECT_TRUE(Open() != nullptr);
  EXPECT_EQ(now(), before);
}

TEST_F(LibfabricTest, AProviderThatIsNotHereIsNamed) {
  auto fabric = Libfabric::Open(*loop_, {.provider = "no such provider"});
  ASSERT_FALSE(fabric.has_value());
  EXPECT_EQ(fabric.error().code(), Code::kMiss);
  EXPECT_NE(fabric.error().ToString().find("no such provider"), std::string::npos);
}

}  // namespace
}  // namespace cistern::net
