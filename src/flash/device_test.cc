// SPDX-License-Identifier: Apache-2.0
// A large read is told of as it comes, ends as one transfer, and fails as one.
#include "flash/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/random_bytes.h"
#include "flash/buffer.h"
#include "flash/options.h"
#include "io/simulated_loop.h"

namespace cistern::flash {
namespace {

constexpr std::uint64_t kFileBytes = 4u << 20;

// What lies later on the device comes later: 1 ms for each MiB.
class DeviceTest : public testing::Test {
 protected:
  DeviceTest() : loop_(std::move(*io::SimulatedLoop::Make(clock_, disk_, 1))) {
    disk_.set_time([](const io::IoRequest& request, const std::string&, Instant now) {
      return now.PlusUs(static_cast<std::int64_t>((request.offset + request.size) >> 10));
    });
    device_.emplace(*loop_, "/device",
                    Device::Limits{.read_depth = 64, .write_depth = 8, .hang_us = 10'000'000}, [] {});
    io::File file = std::move(*loop_->Open("/device", io::OpenMode::kCreate));
    EXPECT_TRUE(loop_->Preallocate(file, kFileBytes).ok());
    written_.resize(kFileBytes);
    FillRandom(1, written_);
    EXPECT_TRUE(loop_->BlockOn(file.WriteAll(written_, 0)).ok());
    device_->Begin(std::move(file));
  }
  ~DeviceTest() override { device_->CloseFile(); }

  Status Read(std::span<std::byte> into, std::uint64_t offset) {
    const Device::Arrived arrived = [&](std::span<const std::byte> bytes) {
      const auto at = static_cast<std::uint64_t>(bytes.data() - into.data());
      EXPECT_TRUE(std::ranges::equal(bytes, std::span(written_).subspan(offset + at, bytes.size())));
      told_us_.push_back(clock_.Now().UsSince(began_));
    };
    began_ = clock_.Now();
    return loop_->BlockOn(device_->Read(into, offset, arrived));
  }

  SimulatedClock clock_;
  io::SimulatedDisk disk_{1};
  std::unique_ptr<io::SimulatedLoop> loop_;
  std::optional<Device> device_;
  BufferPool pool_;
  std::vector<std::byte> written_;
  Instant began_;
  std::vector<std::int64_t> told_us_;
};

TEST_F(DeviceTest, ALargeReadIsToldOfAsItComesAndIsOneTransfer) {
  const Buffer buffer = pool_.Take(kFileBytes);
  const auto into = buffer.bytes().first((2u << 20) + 4096);
  ASSERT_TRUE(Read(into, 0).ok());
  EXPECT_EQ(clock_.Now().UsSince(began_), 2052);
  EXPECT_EQ(told_us_, (std::vector<std::int64_t>{512, 1024, 1536}));
  EXPECT_TRUE(std::ranges::equal(into, std::span(written_).first(into.size())));
  EXPECT_EQ(device_->counts().reads, 1u);
  EXPECT_EQ(device_->counts().read_bytes, into.size());
}

TEST_F(DeviceTest, ReadDuringWhichTheProcessStoodTeachesNothingOfTheDevice) {
  const Buffer buffer = pool_.Take(kFileBytes);
  const auto into = buffer.bytes().first(64u << 10);
  const auto read = [&](std::int64_t stands_us, std::int64_t ticks_us) {
    Task<Status> task = device_->Read(into, 0);
    for (std::int64_t us = 0; us < stands_us; us += ticks_us) {
      clock_.AdvanceUs(ticks_us);
      device_->Tick(clock_.Now());
    }
    EXPECT_TRUE(loop_->BlockOn(std::move(task)).ok());
    device_->Tick(clock_.Now());
  };
  for (int i = 0; i < 50; ++i) read(0, 1);
  const double before_us = device_->EstimateUs(1u << 20);
  for (int i = 0; i < 16; ++i) read(900'000, 900'000);
  EXPECT_EQ(device_->EstimateUs(1u << 20), before_us);
  // A device that is as slow, beside a process that runs.
  for (int i = 0; i < 16; ++i) read(900'000, 50'000);
  EXPECT_GT(device_->EstimateUs(1u << 20), 100'000);
}

TEST_F(DeviceTest, ASmallReadIsOneOperation) {
  const Buffer buffer = pool_.Take(kFileBytes);
  ASSERT_TRUE(Read(buffer.bytes().first(2 * kReadPieceBytes - 4096), 0).ok());
  EXPECT_TRUE(told_us_.empty());
}

// As the journal's, which is on the same loop.
TEST_F(DeviceTest, P5WhatADeviceHasAtATimeLeavesOperationsToOthers) {
  const FlashOptions depths;
  io::LoopOptions options;
  options.max_io = MaxDeviceIo(depths) + 1;
  std::unique_ptr<io::SimulatedLoop> loop = std::move(*io::SimulatedLoop::Make(clock_, disk_, 2, options));
  Device device(*loop, "/device", Device::Limits{depths.read_depth, depths.write_depth, depths.hang_us},
                [] {});
  device.Begin(std::move(*loop->Open("/device", io::OpenMode::kReadWrite)));
  const Buffer large = pool_.Take(kFileBytes), small = pool_.Take(4096);
  std::vector<Task<Status>> tasks;
  const Device::Arrived arrived = [](std::span<const std::byte>) {};
  for (int i = 0; i < 4; ++i) tasks.push_back(device.Read(large.bytes().first(3u << 20), 0, arrived));
  for (int i = 0; i < 200; ++i) tasks.push_back(device.Read(small.bytes(), 0));
  for (int i = 0; i < 40; ++i) tasks.push_back(device.Write(std::span<const std::byte>(small.bytes()), 0));
  for (int i = 0; i < 8; ++i) tasks.push_back(device.Sync());
  io::File other = std::move(*loop->Open("/journal", io::OpenMode::kCreate));
  for (bool over = false; !over;) {
    const Status written = loop->BlockOn(other.WriteAll(small.bytes(), 0));
    ASSERT_TRUE(written.ok()) << written.ToString();
    over = std::ranges::all_of(tasks, [](const Task<Status>& task) { return task.done(); });
  }
  loop->BlockOn(device.Close());
  EXPECT_EQ(device.counts().errors, 0u);
  device.CloseFile();
}

TEST_F(DeviceTest, AReadOfWhichAPieceFailsIsOneErrorAfterAllOfIt) {
  disk_.set_faults([](const io::IoRequest& request, const std::string&) {
    return request.offset == 0 ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  const Buffer buffer = pool_.Take(kFileBytes);
  EXPECT_EQ(Read(buffer.bytes().first(2u << 20), 0).code(), Code::kIoError);
  EXPECT_EQ(clock_.Now().UsSince(began_), 2048) << "the memory is the device's until then (R6)";
  EXPECT_EQ(told_us_.size(), 2u);
  EXPECT_EQ(device_->counts().errors, 1u);
}

}  // namespace
}  // namespace cistern::flash
