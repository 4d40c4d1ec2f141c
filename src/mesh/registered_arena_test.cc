// SPDX-License-Identifier: Apache-2.0
#include "mesh/registered_arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

namespace cistern::mesh {
namespace {

// Says what was asked of it, and what was registered meanwhile.
class WatchedBacking final : public memory::ArenaBacking {
 public:
  explicit WatchedBacking(const net::Libfabric& fabric) : fabric_(fabric) {}
  Status Reserve(std::uint32_t) override { return full ? Status(Code::kBusy, "no memory") : Status(); }
  void Release(const memory::HeaderRange&) override { registered_at_release = fabric_.registered_bytes(); }

  bool full = false;
  std::uint64_t registered_at_release = 0;

 private:
  const net::Libfabric& fabric_;
};

class RegisteredArenaTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSpan = arena::kHeaderSpanBytes;
  static constexpr std::uint32_t kHeaders = 6;

  RegisteredArenaTest() {
    void* const memory = ::mmap(nullptr, geometry_.file_bytes(), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    arena_ = arena::ArenaSpace(static_cast<std::byte*>(memory), geometry_);
    auto fabric = net::Libfabric::Open(*loop_, {.provider = "tcp;ofi_rxm", .address = "127.0.0.1"});
    EXPECT_TRUE(fabric.has_value()) << fabric.error().ToString();
    fabric_ = std::move(*fabric);
  }
  ~RegisteredArenaTest() override {
    fabric_.reset();
    (void)::munmap(arena_.header(), geometry_.file_bytes());
  }
  bool Readable(std::uint32_t header) {
    const std::byte* const slot = arena_.slot(geometry_.place(header * kSpan));
    return fabric_->PlaceOf({slot, kSpan}).has_value();
  }

  std::string said_;
  std::unique_ptr<Logger> log_ =
      Logger::ToSink(LogLevel::kInfo, [this](LogLevel, std::string_view line) { said_ += line; });
  const arena::Geometry geometry_{4096, kHeaders};
  arena::ArenaSpace arena_{nullptr, geometry_};
  SystemClock clock_;
  std::unique_ptr<io::Loop> loop_ = std::move(*io::MakeLoop(clock_));
  std::unique_ptr<net::Libfabric> fabric_;
};

TEST_F(RegisteredArenaTest, WhatHasMemoryIsReadByOthersAndNothingElse) {
  WatchedBacking backing(*fabric_);
  RegisteredArena arena({backing, arena_, *fabric_, *log_}, 4);
  arena.AwaitStart();
  EXPECT_EQ(fabric_->registered_bytes(), 4 * kSpan);
  EXPECT_TRUE(Readable(0) && Readable(3));
  EXPECT_FALSE(Readable(4));
  log_.reset();
  EXPECT_EQ(said_, "");
}

TEST_F(RegisteredArenaTest, AResizedArenaIsRegisteredAsFarAsItReaches) {
  WatchedBacking backing(*fabric_);
  RegisteredArena arena({backing, arena_, *fabric_, *log_}, 4);
  arena.AwaitStart();
  arena.Release({2, 2});
  EXPECT_EQ(backing.registered_at_release, 2 * kSpan) << "the device lets go before the host gets it";
  EXPECT_TRUE(Readable(1));
  EXPECT_FALSE(Readable(2));
  EXPECT_TRUE(arena.Reserve(2).ok());
  EXPECT_TRUE(Readable(2));
  EXPECT_FALSE(Readable(3));
  arena.Release({2, 4});
  arena.Release({2, 4});  // as the resizer does again and again
  EXPECT_EQ(fabric_->registered_bytes(), 2 * kSpan);
  backing.full = true;
  EXPECT_FALSE(arena.Reserve(2).ok());
  EXPECT_FALSE(Readable(2)) << "what has no memory is not registered";
}

// Memory that was to shrink is to grow again before the host has got any of it.
TEST_F(RegisteredArenaTest, AHeaderThatNeverWasGivenBackIsRegisteredOnce) {
  WatchedBacking backing(*fabric_);
  RegisteredArena arena({backing, arena_, *fabric_, *log_}, 4);
  arena.AwaitStart();
  ASSERT_TRUE(arena.Reserve(4).ok());
  for (std::uint32_t header = 2; header <= 4; ++header) EXPECT_TRUE(arena.Reserve(header).ok());
  EXPECT_EQ(fabric_->registered_bytes(), 5 * kSpan);
  arena.Release({2, 4});
  EXPECT_EQ(fabric_->registered_bytes(), 2 * kSpan);
}

TEST_F(RegisteredArenaTest, WhatIsGivenBackAtTheStartIsNotRegisteredAfterwards) {
  WatchedBacking backing(*fabric_);
  RegisteredArena arena({backing, arena_, *fabric_, *log_}, kHeaders);
  arena.Release({0, kHeaders});
  arena.AwaitStart();
  EXPECT_EQ(fabric_->registered_bytes(), 0u);
}

}  // namespace
}  // namespace cistern::mesh
