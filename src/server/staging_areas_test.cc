// SPDX-License-Identifier: Apache-2.0
// Staging that a session asks for and gives back, and what of it stays until a mover let go (R6).
#include <filesystem>
#include <string_view>

#include "server/test_server.h"

namespace cistern::server {
namespace {

TEST(StagingAreas, ComeFromABudgetAndGoBackWithTheSession) {
  TestServer server({.staging_budget_bytes = 6u << 20});
  RawClient client = RawClient::In(server);
  EXPECT_EQ(client.welcome.staging_bytes, 1u << 20);
  wire::StagingGrant grant;
  client.Send(wire::MoreStaging{.bytes = 3u << 20});
  EXPECT_EQ(client.Receive(grant).size(), 1u);
  EXPECT_EQ(grant.code, 0u) << grant.message.data();
  EXPECT_EQ(grant.area, 1u);
  client.Send(wire::MoreStaging{.bytes = 2u << 20});
  EXPECT_EQ(client.Receive(grant).size(), 0u);
  EXPECT_EQ(static_cast<Code>(grant.code), Code::kBusy);
  client.Send(wire::MoreStaging{.bytes = UINT64_MAX});
  client.Receive(grant);
  EXPECT_EQ(static_cast<Code>(grant.code), Code::kInvalid);
  EXPECT_EQ(server.counters().staging_bytes, 4u << 20);
  client.HangUp();
  server.Until([&] { return server.counters().staging_bytes == 0; });
}

TEST(StagingAreas, GoBackWhileTheSessionGoesOn) {
  TestServer server({.staging_budget_bytes = 5u << 20});
  RawClient client = RawClient::In(server);
  EXPECT_EQ(client.page().takes_staging_back, 1u);
  wire::StagingGrant grant;
  for (int round = 0; round < 3; ++round) {
    client.Send(wire::MoreStaging{.bytes = 1u << 20});
    EXPECT_EQ(client.Receive(grant).size(), 1u);
    EXPECT_EQ(grant.area, 1u);
    client.Send(wire::MoreStaging{.bytes = 2u << 20});
    EXPECT_EQ(client.Receive(grant).size(), 1u) << grant.message.data();
    EXPECT_EQ(grant.area, 2u);
    client.Send(wire::ReturnStaging{.area = 1});
    client.Send(wire::ReturnStaging{.area = 2});
    client.Send(wire::MoreStaging{.bytes = 3u << 20});
    EXPECT_EQ(client.Receive(grant).size(), 1u) << grant.message.data();
    EXPECT_EQ(grant.area, 1u);
    client.Send(wire::ReturnStaging{.area = 1});
    server.Until([&] { return server.counters().staging_bytes == 1u << 20; });
  }
}

TEST(StagingAreas, WhatWasNotGrantedIsNotTakenBack) {
  for (const std::uint64_t area : {std::uint64_t{0}, std::uint64_t{1}, UINT64_MAX}) {
    TestServer server;
    RawClient client = RawClient::In(server);
    client.Send(wire::ReturnStaging{.area = area});
    server.Until([&] { return server.counters().sessions == 0; });
  }
}

TEST(StagingAreas, P5AnOwnerLeavesSomethingForOthers) {
  TestServer server({.staging_budget_bytes = 10u << 20});
  wire::Hello greedy = RawClient::NewHello();
  greedy.staging_bytes = 10u << 20;
  EXPECT_EQ(Greet(server, greedy), Code::kBusy);
  greedy.staging_bytes = 8u << 20;
  RawClient all = RawClient::In(server, greedy);
  EXPECT_EQ(all.welcome.staging_bytes, 8u << 20);
  // Not with another session of its own either; another owner has what it starts with.
  greedy.owner = all.welcome.owner;
  greedy.staging_bytes = 1u << 20;
  EXPECT_EQ(Greet(server, greedy), Code::kBusy);
  EXPECT_EQ(RawClient::In(server).code(), Code::kOk);
}

TEST(StagingAreas, P5WhatARefusalNamesIsGranted) {
  TestServer server({.staging_budget_bytes = 10u << 20});
  RawClient client = RawClient::In(server);
  const auto ask = [&](std::uint64_t bytes) {
    client.Send(wire::MoreStaging{.bytes = bytes});
    server.Settle();
    wire::StagingGrant grant;
    client.Receive(grant);
    return grant;
  };
  // Of 10 MiB 9 are left and 1 is its own: with 7 more it has four times the 2 that are left then.
  const wire::StagingGrant refused = ask(9u << 20);
  EXPECT_EQ(static_cast<Code>(refused.code), Code::kInvalid);
  EXPECT_NE(std::string_view(refused.message.data()).find("may have 7340032:"), std::string_view::npos)
      << refused.message.data();
  EXPECT_EQ(static_cast<Code>(ask((7u << 20) + 4096).code), Code::kInvalid);
  EXPECT_EQ(static_cast<Code>(ask(7u << 20).code), Code::kOk);
}

TEST(StagingAreas, P5WhatIsBeingMadeForAnOwnerCountsAsItsOwn) {
  TestServer server({.staging_budget_bytes = 20u << 20});
  RawClient first = RawClient::In(server);
  wire::Hello another = RawClient::NewHello();
  another.owner = first.welcome.owner;
  RawClient second = RawClient::In(server, another);
  server.movers->hold = true;
  first.Send(wire::MoreStaging{.bytes = 8u << 20});
  server.Until([&] { return !server.movers->held.empty(); });
  second.Send(wire::MoreStaging{.bytes = 7u << 20});
  another.staging_bytes = 7u << 20;
  RawClient third(server);
  third.Send(another);
  server.Settle();
  server.movers->LetGo();
  wire::StagingGrant grant;
  EXPECT_EQ(first.Receive(grant).size(), 1u);
  EXPECT_EQ(second.Receive(grant).size(), 0u);
  EXPECT_EQ(static_cast<Code>(grant.code), Code::kBusy);
  third.Receive(third.welcome);
  EXPECT_EQ(third.code(), Code::kBusy);
  EXPECT_EQ(server.counters().staging_bytes, 10u << 20);
}

TEST(StagingAreas, AWriteKeepsTheAreaThatItReadsAndNoOther) {
  TestServer server({.session_staging_bytes = 2u << 20});
  RawClient client = RawClient::In(server);
  client.Attach();
  client.Send(wire::MoreStaging{.bytes = 1u << 20});
  wire::StagingGrant grant;
  EXPECT_EQ(client.Receive(grant).size(), 1u);
  const std::uint64_t both = server.counters().staging_bytes;
  client.PushHeldPut();
  client.Send(wire::ReturnStaging{.area = 1});
  server.Settle();
  EXPECT_EQ(server.counters().staging_bytes, both - grant.bytes);
  server.movers->LetGo();
  EXPECT_EQ(CodeOf(client.Answer()), Code::kOk);
}

TEST(StagingAreas, P5TheyTakeNoDescriptorOfTheNode) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  TestServer server({.staging_budget_bytes = 20u << 20});
  RawClient client = RawClient::In(server);
  const auto before = descriptors();
  for (std::uint32_t area = 1; area < wire::kMaxStagingAreas; ++area) {
    client.Send(wire::MoreStaging{.bytes = 4096});
    wire::StagingGrant grant;
    ASSERT_EQ(client.Receive(grant).size(), 1u) << grant.message.data();  // closed here
  }
  EXPECT_EQ(descriptors(), before);
}

// What a client does not receive counts against the node, which then can send nobody a descriptor.
TEST(StagingAreas, R13WhoHasNotTakenItsLastAnswerIsEndedAtItsNextQuestion) {
  TestServer server;
  RawClient client = RawClient::In(server);
  client.Send(wire::MoreStaging{.bytes = 4096});
  server.Settle();
  client.Send(wire::ReturnStaging{.area = 1});
  server.Settle();
  EXPECT_FALSE(client.HungUp());
  client.Send(wire::MoreStaging{.bytes = 4096});
  server.Settle();
  EXPECT_TRUE(client.HungUp());
  EXPECT_EQ(server.counters().ended_forged, 1u);
}

TEST(StagingAreas, WhatIsWishedAtHelloCountsToo) {
  TestServer server({.staging_budget_bytes = 6u << 20});
  wire::Hello hello = RawClient::NewHello();
  hello.staging_bytes = 4u << 20;
  RawClient client = RawClient::In(server, hello);
  EXPECT_EQ(client.welcome.staging_bytes, 4u << 20);
  EXPECT_EQ(Greet(server, hello), Code::kBusy);
}

TEST(StagingAreas, R13WhatASessionStartsWithIsOutOfTheBudget) {
  TestServer server({.staging_budget_bytes = (2u << 20) + 4096});
  RawClient first = RawClient::In(server);
  RawClient second = RawClient::In(server);
  EXPECT_EQ(server.counters().staging_bytes, 2u << 20);
  std::string message;
  EXPECT_EQ(Greet(server, RawClient::NewHello(), &message), Code::kBusy);
  EXPECT_NE(message.find("1048576 bytes asked for, 4096 of 2101248 are left"), std::string::npos) << message;
  // Who asks for less finds room, and what a session had is the next one's.
  wire::Hello small = RawClient::NewHello();
  small.staging_bytes = 1;
  EXPECT_EQ(RawClient::In(server, small).welcome.staging_bytes, 4096u);
  first.HangUp();
  server.Until([&] { return server.counters().sessions < 2; });
  EXPECT_EQ(RawClient::In(server).code(), Code::kOk);
}

TEST(Going, R6StagingOfADeadSessionStaysUntilItsMoverLetGo) {
  TestServer server({.session_staging_bytes = 4u << 20});
  RawClient client = RawClient::In(server);
  client.Attach();
  client.PushHeldPut();
  client.HangUp();
  server.Settle();
  EXPECT_EQ(server.counters().sessions, 1u);
  server.movers->LetGo();
  server.Until([&] { return server.counters().sessions == 0; });
}

TEST(Going, WhatWasMadeForAnOwnerThatIsGoneIsFreedByMovers) {
  TestServer server;
  RawClient first = RawClient::In(server);
  wire::Hello hello = RawClient::NewHello();
  hello.owner = first.welcome.owner;
  server.movers->hold = true;
  RawClient late(server);
  late.Send(hello);
  server.Until([&] { return !server.movers->held.empty(); });
  first.HangUp();
  server.Until([&] { return server.counters().sessions == 0; });
  // A job at a time, and none behind the last that makes something.
  const auto do_one = [&] {
    server.movers->LetGo();
    server.movers->hold = true;
    server.Settle();
  };
  while (server.counters().refused == 0) do_one();
  late.Receive(late.welcome);
  EXPECT_EQ(late.code(), Code::kDenied);
  server.server->Tick();
  EXPECT_EQ(server.counters().staging_bytes, 0u);
  int jobs = 0;
  for (; !server.movers->held.empty(); ++jobs) do_one();
  EXPECT_EQ(jobs, 3);  // its rings; what it would have staged with, in a piece and the end of it
}

}  // namespace
}  // namespace cistern::server
