// SPDX-License-Identifier: Apache-2.0
#include "mesh/peer_message.h"

#include <gtest/gtest.h>

#include "base/codec.h"
#include "base/random.h"
#include "mesh/breaker.h"
#include "mesh/peer_table.h"
#include "mesh/test_peer_message.h"

namespace cistern::mesh {
namespace {

BlockKey KeyNumber(std::uint8_t n, std::size_t bytes = 16) {
  return *BlockKey::FromBytes(std::vector<std::byte>(bytes, std::byte{n}));
}
SharedNamespace SomeName() {
  SharedNamespace name{.tenant = "default"};
  name.list_hash.fill(std::byte{3});
  return name;
}
BlockHead SomeHead() {
  return {.history = 1,
          .a = 2,
          .last = {2, 13},
          .ttl_s = 3,
          .put_id = {4, 5},
          .key = KeyNumber(6),
          .parent = KeyNumber(7, 32),
          .notes = {8},
          .part_bytes = {9, 10},
          .segment_crcs = {11, 12}};
}

// Whole it is itself, and what a later version has put behind is left out; shorter it is nothing, but for
// what an earlier version says, without the last `added` bytes.
template <class Message, class Decode>
void RoundTrip(const Message& message, Decode&& decode, std::size_t added = 0) {
  std::vector<std::byte> bytes = Encode(message);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_EQ(decode(std::span(bytes).first(length)).has_value(), added > 0 && length == bytes.size() - added)
        << length;
  bytes.push_back(std::byte{1});
  const auto decoded = decode(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(Encode(*decoded), Encode(message));
}

TEST(PeerMessageTest, EachMessageIsWhatWasSaidOrNothing) {
  RoundTrip(SampleNotice{.history = 1, .first = 9, .changes = {{{5, 6}, false}, {{7, 0}, true}}},
            DecodeSampleNotice);
  RoundTrip(SnapshotRequest{.history = 1, .from = 2}, DecodeSnapshotRequest);
  RoundTrip(SnapshotPage{.history = 1, .as_of = 2, .next = 3, .samples = {{4, 5}}}, DecodeSnapshotPage);
  RoundTrip(MatchRequest{.history = 1, .name = SomeName(), .matched = 2, .keys = {KeyNumber(1)}},
            [](net::ConstPiece bytes) { return DecodeMatchRequest(bytes); });
  RoundTrip(MatchReply{.history = 1, .a = 2, .runs = {{3, Where::kFlash, 4}}, .body_bytes = {5}},
            DecodeMatchReply);
  RoundTrip(BlockRequest{1, SomeName(), 2, KeyNumber(3), 4, 5}, DecodeBlockRequest);
  RoundTrip(SomeHead(), DecodeBlockHead, 16);
  const auto head = DecodeBlockHead(Encode(SomeHead()));
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(*head, SomeHead());
}

TEST(PeerMessageTest, QuestionOfManyStepsIsWhatWasAsked) {
  MatchRequest request{.history = 1, .name = SomeName(), .matched = 2};
  for (std::size_t i = 0; i < 3 * PeerMessageLimits::kKeysAStep; ++i)
    request.keys.push_back(KeyNumber(static_cast<std::uint8_t>(i), 16 + i % 17));
  std::vector<std::byte> bytes = Encode(request);
  EXPECT_EQ(DecodeMatchRequest(bytes), request);
  bytes.pop_back();
  EXPECT_FALSE(DecodeMatchRequest(bytes).has_value());
}

TEST(PeerMessageTest, WhatNoMemberSaysIsRefused) {
  MatchReply reply{.history = 1, .a = 2, .runs = {{3, Where::kPeer, 4}}};
  EXPECT_FALSE(DecodeMatchReply(Encode(reply)).has_value());
  reply.runs = {{0, Where::kMemory, 4}};
  EXPECT_FALSE(DecodeMatchReply(Encode(reply)).has_value());
  reply.runs = {{3, Where::kMemory, -1}};
  EXPECT_FALSE(DecodeMatchReply(Encode(reply)).has_value());
  BlockHead head = SomeHead();
  head.a = -1;
  EXPECT_FALSE(DecodeBlockHead(Encode(head)).has_value());
  head = SomeHead();
  head.last.revision = -1;
  EXPECT_FALSE(DecodeBlockHead(Encode(head)).has_value());
  head = SomeHead();
  head.notes.assign(9, 1);
  EXPECT_FALSE(DecodeBlockHead(Encode(head)).has_value());
  head = SomeHead();
  head.part_bytes.assign(65, 1);
  EXPECT_FALSE(DecodeBlockHead(Encode(head)).has_value());
}

// What they say is an index, a length or a time of whoever hears it.
TEST(PeerMessageTest, NumbersPastTheirRangeAreRefused) {
  const auto change = [](std::uint32_t number) {
    return DecodeSampleNotice(Encode(SampleNotice{.changes = {{{5, number}, false}, {{5, 0}, false}}}));
  };
  EXPECT_TRUE(change(Sample::kNumbers - 1).has_value());
  EXPECT_FALSE(change(Sample::kNumbers).has_value());
  const auto page = [](std::uint32_t number) {
    return DecodeSnapshotPage(Encode(SnapshotPage{.samples = {{5, number}, {5, 0}}}));
  };
  EXPECT_TRUE(page(Sample::kNumbers - 1).has_value());
  EXPECT_FALSE(page(Sample::kNumbers).has_value());
  const auto run = [](std::uint32_t blocks) {
    return DecodeMatchReply(
        Encode(MatchReply{.runs = {{blocks, Where::kMemory, 4}, {1, Where::kMemory, 4}}}));
  };
  EXPECT_TRUE(run(PeerMessageLimits::kKeys).has_value());
  EXPECT_FALSE(run(PeerMessageLimits::kKeys + 1).has_value());
  EXPECT_FALSE(DecodeMatchReply(Encode(MatchReply{.a = -1})).has_value());
  BlockRequest request{1, SomeName(), 2, KeyNumber(3), 4, 0};
  EXPECT_TRUE(DecodeBlockRequest(Encode(request)).has_value());
  request.worth_us = -1;
  EXPECT_FALSE(DecodeBlockRequest(Encode(request)).has_value());
  request.worth_us = 5;
  request.name.tenant = "";
  EXPECT_FALSE(DecodeBlockRequest(Encode(request)).has_value());
  request.name = SomeName();
  std::vector<std::byte> bytes = Encode(request);
  const std::size_t length_at = 8 + 4 + request.name.tenant.size() + request.name.list_hash.size() + 2;
  ASSERT_EQ(bytes[length_at], std::byte{16});
  bytes.resize(bytes.size() + 100);
  for (const std::uint8_t length : {0, 33, 255}) {
    bytes[length_at] = std::byte{length};
    EXPECT_FALSE(DecodeBlockRequest(bytes).has_value()) << int{length};
  }
  bytes[length_at] = std::byte{32};
  EXPECT_TRUE(DecodeBlockRequest(bytes).has_value());
  EXPECT_FALSE(
      DecodeOfferReply(Encode(OfferReply{.refusal = static_cast<OfferReply::Refusal>(5)})).has_value());
  EXPECT_TRUE(DecodeOfferReply(Encode(OfferReply{.refusal = OfferReply::Refusal::kFailed})).has_value());
  EXPECT_FALSE(DecodeRoomNotice(Encode(RoomNotice{.role = static_cast<Role>(9)})).has_value());
}

Offer SomeOffer() {
  Offer offer;
  offer.chain = {.history = 5, .name = {.tenant = "t"}, .matched = 1};
  for (std::uint64_t n = 1; n <= 3; ++n) {
    BlockKey key;
    key.length = 16;
    key.bytes[0] = static_cast<std::uint8_t>(n);
    offer.chain.keys.push_back(key);
  }
  offer.body_bytes = {10, 20, 30};
  offer.ages = {7, 8};
  return offer;
}

TEST(PeerMessageTest, HandOverSaysWhatItSaid) {
  EXPECT_EQ(DecodeOffer(Encode(SomeOffer())), SomeOffer());
  Offer with_list = SomeOffer();
  with_list.list = {std::byte{1}, std::byte{2}};
  EXPECT_EQ(DecodeOffer(Encode(with_list)), with_list);
  with_list.names = {"production", "staging"};
  EXPECT_EQ(DecodeOffer(Encode(with_list)), with_list);
  with_list.list.clear();
  EXPECT_EQ(DecodeOffer(Encode(with_list)), with_list);
  RoomNotice room{
      .memory_bytes = 1u << 30, .drains = true, .role = Role::kStore, .free_bytes = 77, .release = "1.2.3"};
  EXPECT_EQ(DecodeRoomNotice(Encode(room)), room);
  // An earlier version ends before the release, one before it before the role.
  const std::vector<std::byte> all = Encode(room);
  room.release.clear();
  EXPECT_EQ(DecodeRoomNotice(std::span(all).first(8 + 1 + 1 + 8)), room);
  room.role = Role::kEngine;
  room.free_bytes = 0;
  EXPECT_EQ(DecodeRoomNotice(std::span(all).first(8 + 1)), room);
  const OfferReply reply{.history = 5, .here = 3, .refusal = OfferReply::Refusal::kNoRoom, .had = 2};
  EXPECT_EQ(DecodeOfferReply(Encode(reply)), reply);
}

TEST(PeerMessageTest, FieldsThatALaterVersionHasBehindAHandOverAreSkipped) {
  const auto more = [](std::vector<std::byte> bytes) {
    bytes.resize(bytes.size() + 9, std::byte{0xff});
    return bytes;
  };
  const RoomNotice room{.memory_bytes = 5, .role = Role::kStore, .free_bytes = 3, .release = "9.0"};
  EXPECT_EQ(DecodeRoomNotice(more(Encode(room))), room);
  const OfferReply reply{.history = 5, .here = 3, .had = 2};
  EXPECT_EQ(DecodeOfferReply(more(Encode(reply))), reply);
  // Behind the names, of which it says that there are none.
  Offer offer = SomeOffer();
  std::vector<std::byte> bytes = Encode(offer);
  Encoder(bytes).U64(0);
  EXPECT_EQ(DecodeOffer(more(bytes)), offer);
  offer.names = {"production"};
  EXPECT_EQ(DecodeOffer(more(Encode(offer))), offer);
}

TEST(PeerMessageTest, OfferOfNothingOrWithoutAgesIsRefused) {
  Offer offer = SomeOffer();
  offer.ages.pop_back();
  EXPECT_FALSE(DecodeOffer(Encode(offer)).has_value());
  offer = SomeOffer();
  offer.chain.matched = 3;
  offer.ages.clear();
  EXPECT_FALSE(DecodeOffer(Encode(offer)).has_value());
  offer = SomeOffer();
  offer.list.resize(PeerMessageLimits::kNamespaceBytes + 1);
  EXPECT_FALSE(DecodeOffer(Encode(offer)).has_value());
  std::vector<std::byte> reply = Encode(OfferReply{.history = 5});
  reply[12] = std::byte{9};
  EXPECT_FALSE(DecodeOfferReply(reply).has_value());
}

Instant At(std::int64_t us) { return Instant().PlusUs(us); }

TEST(BreakerTest, ThreeFailuresOrOneDeadlineAndThenAProbe) {
  Breaker breaker;
  breaker.Failed(At(0), false);
  breaker.Failed(At(0), false);
  EXPECT_TRUE(breaker.Allows(At(0)));
  breaker.Failed(At(0), false);
  EXPECT_FALSE(breaker.Allows(At(999'999)));
  EXPECT_TRUE(breaker.Allows(At(1'000'000)));
  breaker.Asked(At(1'000'000));
  EXPECT_FALSE(breaker.Allows(At(1'000'001)));  // the probe is under way
  breaker.Failed(At(1'000'001), true);
  EXPECT_FALSE(breaker.Allows(At(3'000'000)));
  EXPECT_TRUE(breaker.Allows(At(3'000'001)));
  breaker.Asked(At(3'000'001));
  breaker.Succeeded();
  EXPECT_TRUE(breaker.Allows(At(3'000'002)));
  breaker.Failed(At(4'000'000), true);
  EXPECT_FALSE(breaker.Allows(At(4'000'001)));
}

TEST(BreakerTest, WhatFailsTogetherCountsOnceAndPausesEndAtHalfAMinute) {
  Breaker breaker;
  for (int i = 0; i < 20; ++i) breaker.Failed(At(0), true);
  EXPECT_TRUE(breaker.Allows(At(1'000'000)));
  std::int64_t us = 1'000'000;
  for (int i = 0; i < 20; ++i) {
    breaker.Asked(At(us));
    breaker.Failed(At(us), true);
    us += 30'000'000;
    EXPECT_TRUE(breaker.Allows(At(us)));
  }
  EXPECT_FALSE(breaker.Allows(At(us - 1)));
}

TEST(PeerTest, DeadlineInWhichItAnsweredOthersDoesNotCloseIt) {
  const Status late(Code::kTooLate, "late");
  Peer peer;
  peer.Note(Status(), At(1'000'000), 100);
  // A match was asked for, then blocks landed, then its time was over.
  peer.Note(Status(), At(1'030'000), 20'000);
  peer.Note(late, At(1'040'000), 40'000);
  EXPECT_TRUE(peer.breaker.Allows(At(1'040'000)));
  peer.Note(late, At(1'070'000), 40'000);
  EXPECT_FALSE(peer.breaker.Allows(At(1'070'000))) << "nothing came any more";
}

TEST(PeerTest, DeadlineThatLeftItNoTimeDoesNotCloseIt) {
  Peer peer;
  peer.Note(Status(Code::kTooLate, "late"), At(1'000'000), Peer::kPatienceUs - 1);
  EXPECT_TRUE(peer.breaker.Allows(At(1'000'000)));
  peer.Note(Status(Code::kTooLate, "late"), At(1'000'000), Peer::kPatienceUs);
  EXPECT_FALSE(peer.breaker.Allows(At(1'000'000)));
}

}  // namespace
}  // namespace cistern::mesh
