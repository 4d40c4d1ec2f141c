// SPDX-License-Identifier: Apache-2.0
#include "server/calls.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>

#include "server/test_server.h"
#include "wire/match_wire.h"

namespace cistern::server {
namespace {

TEST(Calls, APutIsAcquiredByAnotherSession) {
  TestServer server;
  RawClient writer = RawClient::In(server), reader = RawClient::In(server);
  writer.Attach();
  reader.Attach();
  EXPECT_EQ(writer.ns.slot, reader.ns.slot);
  std::fill_n(writer.staging_bytes().begin(), kBlock, std::byte{7});
  wire::Completion answer = writer.Do(writer.Put(1, 0, kBlock));
  ASSERT_EQ(CodeOf(answer), Code::kOk) << writer.ReplyText();
  EXPECT_EQ(writer.Reply<wire::WriteReplyItem>().state,
            static_cast<std::uint16_t>(store::PartOutcome::State::kPublished));
  answer = reader.Do(reader.AcquireOf(1));
  ASSERT_EQ(CodeOf(answer), Code::kOk) << reader.ReplyText();
  EXPECT_NE(answer.a, 0u);
  wire::ViewItem view = reader.Reply<wire::ViewItem>();
  EXPECT_EQ(view.bytes, kBlock);
  EXPECT_EQ(*server.arena->slot(view.place), std::byte{7});
  // Only who took the lease may give it back.
  wire::Submission release{.op = wire::Op::kRelease, .a = answer.a};
  EXPECT_NE(CodeOf(writer.Do(release)), Code::kOk);
  EXPECT_EQ(CodeOf(reader.Do(release)), Code::kOk);
  EXPECT_EQ(server.store->occupancy().leases, 0u);
}

// What a call is about stays in the call: its line says how much and where, and no key.
TEST(Calls, ASlowOneIsSaidWithWhereItsTimeWentAndWithoutItsKeys) {
  TestServer server({.session_staging_bytes = 4u << 20});
  server.slow_calls.SetBound(1);
  RawClient client = RawClient::In(server);
  client.Attach();
  client.PushHeldPut('k');
  const Instant waits = server.clock.Now();
  server.Until([&] { return server.clock.Now().UsSince(waits) > 1'000; });
  server.movers->LetGo();
  ASSERT_EQ(CodeOf(client.Answer()), Code::kOk) << client.ReplyText();
  const SlowCall& call = server.slow_calls.last().front();
  EXPECT_EQ(call.kind, CallKind::kWrite);
  EXPECT_EQ(call.count, 1u);
  EXPECT_EQ(call.session, client.welcome.session);
  EXPECT_EQ(call.process, static_cast<std::uint64_t>(getpid()));
  EXPECT_EQ(call.namespace_fingerprint, server.store->FingerprintAt(client.ns.slot));
  EXPECT_GE(call.stations.at(Station::kMover).ns, 1'000'000);
  server.UntilLogged(Text("slow: write of 1 parts for session ", call.session));
  const std::lock_guard lock(server.lines_mutex_);
  EXPECT_EQ(server.lines_.find("kkkk"), std::string::npos);
  EXPECT_EQ(server.lines_.find("6b6b"), std::string::npos);
}

// One acquire of a poll is answered in it, the others as steps of their own: whatever way, each has its
// lease.
TEST(Calls, AcquiresOfOnePollAreEachAnswered) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  ASSERT_EQ(CodeOf(client.Do(client.Put(1, 0, kBlock))), Code::kOk);
  for (std::uint64_t ticket = 1; ticket <= 3; ++ticket) {
    wire::Submission acquire = client.AcquireOf(1);
    acquire.ticket = ticket;
    if (ticket == 2) acquire.a = 0;  // a lease of no time: said by the way of all that is wrong
    client.Push(acquire);
  }
  std::map<std::uint64_t, wire::Completion> answers;
  for (int i = 0; i < 3; ++i) {
    const wire::Completion answer = client.Answer();
    answers[answer.ticket] = answer;
  }
  EXPECT_EQ(CodeOf(answers[1]), Code::kOk);
  EXPECT_EQ(CodeOf(answers[2]), Code::kInvalid);
  EXPECT_EQ(CodeOf(answers[3]), Code::kOk);
  EXPECT_NE(answers[1].a, answers[3].a);
  EXPECT_EQ(server.store->occupancy().leases, 2u);
  EXPECT_EQ(server.store->occupancy().leased_blocks, 2u);
}

TEST(Calls, AHoldMatchesTheRestItself) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  for (std::uint8_t name : {1, 2, 3})
    client.Do(client.Put(name, static_cast<std::uint8_t>(name - 1), kBlock));
  std::vector<wire::KeyItem> chain = {RawClient::Key(1), RawClient::Key(2), RawClient::Key(3),
                                      RawClient::Key(4)};
  wire::Submission hold = client.With(wire::Op::kHold, std::span<const wire::KeyItem>(chain));
  hold.a = 1'000'000;
  hold.b = 1;
  wire::Completion answer = client.Do(hold);
  ASSERT_EQ(CodeOf(answer), Code::kOk) << client.ReplyText();
  EXPECT_NE(answer.a, 0u);
  EXPECT_EQ(answer.b, 3u);
  const auto reply_of = [&](const wire::Completion& completion) {
    return wire::ReadMatchReply(
        std::span(client.page().arguments).subspan(wire::kArgumentBytes / 2, completion.reply_bytes));
  };
  const auto runs = reply_of(answer);
  ASSERT_TRUE(runs.has_value()) << runs.error().ToString();
  ASSERT_EQ(runs->size(), 1u);
  EXPECT_EQ(runs->front().blocks, 3u);
  EXPECT_EQ(runs->front().where, Where::kMemory);
  // As of a client that expects no runs.
  hold.reply_bytes = sizeof(wire::MatchReply);
  answer = client.Do(hold);
  EXPECT_EQ(answer.b, 3u);
  EXPECT_EQ(answer.reply_bytes, 0u);
  wire::Submission rest = client.With(wire::Op::kMatchRest, std::span<const wire::KeyItem>(chain).subspan(1));
  rest.a = 1;
  answer = client.Do(rest);
  ASSERT_EQ(CodeOf(answer), Code::kOk) << client.ReplyText();
  EXPECT_EQ(client.Reply<wire::MatchReply>().blocks, 2u);
  EXPECT_EQ(reply_of(answer)->front().blocks, 2u);
  rest = client.With(wire::Op::kMatchRest, std::span<const wire::KeyItem>(chain).subspan(3));
  rest.a = 3;
  EXPECT_TRUE(reply_of(client.Do(rest))->empty());
  rest.reply_bytes = sizeof(wire::MatchReply);
  EXPECT_EQ(CodeOf(client.Do(rest)), Code::kInvalid);
}

// Members that have a block more than the node.
class OneMore final : public store::RemoteBlocks {
 public:
  Executor& executor() const { return *on; }
  bool MayHaveMore(std::uint32_t, std::span<const BlockKey>, std::size_t) override { return true; }
  Task<std::vector<MatchRun>> Match(std::uint32_t, std::span<const BlockKey>, std::size_t, Instant) override {
    co_return std::vector<MatchRun>{{.blocks = 1, .where = Where::kPeer}};
  }
  bool Found(std::uint32_t, std::span<const catalog::BlockName>) const override { return false; }
  Task<std::vector<store::RemoteMiss>> Bring(std::uint32_t, std::span<const catalog::BlockName>,
                                             Instant) override {
    co_return std::vector<store::RemoteMiss>();
  }
  Executor* on = nullptr;
};

TEST(Calls, WhatAMemberHasIsNoMissOfAMatch) {
  OneMore members;
  TestServer server({}, &members);
  members.on = &server.loop->executor();
  RawClient client = RawClient::In(server);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  for (const std::uint64_t last : {2, 4}) {
    const std::uint64_t before = server.store->counters().miss_unknown.value();
    std::vector<wire::KeyItem> chain;
    for (std::uint64_t n = 1; n <= last; ++n) chain.push_back(RawClient::Key(n));
    const wire::Completion answer =
        client.Do(client.With(wire::Op::kMatchRest, std::span<const wire::KeyItem>(chain)));
    ASSERT_EQ(CodeOf(answer), Code::kOk) << client.ReplyText();
    EXPECT_EQ(client.Reply<wire::MatchReply>().blocks, 2u);
    EXPECT_EQ(server.store->counters().miss_unknown.value() - before, last - 2);
  }
}

TEST(Calls, HintsOfAMatchAreCheckedAndChangeNoAnswer) {
  TestServer server;
  RawClient client = RawClient::In(server);
  EXPECT_EQ(client.page().takes_hints, 1u);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  const std::vector<wire::KeyItem> chain = {RawClient::Key(1), RawClient::Key(2)};
  wire::Submission rest = client.With(wire::Op::kMatchRest, std::span<const wire::KeyItem>(chain));
  wire::Submission hold = client.With(wire::Op::kHold, std::span<const wire::KeyItem>(chain));
  hold.a = 1'000'000;
  for (const unsigned outlook : {0u, 1u, 3u}) {
    for (const unsigned importance : {0u, 1u, 2u, 3u}) {
      rest.flags = hold.flags = static_cast<std::uint16_t>(wire::kPartial | outlook << wire::kOutlookShift |
                                                           importance << wire::kImportanceShift);
      rest.b = kMaxNextTurnMs;
      ASSERT_EQ(CodeOf(client.Do(rest)), Code::kOk) << client.ReplyText();
      EXPECT_EQ(client.Reply<wire::MatchReply>().blocks, 1u);
      hold.b = std::uint64_t{kMaxNextTurnMs} << wire::kNextTurnShift | 1;
      EXPECT_EQ(client.Do(hold).b, 1u) << client.ReplyText();
    }
  }
  const auto refused = [&](const wire::Submission& entry, std::string_view text) {
    EXPECT_EQ(CodeOf(client.Do(entry)), Code::kInvalid) << text;
    EXPECT_NE(client.ReplyText().find(text), std::string::npos) << client.ReplyText();
  };
  rest.b = std::uint64_t{1} << 40;
  refused(rest, "next_turn_ms: is 4294967295, at most 86400000");
  hold.b = (std::uint64_t{kMaxNextTurnMs} + 1) << wire::kNextTurnShift;
  refused(hold, "next_turn_ms: is 86400001, at most 86400000");
  rest.b = 1;
  rest.flags = 2 << wire::kOutlookShift;
  refused(rest, "outlook ended");
  rest.flags = 128;
  refused(rest, "flags 128");
  hold.flags = wire::kWholeChain;
  refused(hold, "flags 64");
}

// The call itself may have taken longer than the lease lasts.
TEST(Calls, AnAcquireSaysWhenItsLeaseEnds) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  ASSERT_EQ(CodeOf(client.Do(client.Put(1, 0, kBlock))), Code::kOk);
  const std::vector<wire::BlockItem> many(store::kAtOnce + 1, wire::BlockItem{.key = RawClient::Key(1)});
  for (const bool in_step : {true, false}) {
    wire::Submission acquire = in_step
                                   ? client.AcquireOf(1)
                                   : client.With(wire::Op::kAcquire, std::span<const wire::BlockItem>(many));
    acquire.a = 1'000'000;
    const Instant asked = server.clock.Now();
    const wire::Completion granted = client.Do(acquire);
    ASSERT_NE(granted.a, 0u);
    EXPECT_GE(granted.b, static_cast<std::uint64_t>(asked.PlusUs(1'000'000).ns));
    EXPECT_LE(granted.b, static_cast<std::uint64_t>(server.clock.Now().PlusUs(1'000'000).ns));
  }
}

TEST(Calls, ANodeOfMemoryAloneSaysThatItHasNoLowerTier) {
  TestServer server;
  RawClient client = RawClient::In(server);
  EXPECT_EQ(client.page().has_lower, 0u);
}

TEST(Calls, WhatIsWrongWithACallIsItsAnswer) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  const wire::Submission good = client.Put(1, 0, kBlock);
  auto refused = [&](const wire::Submission& entry, Code code, std::string_view text) {
    wire::Completion answer = client.Do(entry);
    EXPECT_EQ(CodeOf(answer), code) << text;
    EXPECT_NE(client.ReplyText().find(text), std::string::npos) << client.ReplyText();
  };
  wire::Submission wrong = good;
  wrong.op = static_cast<wire::Op>(99);
  refused(wrong, Code::kMismatch, "operation 99");
  wrong.op = wire::Op::kNone;
  refused(wrong, Code::kInvalid, "operation 0");
  wrong = client.With(wire::Op::kStatus, std::span<const std::byte>());
  wrong.a = 99;
  refused(wrong, Code::kMismatch, "status: 99");
  wrong = good;
  for (const std::int64_t deadline_ns : {std::int64_t{1}, std::int64_t{-1}, INT64_MIN}) {
    wrong.deadline_ns = deadline_ns;
    refused(wrong, Code::kTooLate, "after its deadline");
    EXPECT_EQ(client.ReplyText().find('-'), std::string::npos) << client.ReplyText();
  }
  wrong = good;
  wrong.a = 100'000;
  refused(wrong, Code::kInvalid, "100000 parts");
  wrong = good;
  wrong.incarnation += 1;
  EXPECT_EQ(CodeOf(client.Do(wrong)), Code::kMiss);
  wrong = client.Put(1, 0, 2u << 20);
  refused(wrong, Code::kInvalid, "not in this session's staging");
  wire::WriteItem item{.key = RawClient::Key(1), .staging_area = 9, .bytes = 1};
  wrong = client.With(wire::Op::kWrite, std::span<const wire::WriteItem>(&item, 1));
  wrong.a = 1;
  refused(wrong, Code::kInvalid, "staging area 9");
  item = {.key = RawClient::Key(1), .staging_offset = UINT64_MAX, .bytes = 2};
  wrong = client.With(wire::Op::kWrite, std::span<const wire::WriteItem>(&item, 1));
  wrong.a = 1;
  refused(wrong, Code::kInvalid, "not in this session's staging");
  item = {.key = RawClient::Key(1), .bytes = 1, .checksums_offset = UINT32_MAX};
  wrong = client.With(wire::Op::kWrite, std::span<const wire::WriteItem>(&item, 1));
  wrong.a = 1;
  refused(wrong, Code::kInvalid, "checksums");
  wire::KeyItem key{.size = 33};
  refused(client.With(wire::Op::kTouch, std::span<const wire::KeyItem>(&key, 1)), Code::kInvalid,
          "a key of 33 bytes: keys have 1 to 32");
  std::array<std::byte, 39> odd{};
  refused(client.With(wire::Op::kDrop, std::span<const std::byte>(odd)), Code::kInvalid, "39 bytes");
  wrong = client.AcquireOf(1);
  wrong.a = 61'000'000;
  refused(wrong, Code::kInvalid, "61000000 us");
  wrong = client.AcquireOf(1);
  wrong.reply_bytes = 0;
  EXPECT_EQ(CodeOf(client.Do(wrong)), Code::kInvalid);
  EXPECT_EQ(server.counters().sessions, 1u);
  EXPECT_EQ(server.store->occupancy().records, 0u);
}

TEST(Calls, ChecksumsThatDifferPublishNothing) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  struct {
    wire::WriteItem item;
    std::uint32_t crc = 12345;
  } args{.item = {.key = RawClient::Key(1),
                  .bytes = kBlock,
                  .put_low = 1,
                  .checksums_offset = sizeof(wire::WriteItem)}};
  wire::Submission entry = client.With(wire::Op::kWrite, std::as_bytes(std::span(&args, 1)));
  entry.args_bytes = sizeof(wire::WriteItem) + 4;
  entry.a = 1;
  wire::Completion answer = client.Do(entry);
  ASSERT_EQ(CodeOf(answer), Code::kOk);
  EXPECT_NE(client.Reply<wire::WriteReplyItem>().code, 0u);
  EXPECT_EQ(server.store->occupancy().records, 0u);
}

TEST(Calls, ManyKeysAreTakenInSteps) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  std::vector<wire::KeyItem> keys(wire::kMaxKeysPerCall / 2, RawClient::Key(9));
  server.store->TakeLongestStep();
  ASSERT_EQ(CodeOf(client.Do(client.With(wire::Op::kTouch, std::span<const wire::KeyItem>(keys)))),
            Code::kOk);
  EXPECT_LE(server.store->TakeLongestStep(), kStepTouches);
}

TEST(Calls, TouchesOfTheRingAreRangeChecked) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  for (std::uint32_t i = 0; i < wire::kTouchEntries; ++i) client.page().touches[i] = ~std::uint64_t{0} - i;
  client.page().touched = wire::kTouchEntries;
  client.Do(client.AcquireOf(1));
  server.Until([&] { return server.counters().touches == wire::kTouchEntries; });
  EXPECT_EQ(server.store->counters().touches_applied.value(), 0u);
}

// A client that finds everything in memory reads without a call.
TEST(Calls, WhatIsReadOutOfMemoryCountsThoughTheClientCallsNothing) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Attach();
  client.Do(client.Put(1, 0, kBlock));
  ASSERT_EQ(CodeOf(client.Do(client.AcquireOf(1))), Code::kOk);
  const wire::ViewItem view = client.Reply<wire::ViewItem>();
  server.Until([&] { return client.page().core_sleeps != 0; });  // it is not polled any more
  client.Touch(0, view);
  client.page().touched = 1;
  server.server->Tick();
  server.Settle();
  EXPECT_EQ(server.store->counters().touches_applied.value(), 1u);
}

// A name that was claimed stands for its list in the whole cell.
TEST(Names, AnAttachThatIsRefusedHereAsksNobodyForItsName) {
  TestServer server;
  RawClient client = RawClient::In(server);
  NamespaceSpec large{.name = "large", .fields = {{"model", "x"}}, .groups = {{.name = "all"}}};
  large.groups[0].part_bytes = {server.slots->max_body_bytes() + 1};
  EXPECT_EQ(client.AttachSpec(large), Code::kInvalid);
  EXPECT_TRUE(server.agreed_on.empty()) << server.agreed_on[0];
  NamespaceSpec named{.name = "one", .fields = {{"model", "x"}}, .groups = {{.name = "all"}}};
  EXPECT_EQ(client.AttachSpec(named), Code::kOk);
  NamespaceSpec other = named;
  other.fields[0].second = "y";
  EXPECT_EQ(client.AttachSpec(other), Code::kMismatch);
  EXPECT_EQ(server.agreed_on, std::vector<std::string>{"one"});
  // Past its share of the table.
  std::uint32_t count = 0;
  while (client.AttachModel(std::to_string(count)) == Code::kOk) ++count;
  other.name = "late";
  EXPECT_EQ(client.AttachSpec(other), Code::kBusy);
  EXPECT_EQ(server.agreed_on.size(), 1u);
  // A name more of a list that has a place.
  named.name = "two";
  EXPECT_EQ(client.AttachSpec(named), Code::kOk);
  EXPECT_EQ(server.agreed_on.back(), "two");
}

TEST(Names, TheNameOfAnAttachThatFailsIsGivenBack) {
  TestServer server;
  RawClient client = RawClient::In(server);
  const NamespaceSpec named{.name = "one", .fields = {{"model", "x"}}, .groups = {{.name = "all"}}};
  // The journal takes nothing more, as on a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  EXPECT_NE(client.AttachSpec(named), Code::kOk);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(server.agreed_on, std::vector<std::string>{"one"});
  EXPECT_EQ(server.given_back, std::vector<std::string>{"one"});
  EXPECT_EQ(client.AttachSpec(named), Code::kOk);
  EXPECT_EQ(server.given_back.size(), 1u);
}

}  // namespace
}  // namespace cistern::server
