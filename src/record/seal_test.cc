// SPDX-License-Identifier: Apache-2.0
#include "record/seal.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "base/codec.h"
#include "base/test_hex.h"
#include "record/crc_field.h"

namespace cistern::record {
namespace {

BlockKey Key(unsigned seed, std::size_t length) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(seed + 7 * i + 1);
  return BlockKey::FromBytes(bytes).value();
}

// A sound seal with all that it borrows.
struct Made {
  std::vector<std::uint32_t> part_bytes;
  std::vector<std::uint32_t> crcs;
  Stamp stamp{3, 17, 1ull << 40, 99, 1'800'000'000, 0xfeedfacecafe, 42};
  std::vector<std::byte> trailer;
  std::uint32_t crc = 0;

  explicit Made(std::vector<std::uint32_t> parts) : part_bytes(std::move(parts)) {
    crcs.resize(SegmentCount(part_bytes));
    std::iota(crcs.begin(), crcs.end(), 0x1000u);
    Encode();
  }
  Seal seal() const { return {0xabcdef0123456789, 7, Key(1, 32), Key(2, 16), {11, 12}, part_bytes, crcs}; }
  void Encode() {
    const auto segments = static_cast<std::uint32_t>(crcs.size());
    const auto parts = static_cast<std::uint32_t>(part_bytes.size());
    trailer.assign(TrailerOffset(TrailerBytes(segments, parts), 512), std::byte{0xee});
    crc = EncodeTrailer(seal(), stamp, trailer);
  }
  std::uint64_t body() const {
    return std::accumulate(part_bytes.begin(), part_bytes.end(), std::uint64_t{0});
  }
};

std::vector<Made> Shapes() {
  std::vector<Made> shapes;
  for (std::vector<std::uint32_t> parts :
       {std::vector<std::uint32_t>{1},
        {65536},
        {65537},
        {2u << 20},
        {kMaxBodyBytes},
        {100, 65536, 200'000},
        std::vector<std::uint32_t>(8, 256 * 1024),
        std::vector<std::uint32_t>(kMaxParts, kMaxBodyBytes / kMaxParts)}) {
    shapes.emplace_back(parts);
  }
  return shapes;
}

TEST(Seal, SaysWhatWasSealed) {
  for (const Made& made : Shapes()) {
    const auto view = CheckSeal(made.trailer);
    ASSERT_TRUE(view.has_value()) << FaultText(view.error());
    const Seal seal = made.seal();
    EXPECT_EQ(view->incarnation(), seal.incarnation);
    EXPECT_EQ(view->group(), seal.group);
    EXPECT_EQ(view->key(), seal.key);
    EXPECT_EQ(view->parent(), seal.parent);
    EXPECT_TRUE(view->HasKey(seal.key));
    EXPECT_FALSE(view->HasKey(seal.parent));
    EXPECT_EQ(view->put_id(), seal.put_id);
    EXPECT_EQ(view->body_bytes(), made.body());
    EXPECT_EQ(view->crc(), made.crc);
    ASSERT_EQ(view->part_count(), made.part_bytes.size());
    ASSERT_EQ(view->segment_count(), made.crcs.size());
    std::uint64_t offset = 0;
    std::uint32_t segment = 0;
    for (std::uint32_t i = 0; i < view->part_count(); ++i) {
      const auto place = view->part(i);
      EXPECT_EQ(place.offset, offset);
      EXPECT_EQ(place.bytes, made.part_bytes[i]);
      EXPECT_EQ(place.first_segment, segment);
      offset += made.part_bytes[i];
      segment += SegmentsOfPart(made.part_bytes[i]);
    }
    for (std::uint32_t i = 0; i < view->segment_count(); ++i) ASSERT_EQ(view->segment_crc(i), made.crcs[i]);
    const auto stamp = CheckStamp(made.trailer, *view);
    ASSERT_TRUE(stamp.has_value()) << FaultText(stamp.error());
    EXPECT_EQ(*stamp, made.stamp);
  }
}

TEST(Seal, TrailerBytesStayThoseOfVersion1) {
  Made made({100, 70'000});
  made.trailer.resize(TrailerBytes(3, 2));
  EXPECT_EQ(HexOf(made.trailer),
            "4353544d4a7eb70e110000000000000000000000000100006300000000000000fecacefaedfe000003000000"
            "00d2496b2a0000000000000000000000000000004353454ca7e0bb8901000700020020108967452301efcdab"
            "d4110100000000000b000000000000000c000000000000000300000000000100020910171e252c333a41484f"
            "565d646b727980878e959ca3aab1b8bfc6cdd4db030a11181f262d343b424950575e656c0000000000000000"
            "00000000000000006400000070110100001000000110000002100000");
}

TEST(Seal, FirstBlockOfAChainHasNoParent) {
  Made made({4096});
  Seal seal = made.seal();
  seal.parent = BlockKey();
  EncodeTrailer(seal, made.stamp, made.trailer);
  EXPECT_TRUE(CheckSeal(made.trailer).value().parent().none());
}

// Promise 1, "a hit is bit-exact or it is a miss": no bit of seal or stamp may change unseen.
TEST(Seal, FindsEveryFlippedBit) {
  Made made({100, 65536, 200'000});
  const std::size_t bits = 8 * TrailerBytes(static_cast<std::uint32_t>(made.crcs.size()), 3);
  for (std::size_t bit = 0; bit < bits; ++bit) {
    made.trailer[bit / 8] ^= std::byte{1} << bit % 8;
    const auto view = CheckSeal(made.trailer);
    const bool sound = view.has_value() && CheckStamp(made.trailer, *view).has_value();
    ASSERT_FALSE(sound) << "bit " << bit;
    made.trailer[bit / 8] ^= std::byte{1} << bit % 8;
  }
  EXPECT_TRUE(CheckSeal(made.trailer).has_value());
}

TEST(Seal, NoTruncatedTrailerIsSound) {
  for (const Made& made : Shapes()) {
    const auto segments = static_cast<std::uint32_t>(made.crcs.size());
    const auto parts = static_cast<std::uint32_t>(made.part_bytes.size());
    const std::size_t whole = TrailerBytes(segments, parts);
    EXPECT_TRUE(CheckSeal(std::span(made.trailer).first(whole)).has_value());
    for (std::size_t n = 0; n < whole; n += n < 300 ? 1 : 997) {
      ASSERT_EQ(CheckSeal(std::span(made.trailer).first(n)).error(), RecordFault::kShort) << n;
    }
  }
}

// A stamp is bound to its seal (rule R11): one block's place cannot vouch for another block.
TEST(Stamp, OfAnotherSealIsRefused) {
  Made one({65536}), other({65536});
  other.crcs[0] ^= 1;
  other.Encode();
  std::copy_n(other.trailer.begin(), kStampBytes, one.trailer.begin());
  const auto view = CheckSeal(one.trailer);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(CheckStamp(one.trailer, *view).error(), RecordFault::kCrc);
}

TEST(Stamp, IsRewrittenWithoutTouchingTheSeal) {
  Made made({2u << 20});
  const std::vector<std::byte> before = made.trailer;
  const Stamp moved{4, 18, 5, made.stamp.born, 0, 0};
  EncodeStamp(moved, made.crc, std::span(made.trailer).first<kStampBytes>());
  EXPECT_TRUE(std::equal(before.begin() + kStampBytes, before.end(), made.trailer.begin() + kStampBytes));
  EXPECT_EQ(CheckStamp(made.trailer, CheckSeal(made.trailer).value()).value(), moved);
}

TEST(Stamp, ExpiresAtItsSecond) {
  EXPECT_FALSE(Expired({.expiry = 0}, ~0ull));
  EXPECT_FALSE(Expired({.expiry = 100}, 99));
  EXPECT_TRUE(Expired({.expiry = 100}, 100));
}

TEST(Seal, ErrorsNameTheThingItsValueAndItsLimit) {
  Made made({65536, 1});
  auto error = [&](auto change) {
    Seal seal = made.seal();
    change(seal);
    return CheckShape(seal).ToString();
  };
  const std::vector<std::uint32_t> none, empty = {65536, 0}, large = {kMaxBodyBytes, 1};
  EXPECT_EQ(error([](Seal&) {}), "ok");
  EXPECT_EQ(error([&](Seal& s) { s.part_bytes = none; }),
            "invalid: block: has 0 parts and a block has 1 to 256");
  EXPECT_EQ(error([&](Seal& s) { s.part_bytes = empty; }), "invalid: part 1: is empty");
  EXPECT_EQ(error([&](Seal& s) { s.part_bytes = large; }),
            "invalid: block: has 67108865 bytes and the limit is 67108864");
  EXPECT_EQ(error([&](Seal& s) { s.segment_crcs = s.segment_crcs.first(1); }),
            "invalid: block: has 2 segments and 1 checksums");
  EXPECT_EQ(error([](Seal& s) { s.key = BlockKey(); }), "invalid: key: has 0 bytes and a key has 1 to 32");
  EXPECT_EQ(error([](Seal& s) { s.parent.length = 33; }),
            "invalid: parent key: has 33 bytes and a key has 1 to 32");
  EXPECT_EQ(error([](Seal& s) { s.key.length = 16; }), "invalid: key: has bytes behind its end");
}

TEST(Record, TakesTheBytesThatTheDesignCounts) {
  EXPECT_EQ(RecordBytes(64 << 10, 4096), (64u << 10) + 4096);
  EXPECT_EQ(RecordBytes(64 << 10, 512), (64u << 10) + 512);
  EXPECT_EQ(RecordBytes(2 << 20, 4096), (2u << 20) + 4096);
  EXPECT_EQ(RecordBytes(1, 4096), 8192u);
  EXPECT_EQ(RecordBytes(60 << 20, 4096), (60u << 20) + 4096);
  EXPECT_EQ(RecordBytes(64 << 20, 4096), (64u << 20) + 8192);
  EXPECT_EQ(RecordBytes(300'000, SegmentsOfPart(100'000) + SegmentsOfPart(200'000), 2, 512),
            TrailerOffset(300'000, 512) + 512);
  for (const Made& made : Shapes()) {
    const auto parts = static_cast<std::uint32_t>(made.part_bytes.size());
    const std::uint32_t bytes = TrailerBytes(static_cast<std::uint32_t>(made.crcs.size()), parts);
    EXPECT_LE(bytes, kMaxTrailerBytes);
    EXPECT_LE(bytes, TrailerBoundBytes(made.body(), parts));
  }
}

// Offsets are those of docs/formats/record.md. Whoever reads on counts parts and segments as they are said.
TEST(Seal, LengthsThatNoSealHasAreRefusedThoughTheCrcHolds) {
  const Made made({100, 65'536, 200'000});
  const auto fault = [&](auto change) {
    std::vector<std::byte> trailer = made.trailer;
    const auto seal = std::span(trailer).subspan(kStampBytes);
    change(seal.data());
    const std::uint32_t segments = LoadAt<std::uint32_t>(seal.data(), 48);
    const std::uint32_t parts = LoadAt<std::uint16_t>(seal.data(), 12);
    const std::uint64_t bytes = SealBytes(segments, parts);
    if (bytes <= seal.size()) StoreCrcAt(seal.first(bytes), 4, 8);
    const auto view = CheckSeal(trailer);
    return view ? RecordFault::kNone : view.error();
  };
  const auto u16 = [](std::size_t at, std::uint16_t value) {
    return [=](std::byte* seal) { StoreAt(seal, at, value); };
  };
  const auto u32 = [](std::size_t at, std::uint32_t value) {
    return [=](std::byte* seal) { StoreAt(seal, at, value); };
  };
  const auto u8 = [](std::size_t at, std::uint8_t value) {
    return [=](std::byte* seal) { StoreAt(seal, at, value); };
  };
  EXPECT_EQ(fault([](std::byte*) {}), RecordFault::kNone);
  EXPECT_EQ(fault(u16(8, kRecordVersion + 1)), RecordFault::kVersion);
  for (const std::uint16_t parts : {0, 1, 2, 4, int{kMaxParts} + 1})
    EXPECT_EQ(fault(u16(12, parts)), RecordFault::kShape) << parts;
  for (const std::uint32_t segments : {0, 1, 5, 7})
    EXPECT_EQ(fault(u32(48, segments)), RecordFault::kShape) << segments;
  EXPECT_EQ(fault(u32(48, UINT32_MAX)), RecordFault::kShape);
  EXPECT_EQ(fault(u32(52, 4096)), RecordFault::kShape) << "segments of another size";
  for (const std::uint32_t body : {0u, 265'635u, 265'637u, std::uint32_t{kMaxBodyBytes} + 1})
    EXPECT_EQ(fault(u32(24, body)), RecordFault::kShape) << body;
  EXPECT_EQ(fault(u32(28, 1)), RecordFault::kShape) << "a body of four gigabytes more";
  EXPECT_EQ(fault(u32(120, 0)), RecordFault::kShape) << "a part without bytes";
  EXPECT_EQ(fault(u32(120, 101)), RecordFault::kShape) << "parts that are more than the body";
  EXPECT_EQ(fault(u8(14, 0)), RecordFault::kShape) << "no key";
  EXPECT_EQ(fault(u8(14, 31)), RecordFault::kShape) << "a key with a byte behind its end";
  EXPECT_EQ(fault(u8(14, 33)), RecordFault::kShape);
  EXPECT_EQ(fault(u8(15, 15)), RecordFault::kShape) << "a parent with a byte behind its end";
  EXPECT_EQ(fault(u8(15, 33)), RecordFault::kShape);
}

// R5: only the full key proves.
TEST(Seal, R5HasAKeyOfTheSameLengthAndBytesAlone) {
  Made made({4096});
  for (const std::size_t length : {16, 31, 32}) {
    Seal seal = made.seal();
    seal.key = Key(1, length);
    EncodeTrailer(seal, made.stamp, made.trailer);
    const SealView view = CheckSeal(made.trailer).value();
    EXPECT_TRUE(view.HasKey(seal.key));
    for (std::size_t i = 0; i < BlockKey::kMaxBytes; ++i) {
      BlockKey other = seal.key;
      other.bytes[i] ^= 1;
      EXPECT_FALSE(view.HasKey(other)) << length << " bytes, byte " << i;
    }
    for (const int more : {-1, 1}) {
      BlockKey other = seal.key;
      other.length = static_cast<std::uint8_t>(other.length + more);
      EXPECT_FALSE(view.HasKey(other)) << length << " bytes, " << more;
    }
  }
}

TEST(Stamp, BytesBehindItsFieldsAreZeros) {
  Made made({4096});
  const SealView view = CheckSeal(made.trailer).value();
  const auto fault = [&](std::size_t at) {
    std::vector<std::byte> trailer = made.trailer;
    trailer[at] = std::byte{1};
    const std::uint32_t seal_crc = view.crc();
    const std::uint32_t crc = Crc32c(&seal_crc, sizeof(seal_crc), CrcOver({trailer.data(), kStampBytes}, 8));
    StoreAt(trailer.data(), 4, crc);
    const auto stamp = CheckStamp(trailer, view);
    return stamp ? RecordFault::kNone : stamp.error();
  };
  EXPECT_EQ(fault(8), RecordFault::kNone) << "of the epoch";
  for (const std::size_t at : {std::size_t{56}, std::size_t{kStampBytes - 1}})
    EXPECT_EQ(fault(at), RecordFault::kShape);
}

TEST(Seal, GarbageIsRefusedWithoutReadingPastIt) {
  std::mt19937_64 random(1);
  Made made({100, 65536, 200'000});
  for (int i = 0; i < 20'000; ++i) {
    // A copy of exactly this size, so that the address sanitizer sees one byte too many.
    std::vector<std::byte> bytes(made.trailer.begin(),
                                 made.trailer.begin() + static_cast<std::ptrdiff_t>(random() % 300));
    for (int n = 0; n < 4 && !bytes.empty(); ++n)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto view = CheckSeal(bytes);
    if (view.has_value()) {
      EXPECT_EQ(view->crc(), made.crc);
      (void)CheckStamp(bytes, *view);
    }
  }
}

}  // namespace
}  // namespace cistern::record
