// SPDX-License-Identifier: Apache-2.0
// Promise 3, worth_us: on devices that are slow, fast, change their speed or have reads wait for writes by
// chance, half of the estimates are within a fifth of what the read takes, and refusals are right. Time is
// simulated; `known` is the error of somebody who knows the device and all that chance has decided so far.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/task_group.h"
#include "flash/buffer.h"
#include "flash/device.h"
#include "io/simulated_loop.h"
#include "io/simulated_speed.h"

namespace cistern::flash {
namespace {

constexpr std::uint64_t kFileBytes = 4u << 20;
constexpr std::uint32_t kSizes[] = {16u << 10, 64u << 10, 256u << 10, 1u << 20};
constexpr std::uint32_t kReadsAPhase = 96;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Reads that would not have been begun, by an estimate that has to be an eighth beyond as policy::Refused.
struct Refusals {
  std::uint64_t refused = 0, rightly = 0;
  void Refuse(double said, double worth, double took) {
    if (said - said / 8 <= worth) return;
    ++refused;
    rightly += took > worth;
  }
  double Right() const { return static_cast<double>(rightly) / static_cast<double>(refused); }
};

// Readers and writers on a device, in phases of constant load.
class Load {
 public:
  Load(std::uint64_t seed, const io::SpeedProfile& profile)
      : speed_(seed, profile),
        random_(seed + 1),
        disk_(seed),
        loop_(*io::SimulatedLoop::Make(clock_, disk_, seed)),
        device_(*loop_, "/device", {.read_depth = 64, .write_depth = 4, .hang_us = 1'000'000'000}, [] {}) {
    disk_.set_time([this](const io::IoRequest& request, const std::string&, Instant now) {
      return speed_.Ends(request, now);
    });
    io::File file = std::move(*loop_->Open("/device", io::OpenMode::kCreate));
    EXPECT_TRUE(loop_->Preallocate(file, kFileBytes).ok());
    device_.Begin(std::move(file));
  }
  ~Load() { device_.CloseFile(); }

  Executor& executor() const { return loop_->executor(); }

  void Phase(std::uint32_t readers, std::uint32_t writers) {
    reading_ = readers;
    left_ = kReadsAPhase;
    TaskGroup group(loop_->executor());
    for (std::uint32_t i = 0; i < readers; ++i) group.Spawn(Read());
    for (std::uint32_t i = 0; i < writers; ++i) group.Spawn(Write());
    loop_->BlockOn(group.Close());
  }
  // The same load over and over, as one that changes has it.
  void Phases(int count) {
    constexpr std::pair<std::uint32_t, std::uint32_t> kLoads[] = {{1, 0}, {4, 0}, {16, 1}, {1, 1},
                                                                  {8, 0}, {2, 2}, {16, 0}};
    for (int i = 0; i < count; ++i, ++phase_) {
      const auto& [readers, writers] = kLoads[phase_ % std::size(kLoads)];
      Phase(readers, writers);
    }
  }
  void Forget() {
    errors_.clear();
    known_.clear();
    said_ = knew_ = {};
  }
  io::SimulatedSpeed& speed() { return speed_; }
  const std::vector<double>& errors() const { return errors_; }

  // Half of the estimates are within a fifth, and refusals are nearly as right as those of one who knows.
  void Expect() const {
    const double error = Median(errors_), known = Median(known_);
    const auto percent = [](double part) { return static_cast<int>(std::lround(1000 * part)); };
    testing::Test::RecordProperty("error_per_mille", percent(error));
    testing::Test::RecordProperty("known_error_per_mille", percent(known));
    testing::Test::RecordProperty("refusals_right_per_mille", percent(said_.Right()));
    testing::Test::RecordProperty("known_refusals_right_per_mille", percent(knew_.Right()));
    std::printf(
        "%zu reads: median error %.1f %% (known %.1f %%), refusals right %.1f %% of %llu (known %.1f %%)\n",
        errors_.size(), 100 * error, 100 * known, 100 * said_.Right(),
        static_cast<unsigned long long>(said_.refused), 100 * knew_.Right());
    EXPECT_LE(error, 0.2);
    EXPECT_GT(said_.refused, 100u);
    EXPECT_GE(said_.Right(), knew_.Right() - 0.08);
  }

 private:
  Task<void> Read() {
    Buffer buffer = pool_.Take(kSizes[3]);
    while (left_ > 0) {
      --left_;
      const std::uint32_t bytes = kSizes[random_.Below(std::size(kSizes))];
      const std::uint64_t offset = random_.Below(kFileBytes / kSizes[3]) * kSizes[3];
      const Instant began = loop_->clock().Now();
      const double said = device_.EstimateUs(bytes);
      const io::SimulatedSpeed::Known known = speed_.ReadNow(bytes, began);
      known_.push_back(known.error);
      EXPECT_TRUE((co_await device_.Read(buffer.bytes().first(bytes), offset)).ok());
      const double took = static_cast<double>(loop_->clock().Now().NsSince(began)) / 1e3;
      errors_.push_back(std::abs(said - took) / took);
      // A caller that would have waited so long, drawn around what it took.
      const double worth = took * std::exp2(4 * random_.Unit() - 2);
      said_.Refuse(said, worth, took);
      knew_.Refuse(known.us, worth, took);
      if (random_.Chance(0.2)) co_await SleepUntil(loop_->clock().Now().PlusUs(50));
    }
    --reading_;
  }
  Task<void> Write() {
    const Buffer buffer = pool_.Take(kSizes[1]);
    for (std::uint32_t i = 0; reading_ > 0; ++i) {
      const std::uint64_t offset = random_.Below(kFileBytes / kSizes[1]) * kSizes[1];
      EXPECT_TRUE((co_await device_.Write(buffer.bytes().first(kSizes[1]), offset)).ok());
      if (i % 16 != 15) continue;
      EXPECT_TRUE((co_await device_.Sync()).ok());
    }
  }

  SimulatedClock clock_;
  io::SimulatedSpeed speed_;
  Random random_;
  io::SimulatedDisk disk_;
  std::unique_ptr<io::SimulatedLoop> loop_;
  BufferPool pool_;
  Device device_;
  int phase_ = 0;
  std::uint32_t reading_ = 0, left_ = 0;
  std::vector<double> errors_, known_;
  Refusals said_, knew_;
};

void ExpectOn(const io::SpeedProfile& profile) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    Load load(seed, profile);
    load.Phases(21);
    load.Expect();
  }
}

TEST(FlashWorth, OfASlowDisk) { ExpectOn(io::kSlowDisk); }

TEST(FlashWorth, OfAFastDevice) { ExpectOn(io::kFastFlash); }

TEST(FlashWorth, OfADeviceWhereReadsWaitForWritesByChance) { ExpectOn(io::kFlashBehindWrites); }

// Slower by ten midway, and as fast as before again: the error of the moments after each change counts too.
TEST(FlashWorth, OfADeviceThatChangesItsSpeed) {
  for (const double times : {10.0, 0.1}) {
    Load load(4, io::kFastFlash);
    load.Phases(7);
    load.Forget();
    load.speed().set_slower(times);
    load.Phases(7);
    load.Expect();
  }
}

// The reads of an idle device after it became ten times slower: the first few cannot know it.
TEST(FlashWorth, KnowsAChangeOfSpeedAfterAFewReads) {
  Load load(5, io::kFastFlash);
  load.Phases(7);
  for (const double times : {10.0, 1.0}) {
    load.speed().set_slower(times);
    load.Forget();
    load.Phase(1, 0);
    const auto late = std::ranges::count_if(load.errors(), [](double error) { return error > 0.5; });
    std::printf("%lld of %zu estimates off by more than a half\n", static_cast<long long>(late),
                load.errors().size());
    EXPECT_LE(late, 24);
  }
}

}  // namespace
}  // namespace cistern::flash
