// SPDX-License-Identifier: Apache-2.0
// Engines by name, as sessions say them by hand: what may not be a name, what is off for one alone, and that
// a client of before there were names is as it was.
#include "server/engines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/test_server.h"

namespace cistern::server {
namespace {

using store::Switch;
using testing::HasSubstr;
using wire::Op;

Code Introduce(RawClient& client, std::string_view name) {
  return static_cast<Code>(client.Do(client.With(Op::kIntroduce, std::as_bytes(std::span(name)))).code);
}

wire::Completion Turn(RawClient& client, std::uint64_t what, bool on, std::string_view engine) {
  wire::Submission call = client.With(Op::kSwitch, std::as_bytes(std::span(engine)));
  call.flags = wire::kOfEngine;
  call.a = what;
  call.b = on ? 1 : 0;
  return client.Do(call);
}

Code Turned(RawClient& client, std::uint64_t what, bool on, std::string_view engine) {
  return static_cast<Code>(Turn(client, what, on, engine).code);
}

bool Leased(RawClient& client, std::uint8_t block) { return client.Do(client.AcquireOf(block)).a != 0; }

Code Wrote(RawClient& client, std::uint8_t block) {
  std::fill_n(client.staging_bytes().begin(), 4096, std::byte{block});
  const wire::Completion answer = client.Do(client.Put(block, 0, 4096));
  return answer.code != 0 ? static_cast<Code>(answer.code)
                          : static_cast<Code>(client.Reply<wire::WriteReplyItem>().code);
}

TEST(Engines, ANameThatIsNoneIsRefusedWithAMessageAndTheSessionGoesOn) {
  TestServer server;
  RawClient client = RawClient::In(server);
  EXPECT_EQ(client.page().engine_state, wire::kEngineKnown);
  for (const std::string& wrong :
       {std::string(), std::string(65, 'x'), std::string(4096, 'x'), std::string("a b"), std::string("a\n"),
        std::string("a\0b", 3), std::string("caf\xc3\xa9"), std::string("\x7f")}) {
    EXPECT_EQ(Introduce(client, wrong), Code::kInvalid) << wrong;
    EXPECT_THAT(client.ReplyText(), HasSubstr("engine"));
  }
  EXPECT_EQ(server.server->engines().numbers(), 0u);
  EXPECT_EQ(Introduce(client, std::string(64, 'x')), Code::kOk);
  EXPECT_EQ(Introduce(client, "another"), Code::kInvalid);
  EXPECT_THAT(client.ReplyText(), HasSubstr("already"));
  client.Attach();
  EXPECT_EQ(Wrote(client, 1), Code::kOk);
  EXPECT_TRUE(Leased(client, 1));
  client.HangUp();
  server.Until([&] { return server.counters().sessions == 0; });
  EXPECT_EQ(server.server->engines().at(0), nullptr) << "an engine without a session is forgotten";
}

TEST(Engines, WhatIsOffIsOffForItsSessionsAloneAlsoThoseThatComeLater) {
  TestServer server;
  RawClient one = RawClient::In(server), rank = RawClient::In(server), other = RawClient::In(server),
            unnamed = RawClient::In(server);
  ASSERT_EQ(Introduce(one, "decode-1"), Code::kOk);
  ASSERT_EQ(Introduce(rank, "decode-1"), Code::kOk);
  ASSERT_EQ(Introduce(other, "decode-2"), Code::kOk);
  for (RawClient* client : {&one, &rank, &other, &unnamed}) client->Attach();
  ASSERT_EQ(Wrote(one, 1), Code::kOk);

  const wire::Completion off = Turn(unnamed, wire::kReads, false, "decode-1");
  ASSERT_EQ(static_cast<Code>(off.code), Code::kOk) << unnamed.ReplyText();
  EXPECT_EQ(off.a, 2u);
  EXPECT_EQ(one.page().engine_state, wire::kEngineKnown | wire::kEngineReadsOff);
  EXPECT_EQ(rank.page().engine_state, wire::kEngineKnown | wire::kEngineReadsOff);
  EXPECT_EQ(other.page().engine_state, wire::kEngineKnown);
  EXPECT_EQ(unnamed.page().engine_state, wire::kEngineKnown);
  EXPECT_FALSE(Leased(one, 1)) << "nor does the node give it anything";
  EXPECT_FALSE(Leased(rank, 1));
  EXPECT_TRUE(Leased(other, 1));
  EXPECT_TRUE(Leased(unnamed, 1));
  EXPECT_EQ(Wrote(one, 2), Code::kOk) << "writes are on";

  ASSERT_EQ(Turned(unnamed, wire::kWrites, false, "decode-1"), Code::kOk);
  EXPECT_EQ(Wrote(one, 3), Code::kBusy);
  EXPECT_EQ(Wrote(other, 3), Code::kOk);

  one.HangUp();
  rank.HangUp();
  server.Until([&] { return server.counters().sessions == 2; });
  RawClient again = RawClient::In(server);
  EXPECT_EQ(again.page().engine_state, wire::kEngineKnown);
  ASSERT_EQ(Introduce(again, "decode-1"), Code::kOk);
  EXPECT_EQ(again.page().engine_state, wire::kEngineKnown | wire::kEngineReadsOff);
  again.Attach();
  EXPECT_FALSE(Leased(again, 1));
  EXPECT_EQ(Wrote(again, 4), Code::kBusy);

  ASSERT_EQ(Turned(unnamed, wire::kReads, true, "decode-1"), Code::kOk);
  EXPECT_TRUE(Leased(again, 1));
  EXPECT_EQ(Wrote(again, 4), Code::kBusy) << "each by itself";
  // All on again: what was off by itself too.
  wire::Submission all = unnamed.With(Op::kSwitch, std::span<const std::byte>());
  all.a = wire::kWrites;
  all.b = 1;
  ASSERT_EQ(static_cast<Code>(unnamed.Do(all).code), Code::kOk);
  EXPECT_EQ(Wrote(again, 4), Code::kOk);
  EXPECT_EQ(server.server->engines().off_count(Switch::kReads), 0u);
  EXPECT_EQ(server.server->engines().off_count(Switch::kWrites), 0u);
}

TEST(Engines, AMatchOrAHoldOfOneWhoseReadsAreOffFindsNothingAndIsCounted) {
  TestServer server;
  RawClient client = RawClient::In(server);
  ASSERT_EQ(Introduce(client, "decode"), Code::kOk);
  client.Attach();
  ASSERT_EQ(Wrote(client, 1), Code::kOk);
  const wire::KeyItem keys[] = {RawClient::Key(1)};
  const auto matched = [&] {
    wire::Submission call = client.With(Op::kMatchRest, std::span<const wire::KeyItem>(keys));
    EXPECT_EQ(static_cast<Code>(client.Do(call).code), Code::kOk);
    return client.Reply<wire::MatchReply>().blocks;
  };
  // As a client that saw the block in the index before they were off.
  const auto held = [&] {
    wire::Submission call = client.With(Op::kHold, std::span<const wire::KeyItem>(keys));
    call.a = 1'000'000;
    call.b = 1;
    return client.Do(call).b;
  };
  EXPECT_EQ(matched(), 1u);
  EXPECT_EQ(held(), 1u);
  const std::uint64_t before = server.store->counters().miss_off.value();
  ASSERT_EQ(Turned(client, wire::kReads, false, "decode"), Code::kOk);
  EXPECT_EQ(matched(), 0u);
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(server.store->counters().miss_off.value(), before + 2);
  ASSERT_EQ(Turned(client, wire::kReads, true, "decode"), Code::kOk);
  EXPECT_EQ(matched(), 1u);
}

TEST(Engines, AnUnknownOneIsAMissThatNamesThoseThatThereAre) {
  TestServer server;
  RawClient client = RawClient::In(server);
  EXPECT_EQ(Turned(client, wire::kReads, false, "decode"), Code::kMiss);
  EXPECT_THAT(client.ReplyText(), HasSubstr("decode"));
  ASSERT_EQ(Introduce(client, "decode-1"), Code::kOk);
  EXPECT_EQ(Turned(client, wire::kReads, false, "decode"), Code::kMiss);
  EXPECT_THAT(client.ReplyText(), HasSubstr("decode-1"));
  EXPECT_EQ(Turned(client, wire::kReads, false, ""), Code::kMiss) << "none is not all";
  EXPECT_EQ(client.page().engine_state, wire::kEngineKnown);
}

TEST(Engines, AsManyAsAreOffWithoutASessionAreBounded) {
  TestServer server;
  RawClient operator_ = RawClient::In(server);
  const auto come_and_be_off = [&](std::size_t n) {
    RawClient client = RawClient::In(server);
    EXPECT_EQ(Introduce(client, Text("engine-", n)), Code::kOk);
    const Code turned = Turned(operator_, wire::kReads, false, Text("engine-", n));
    client.HangUp();
    server.Until([&] { return server.counters().sessions == 1; });
    return turned;
  };
  for (std::size_t n = 0; n < Engines::kMaxOff; ++n) ASSERT_EQ(come_and_be_off(n), Code::kOk) << n;
  EXPECT_EQ(come_and_be_off(Engines::kMaxOff), Code::kBusy);
  EXPECT_THAT(operator_.ReplyText(), HasSubstr("256"));
  EXPECT_EQ(server.server->engines().numbers(), Engines::kMaxOff + 1);
  EXPECT_EQ(Turned(operator_, wire::kReads, true, "engine-7"), Code::kOk);
  EXPECT_EQ(come_and_be_off(Engines::kMaxOff), Code::kOk) << "there is room for one again";
}

}  // namespace
}  // namespace cistern::server
