// SPDX-License-Identifier: Apache-2.0
#include "record/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "record/verified_copy.h"

namespace cistern::record {
namespace {

// A whole record in memory: parts copied and summed as a writer does, sealed, checked as a reader does.
class Record {
 public:
  Record(std::vector<std::uint32_t> part_bytes, const CopyKernels& kernels) {
    std::mt19937_64 random(part_bytes.size());
    for (const std::uint32_t bytes : part_bytes) {
      std::vector<std::byte> part(bytes);
      for (auto& byte : part) byte = static_cast<std::byte>(random());
      std::vector<std::uint32_t> crcs(SegmentsOfPart(bytes));
      body.resize(body.size() + bytes);
      for (std::size_t i = 0; i < crcs.size(); ++i) {
        const auto piece = std::span(part).subspan(i * kSegmentBytes);
        crcs[i] = kernels.crc(piece.data(), std::min<std::size_t>(piece.size(), kSegmentBytes), 0);
      }
      std::copy(part.begin(), part.end(), body.end() - bytes);
      segment_crcs.insert(segment_crcs.end(), crcs.begin(), crcs.end());
    }
    Seal sealed;
    sealed.key = BlockKey::FromHex(std::string(32, 'a')).value();
    sealed.part_bytes = part_bytes;
    sealed.segment_crcs = segment_crcs;
    trailer.resize(TrailerBytes(static_cast<std::uint32_t>(segment_crcs.size()),
                                static_cast<std::uint32_t>(part_bytes.size())));
    EncodeTrailer(sealed, Stamp(), trailer);
    seal = CheckSeal(trailer).value();
  }

  std::vector<std::byte> body;
  std::vector<std::uint32_t> segment_crcs;
  std::vector<std::byte> trailer;
  SealView seal;
};

// Real memory through some kernels.
struct KernelMemory {
  const CopyKernels& kernels;

  std::uint32_t Checksum(const std::byte* from, std::size_t bytes, std::uint32_t crc) const {
    return kernels.crc(from, bytes, crc);
  }
  std::uint32_t CopyOut(std::byte* to, const std::byte* from, std::size_t bytes, std::uint32_t crc,
                        std::size_t behind) const {
    return kernels.copy_stream(to, from, bytes, crc, behind);
  }
};

bool BodySound(const CopyKernels& kernels, const Record& record) {
  return SegmentsSound(record.seal, Segments(record.seal), [&](std::uint64_t offset, std::uint64_t bytes) {
    return kernels.crc(record.body.data() + offset, bytes, 0);
  });
}

// Destinations that cut `out` in up to `cuts` places.
std::vector<std::span<std::byte>> CutUp(std::span<std::byte> out, int cuts, std::mt19937_64& random) {
  std::vector<std::span<std::byte>> pieces;
  for (; cuts > 0; --cuts) {
    const std::size_t n = random() % (out.size() + 1);
    pieces.push_back(out.first(n));
    out = out.subspan(n);
  }
  pieces.push_back(out);
  return pieces;
}

class Ranges : public testing::TestWithParam<const CopyKernels*> {};

TEST_P(Ranges, DeliverWhatThePartHolds) {
  std::mt19937_64 random(1);
  for (const auto& parts : {std::vector<std::uint32_t>{300'000}, {100, 65536, 200'001, 131072}}) {
    const Record record(parts, *GetParam());
    EXPECT_TRUE(BodySound(*GetParam(), record));
    for (int i = 0; i < 200; ++i) {
      PartRange range;
      range.part = static_cast<std::uint32_t>(random() % parts.size());
      range.offset = random() % (parts[range.part] + 1);
      range.bytes = random() % (parts[range.part] - range.offset + 1);
      if (i % 4 == 0) range.offset -= range.offset % kSegmentBytes;  // whole segments and ends on borders
      std::vector<std::byte> out(range.bytes);
      const auto pieces = CutUp(out, i % 5, random);
      const KernelMemory memory{*GetParam()};
      ASSERT_TRUE(CopySegments(memory, record.body.data(), record.seal, range, pieces));
      const std::byte* want = record.body.data() + record.seal.part(range.part).offset + range.offset;
      ASSERT_TRUE(std::equal(out.begin(), out.end(), want))
          << "part " << range.part << " at " << range.offset;
    }
  }
}

// Promise 1: a flipped bit anywhere in a touched segment refuses the read, even outside the asked bytes; one
// in another segment does not.
TEST_P(Ranges, RefuseADamagedSegmentAndOnlyThat) {
  std::mt19937_64 random(2);
  const std::vector<std::uint32_t> parts = {70'000, 200'001};
  Record record(parts, *GetParam());
  for (int i = 0; i < 200; ++i) {
    PartRange range;
    range.part = static_cast<std::uint32_t>(random() % 2);
    range.offset = random() % parts[range.part];
    range.bytes = 1 + random() % (parts[range.part] - range.offset);
    const std::size_t hurt = random() % record.body.size();
    const std::uint32_t hurt_part = hurt < parts[0] ? 0 : 1;
    const std::uint64_t in_part = hurt - (hurt_part == 0 ? 0 : parts[0]);
    const bool touched = hurt_part == range.part && in_part / kSegmentBytes >= range.offset / kSegmentBytes &&
                         in_part / kSegmentBytes <= (range.offset + range.bytes - 1) / kSegmentBytes;
    record.body[hurt] ^= std::byte{1} << i % 8;
    std::vector<std::byte> out(range.bytes);
    const KernelMemory memory{*GetParam()};
    EXPECT_EQ(CopySegments(memory, record.body.data(), record.seal, range, CutUp(out, 1, random)), !touched);
    EXPECT_FALSE(BodySound(*GetParam(), record));
    record.body[hurt] ^= std::byte{1} << i % 8;
  }
}

INSTANTIATE_TEST_SUITE_P(Segments, Ranges, testing::ValuesIn(AllKernels().begin(), AllKernels().end()),
                         [](const auto& kernels) { return std::string(kernels.param->name); });

TEST(Segments, AreWalkedInTheirOrderFromAnyToAny) {
  const std::vector<std::uint32_t> parts = {65536, 70'000, 1, 200'001};
  const Record record(parts, ChosenKernels());
  std::vector<Segment> all;
  std::uint64_t at = 0;
  for (std::uint32_t part = 0; part < parts.size(); ++part) {
    for (std::uint64_t left = parts[part]; left > 0; left -= all.back().bytes, at += all.back().bytes) {
      const auto number = static_cast<std::uint32_t>(all.size());
      all.push_back({number, part, at, std::min<std::uint64_t>(left, kSegmentBytes)});
    }
  }
  ASSERT_EQ(all.size(), record.seal.segment_count());
  for (std::uint32_t first = 0; first <= all.size(); ++first) {
    for (std::uint32_t count = 0; count <= all.size() - first; ++count) {
      std::uint32_t next = first;
      for (const Segment& segment : Segments(record.seal, SegmentSpan{first, count})) {
        EXPECT_EQ(segment, all[next++]);
      }
      EXPECT_EQ(next, first + count);
    }
  }
  EXPECT_TRUE(CrcsMatch(record.seal, 2, std::span(record.segment_crcs).subspan(2)));
  EXPECT_FALSE(CrcsMatch(record.seal, 1, std::span(record.segment_crcs).subspan(2)));
}

TEST(Segments, AreCountedOverThePartsAndOnlyWhereTouched) {
  const Record record({70'000, 200'001}, ChosenKernels());
  auto of = [&](std::uint32_t part, std::uint64_t offset, std::uint64_t bytes) {
    const SegmentSpan span = Segments(record.seal, PartRange{part, offset, bytes}).span();
    return std::pair(span.first, span.count);
  };
  EXPECT_EQ(of(0, 0, 70'000), std::pair(0u, 2u));
  EXPECT_EQ(of(0, 0, 65536), std::pair(0u, 1u));
  EXPECT_EQ(of(0, 65536, 1), std::pair(1u, 1u));
  EXPECT_EQ(of(1, 0, 1), std::pair(2u, 1u));
  EXPECT_EQ(of(1, 65535, 2), std::pair(2u, 2u));
  EXPECT_EQ(of(1, 200'001, 0).second, 0u);
  EXPECT_TRUE(InPart(record.seal, {1, 200'000, 1}));
  EXPECT_FALSE(InPart(record.seal, {1, 200'000, 2}));
  EXPECT_FALSE(InPart(record.seal, {2, 0, 0}));
  EXPECT_FALSE(InPart(record.seal, {0, ~0ull, 2}));
}

}  // namespace
}  // namespace cistern::record
