// SPDX-License-Identifier: Apache-2.0
// Promise 1 for what is checked while it comes: each segment is summed once all of it is there, in any order
// of pieces, and a body counts as sound only if every segment is its seal's.
#include "residency/arrival_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "base/random_bytes.h"
#include "record/verified_copy.h"

namespace cistern::residency {
namespace {

constexpr std::uint64_t kSegment = record::kSegmentBytes;

// Moves at once, on the core.
class InlineMovers final : public memory::Movers {
 public:
  explicit InlineMovers(Executor& executor) : executor_(executor) {}
  void Submit(memory::MoverJob& job) override {
    ++jobs;
    job.Move(words_);
    executor_.Post(job);
  }
  int jobs = 0;

 private:
  arena::RealWords words_;
  Executor& executor_;
};

// A body of some parts and its seal. The body comes later: until then other bytes lie there.
struct Body {
  explicit Body(std::vector<std::uint32_t> parts_in) : parts(std::move(parts_in)) {
    for (const std::uint32_t part : parts) size += part;
    bytes.resize(size);
    FillRandom(1, bytes);
    std::uint64_t at = 0;
    for (const std::uint32_t part : parts) {
      for (std::uint64_t in = 0; in < part; in += kSegment)
        crcs.push_back(record::Crc32c(bytes.data() + at + in, std::min<std::uint64_t>(part - in, kSegment)));
      at += part;
    }
    record::Seal seal;
    seal.key.length = 32;
    seal.key.bytes[0] = 1;
    seal.part_bytes = parts;
    seal.segment_crcs = crcs;
    trailer.resize(4096);
    record::EncodeTrailer(seal, record::Stamp(), trailer);
    at_place.resize(size + 4096);
    check.emplace(executor, movers, at_place.data(), parts);
  }
  void Come(std::uint64_t offset, std::uint64_t count) {
    std::memcpy(at_place.data() + offset, bytes.data() + offset, count);
    check->Arrived(std::span(at_place).subspan(offset, count));
  }
  bool Finish() {
    std::memcpy(at_place.data(), bytes.data(), size);
    Task<void> task = check->Finish(true);
    while (!task.done()) executor.RunReady(100);
    return check->Sound(*record::CheckSeal(trailer));
  }

  SystemClock clock;
  Executor executor{clock};
  InlineMovers movers{executor};
  std::vector<std::uint32_t> parts, crcs;
  std::uint64_t size = 0;
  std::vector<std::byte> bytes, trailer, at_place;
  std::optional<ArrivalCheck> check;
};

TEST(ArrivalCheck, SumsWhatIsThereBeforeTheRestComes) {
  Body body({8 * kSegment + 100});
  body.Come(4 * kSegment, 2 * kSegment);
  EXPECT_EQ(body.movers.jobs, 1);
  body.Come(0, 4 * kSegment);
  EXPECT_EQ(body.movers.jobs, 2);
  EXPECT_TRUE(body.Finish());
  EXPECT_EQ(body.movers.jobs, 3) << "the rest, at the end";
}

TEST(ArrivalCheck, IsSoundInAnyOrderOfPiecesAcrossParts) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    Body body({100, static_cast<std::uint32_t>(1 + random.Below(5 * kSegment)), kSegment, 3 * kSegment - 1});
    for (int i = 0; i < 8; ++i) {
      const std::uint64_t offset = random.Below(body.size);
      body.Come(offset, random.Between(1, body.size - offset));
    }
    EXPECT_TRUE(body.Finish()) << seed;
  }
}

TEST(ArrivalCheck, R1ABitThatIsWrongAnywhereIsNotSound) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    Body body({2 * kSegment + 7, kSegment});
    body.bytes[random.Below(body.size)] ^= std::byte{4};
    body.Come(0, random.Between(1, body.size));
    EXPECT_FALSE(body.Finish()) << seed;
  }
}

TEST(ArrivalCheck, ASealOfOtherPartsIsNotSound) {
  Body body({2 * kSegment});
  Body other({kSegment, kSegment});
  body.trailer = other.trailer;
  EXPECT_FALSE(body.Finish());
}

// A read that failed: what was taken is waited for, the rest is left.
TEST(ArrivalCheck, OfAReadThatFailedEndsWithoutTheRest) {
  Body body({8 * kSegment});
  body.Come(0, 2 * kSegment);
  Task<void> task = body.check->Finish(false);
  while (!task.done()) body.executor.RunReady(100);
  EXPECT_EQ(body.movers.jobs, 1);
}

}  // namespace
}  // namespace cistern::residency
