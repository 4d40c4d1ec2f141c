// SPDX-License-Identifier: Apache-2.0
#include "cistern/key.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>

namespace cistern {
namespace {

static_assert(std::is_trivially_copyable_v<BlockKey> && sizeof(BlockKey) == 33);

constexpr std::string_view kHex = "000102030405060708090a0b0c0d0e0fFf";

TEST(BlockKey, PrintsWhatItParsed) {
  auto key = BlockKey::FromHex(kHex);
  ASSERT_TRUE(key.has_value()) << key.error().ToString();
  EXPECT_EQ(key->length, 17);
  EXPECT_EQ(key->ToHex(), "000102030405060708090a0b0c0d0e0fff");
  EXPECT_EQ(BlockKey::FromBytes(key->view()).value(), *key);
  EXPECT_TRUE(BlockKey().none());
  EXPECT_EQ(BlockKey().ToHex(), "");
}

TEST(BlockKey, ErrorsNameTheThingItsValueAndItsLimit) {
  auto error = [](std::string_view hex) { return BlockKey::FromHex(hex).error().ToString(); };
  EXPECT_EQ(BlockKey::FromHex("ab").value().length, 1u);
  EXPECT_TRUE(error(std::string(66, 'a')).ends_with("has 66 digits and a key has 2 to 64"));
  EXPECT_TRUE(error(std::string(33, 'a')).ends_with("has 33 digits and a byte takes two"));
  EXPECT_EQ(error("0x01"), "invalid: key: 'x' at position 1 is no hexadecimal digit");
  EXPECT_EQ(error("0\n"), "invalid: key: byte 0xa at position 1 is no hexadecimal digit");
  EXPECT_EQ(error(""), "invalid: key \"(empty)\" has 0 digits and a key has 2 to 64");
  EXPECT_EQ(BlockKey::FromBytes({}).error().ToString(), "invalid: key: has 0 bytes and a key has 1 to 32");
}

// A key is its bytes and its length: one that only continues another in zeros is another key.
TEST(BlockKey, TrailingZerosMakeAnotherKey) {
  const BlockKey short_key = BlockKey::FromHex(std::string(32, 'a')).value();
  const BlockKey long_key = BlockKey::FromHex(std::string(32, 'a') + "00").value();
  EXPECT_NE(short_key, long_key);
  EXPECT_LT(short_key, long_key);
  EXPECT_NE(short_key.Hash(), long_key.Hash());
  EXPECT_NE(short_key.Hash(0), short_key.Hash(1));
  EXPECT_EQ((std::unordered_set<BlockKey>{short_key, long_key, short_key}).size(), 2u);
}

}  // namespace
}  // namespace cistern
