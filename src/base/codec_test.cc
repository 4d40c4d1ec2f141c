// SPDX-License-Identifier: Apache-2.0
#include "base/codec.h"

#include <gtest/gtest.h>

#include <random>

#include "base/test_hex.h"

namespace cistern {
namespace {

BlockKey KeyOf(std::size_t length) {
  return BlockKey::FromBytes(std::vector<std::byte>(length, std::byte{0xab})).value();
}

// Formats on disk and on the wire are made of these bytes.
TEST(Codec, EveryTypeHasItsBytes) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U8(0x01);
  out.U16(0x0302);
  out.U32(0x07060504);
  out.U64(0x0f0e0d0c0b0a0908);
  EXPECT_EQ(HexOf(bytes), "0102030405060708090a0b0c0d0e0f");
  bytes.clear();
  out.String("key");
  out.String("");
  EXPECT_EQ(HexOf(bytes),
            "03000000"
            "6b6579"
            "00000000");
  bytes.clear();
  out.List(std::vector<std::uint16_t>{1, 0x200}, [&](std::uint16_t item) { out.U16(item); });
  EXPECT_EQ(HexOf(bytes),
            "02000000"
            "0100"
            "0002");
  bytes.clear();
  out.Key(KeyOf(2));
  EXPECT_EQ(HexOf(bytes), "02abab" + std::string(60, '0'));
}

TEST(Codec, ValuesComeBackInTheirOrder) {
  std::vector<std::byte> bytes;
  Encoder out(bytes);
  out.U8(UINT8_MAX);
  out.U16(UINT16_MAX);
  out.U32(UINT32_MAX);
  out.U64(UINT64_MAX);
  out.String(std::string("a\0b", 3));
  out.Key(KeyOf(32));
  out.Key(BlockKey());
  out.List(std::vector<std::string>{"x", ""}, [&](const std::string& item) { out.String(item); });
  out.Bytes(std::as_bytes(std::span("tail", 4)));
  Decoder in(bytes);
  EXPECT_EQ(in.U8(), UINT8_MAX);
  EXPECT_EQ(in.U16(), UINT16_MAX);
  EXPECT_EQ(in.U32(), UINT32_MAX);
  EXPECT_EQ(in.U64(), UINT64_MAX);
  EXPECT_EQ(in.String(3), std::string("a\0b", 3));
  EXPECT_EQ(in.Key(), KeyOf(32));
  EXPECT_TRUE(in.Key().none());
  std::vector<std::string> items{"before"};
  in.List(items, 2, [&](std::string& item) { item = in.String(1); });
  EXPECT_EQ(items, (std::vector<std::string>{"x", ""}));
  EXPECT_TRUE(in.ok());
  EXPECT_FALSE(in.done());
  EXPECT_EQ(in.left(), 4u);
  EXPECT_EQ(in.Bytes(4).size(), 4u);
  EXPECT_TRUE(in.done());
}

TEST(Codec, AfterAMissingValueAllIsZeroAndNotOk) {
  const std::vector<std::byte> bytes(3, std::byte{0xff});
  Decoder in(bytes);
  EXPECT_EQ(in.U32(), 0u);
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.U8(), 0) << "the byte is there, but it belongs to a value that is not";
  EXPECT_TRUE(in.Bytes(0).empty());
  EXPECT_FALSE(in.done());
}

TEST(Codec, CountsAndStringsOverTheirLimitAreRefusedBeforeAnythingIsAllocated) {
  std::vector<std::byte> bytes;
  Encoder(bytes).U32(UINT32_MAX);
  Decoder text(bytes);
  EXPECT_EQ(text.String(100), "");
  EXPECT_FALSE(text.ok());
  Decoder list(bytes);
  std::vector<std::uint64_t> items{1};
  list.List(items, 100, [&](std::uint64_t& item) { item = list.U64(); });
  EXPECT_TRUE(items.empty());
  EXPECT_FALSE(list.ok());
  bytes.clear();
  Encoder(bytes).String("four");
  EXPECT_EQ(Decoder(bytes).String(4), "four");
  Decoder over(bytes);
  EXPECT_EQ(over.String(3), "");
  EXPECT_FALSE(over.ok());
}

TEST(Codec, NoKeyIsLongerThanItsRoom) {
  std::vector<std::byte> bytes;
  Encoder(bytes).Key(KeyOf(32));
  bytes[0] = std::byte{33};
  Decoder in(bytes);
  EXPECT_TRUE(in.Key().none());
  EXPECT_FALSE(in.ok());
}

TEST(Codec, NoBytesMakeADecoderReadPastTheirEnd) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    bytes.shrink_to_fit();
    Decoder in(bytes);
    while (in.ok() && in.left() > 0) {
      const std::size_t before = in.left();
      std::vector<std::uint8_t> items;
      switch (random() % 5) {
        case 0: in.U16(); break;
        case 1: in.U64(); break;
        case 2: EXPECT_LE(in.String(16).size(), 16u); break;
        case 3: in.Key(); break;
        case 4: in.List(items, 8, [&](std::uint8_t& item) { item = in.U8(); }); break;
      }
      ASSERT_LE(in.left(), before);
    }
  }
}

TEST(Codec, FieldsAtOffsetsNeedNoAlignmentAndLeaveTheirNeighbours) {
  std::vector<std::byte> bytes(48, std::byte{0xee});
  StoreAt(bytes.data(), 1, std::uint32_t{0x04030201});
  StoreKeyAt(bytes.data(), 7, 5, KeyOf(3));
  EXPECT_EQ(HexOf(bytes),
            "ee01020304"
            "03"
            "ee"
            "ababab" +
                std::string(58, '0') + std::string(18, 'e'));
  EXPECT_EQ(LoadAt<std::uint32_t>(bytes.data(), 1), 0x04030201u);
  EXPECT_EQ(LoadAt<std::uint16_t>(bytes.data(), 3), 0x0403u);
  EXPECT_EQ(LoadKeyAt(bytes.data(), 7, 5), KeyOf(3));
  EXPECT_TRUE(IsKeyOrNone(KeyOf(3)));
  EXPECT_TRUE(IsKeyOrNone(BlockKey()));
  bytes[20] = std::byte{1};
  EXPECT_FALSE(IsKeyOrNone(LoadKeyAt(bytes.data(), 7, 5))) << "a byte behind its end";
  bytes[5] = std::byte{33};
  EXPECT_FALSE(IsKeyOrNone(LoadKeyAt(bytes.data(), 7, 5))) << "longer than any";
}

}  // namespace
}  // namespace cistern
