// SPDX-License-Identifier: Apache-2.0
// The formats of docs/formats/cell.md, held to the bytes that they have always had.
#include "mesh/cell_keys.h"

#include <gtest/gtest.h>

#include "base/test_hex.h"
#include "mesh/cell_drop.h"

namespace cistern::mesh {
namespace {

std::string HexOfText(std::string_view text) { return HexOf(std::as_bytes(std::span(text))); }
std::string TextOfHex(std::string_view hex) {
  const std::vector<std::byte> bytes = BytesOf(hex);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

SharedNamespace Name() {
  SharedNamespace name{.tenant = "t"};
  name.list_hash[0] = std::byte{0xaa};
  return name;
}

TEST(CellKeysTest, KeysOfACell) {
  const CellKeys keys("/cistern/");
  EXPECT_EQ(keys.History(), "/cistern/history");
  EXPECT_EQ(keys.Floor(), "/cistern/floor");
  EXPECT_EQ(keys.MemberKey("a"), "/cistern/members/a");
  EXPECT_EQ(keys.IdOf("/cistern/members/a"), "a");
  EXPECT_EQ(keys.IdOf("/cistern/history"), "");
  EXPECT_EQ(keys.Drops() + CellKeys::BatchName(0xab, 1), "/cistern/drops/00000000000000ab-0000000000000001");
  EXPECT_TRUE(keys.IsBatch("/cistern/ends/x"));
  EXPECT_FALSE(keys.IsBatch("/cistern/members/drops/"));
}

TEST(CellKeysTest, ValuesAsBytes) {
  MemberValue member{.process_number = 7, .address = "a:1", .zone = "z"};
  member.boot_id[15] = std::byte{9};
  const std::string member_hex =
      "0100"
      "0700000000000000"
      "00000000000000000000000000000009"
      "03000000"
      "613a31"
      "01000000"
      "7a";
  EXPECT_EQ(HexOfText(member.Encode()), member_hex);
  EXPECT_EQ(MemberValue::Decode(TextOfHex(member_hex)), member);

  const CellFloor floor{5, 6};
  EXPECT_EQ(HexOfText(floor.Encode()),
            "0100"
            "0500000000000000"
            "0600000000000000");
  EXPECT_EQ(CellFloor::Decode(floor.Encode()), floor);

  // SHA-256 of "cistern cell check", the number and the key.
  const HistoryValue history{.number = 3, .checks = HistoryValue::ChecksOf(3, {})};
  EXPECT_EQ(HexOfText(history.Encode()).substr(0, 28),
            "0100"
            "0300000000000000"
            "01000000");
  EXPECT_EQ(HistoryValue::Decode(history.Encode()), history);
  const net::CellKey key;
  EXPECT_NE(HistoryValue::CheckOf(3, &key), history.checks[0]);
  EXPECT_NE(HistoryValue::CheckOf(4, nullptr), history.checks[0]);
}

TEST(CellKeysTest, BatchesAsBytes) {
  std::vector<CellDrop> drops;
  drops.push_back({.name = Name()});
  drops.push_back({.what = CellDrop::What::kKeys, .name = Name(), .keys = {*BlockKey::FromHex("0102")}});
  drops.push_back({.what = CellDrop::What::kConversation, .name = Name(), .conversation = 5});
  const std::string name =
      "01000000"
      "74"
      "aa" +
      std::string(62, '0');
  const std::string hex =
      "0100"
      "03000000"
      "01" +
      name + "02" + name +
      "01000000"
      "02"
      "0102" +
      "03" + name + "0500000000000000";
  EXPECT_EQ(HexOfText(EncodeBatch(drops)), hex);
  EXPECT_EQ(DecodeBatch(TextOfHex(hex)), drops);
  std::size_t bytes = 6;
  for (const CellDrop& drop : drops) bytes += EncodedBytes(drop);
  EXPECT_EQ(bytes, hex.size() / 2);
}

TEST(CellKeysTest, LaterVersionsMayAddFieldsBehindButNotToBatches) {
  const MemberValue member{.process_number = 7, .address = "a:1"};
  EXPECT_EQ(MemberValue::Decode(member.Encode() + "more"), member);
  EXPECT_FALSE(DecodeBatch(EncodeBatch({{.name = Name()}}) + "more").has_value());
}

TEST(CellKeysTest, BytesThatAreNoValueAreNone) {
  const std::string batch =
      EncodeBatch({{.what = CellDrop::What::kKeys, .name = Name(), .keys = {*BlockKey::FromHex("01")}}});
  for (std::size_t size = 0; size < batch.size(); ++size)
    EXPECT_FALSE(DecodeBatch(batch.substr(0, size)).has_value());
  std::string strange = batch;
  strange[6] = 4;  // a kind of a later version
  EXPECT_FALSE(DecodeBatch(strange).has_value());
  EXPECT_FALSE(HistoryValue::Decode("").has_value());
  EXPECT_FALSE(CellFloor::Decode("\x01").has_value());
  EXPECT_FALSE(MemberValue::Decode(std::string("\0\0", 2)).has_value());
}

TEST(CellKeysTest, MemberIds) {
  EXPECT_TRUE(ValidateMemberId("node-7.rack_2").ok());
  EXPECT_FALSE(ValidateMemberId("").ok());
  EXPECT_FALSE(ValidateMemberId("a/b").ok());
  EXPECT_FALSE(ValidateMemberId(std::string(64, 'a')).ok());
}

}  // namespace
}  // namespace cistern::mesh
