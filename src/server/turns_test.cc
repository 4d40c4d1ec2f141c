// SPDX-License-Identifier: Apache-2.0
// What one session does leaves the others their turn, and what it does not collect is its own loss.
#include <algorithm>

#include "server/test_server.h"

namespace cistern::server {
namespace {

TEST(Bounds, WhoNeverCollectsLosesCompletionsAndOthersAreServed) {
  TestServer server;
  RawClient deaf = RawClient::In(server), other = RawClient::In(server);
  deaf.Attach();
  other.Attach();
  wire::Submission call = deaf.AcquireOf(1);
  for (std::uint32_t i = 0; i < 3 * wire::kRingEntries; ++i) {
    deaf.Push(call);
    server.Until(
        [&] { return deaf.page().taken == deaf.page().submitted && server.counters().in_flight == 0; });
  }
  EXPECT_EQ(server.counters().completions_lost, 2 * wire::kRingEntries + 1 - 1);
  EXPECT_EQ(CodeOf(other.Do(other.Put(1, 0, kBlock))), Code::kOk);
}

// Staging may have more, and each part of a call as many checksums.
TEST(Bounds, R13APartOfMoreThanABodyMayHaveIsRefusedBeforeItIsTaken) {
  TestServer server({.staging_budget_bytes = 2 * kMaxBodyBytes});
  wire::Hello large = RawClient::NewHello();
  large.staging_bytes = kMaxBodyBytes + 4096;
  RawClient client = RawClient::In(server, large);
  ASSERT_EQ(client.code(), Code::kOk) << client.message();
  client.Attach();
  EXPECT_EQ(CodeOf(client.Do(client.Put(1, 0, kMaxBodyBytes + 1))), Code::kInvalid);
  EXPECT_EQ(CodeOf(client.Do(client.Put(1, 0, kBlock))), Code::kOk);
}

TEST(Bounds, ASessionThatSubmitsALotDoesNotStarveAnother) {
  TestServer server;
  RawClient greedy = RawClient::In(server), other = RawClient::In(server);
  greedy.Attach();
  other.Attach();
  for (std::uint32_t i = 0; i < wire::kRingEntries; ++i) greedy.Push(greedy.AcquireOf(1));
  other.Push(other.AcquireOf(1));
  server.Until([&] { return other.page().completed == 2; });
  EXPECT_LT(greedy.page().completed, 64u);
}

TEST(Bounds, P5ASessionThatNeverStopsTouchingLeavesATurnToAnother) {
  TestServer server;
  RawClient greedy = RawClient::In(server), other = RawClient::In(server);
  other.Attach();
  ASSERT_EQ(CodeOf(other.Do(other.Put(1, 0, kBlock))), Code::kOk);
  ASSERT_EQ(CodeOf(other.Do(other.AcquireOf(1))), Code::kOk);
  const auto view = other.Reply<wire::ViewItem>();
  const auto touch_on = [&] { greedy.page().touched = greedy.page().touched + wire::kTouchEntries; };
  touch_on();
  greedy.Wake();
  server.Until([&] { return server.counters().touches > 0; });
  other.Touch(0, view);
  other.page().touched = 1;
  other.Wake();
  for (int i = 0; i < 10'000 && server.store->counters().touches_applied.value() == 0; ++i) {
    touch_on();
    server.loop->PollOnce();
  }
  EXPECT_EQ(server.store->counters().touches_applied.value(), 1u);
}

// In counted work: steps of the core from the moment that a put is submitted until it is done.
TEST(Bounds, P5ACallWaitsForAStepOfEachOtherSessionAtMostWhateverTheyAsk) {
  constexpr std::size_t kGreedy = 3, kLargeCalls = 3;
  constexpr std::uint64_t kStepsBetweenLooks = 16;
  TestServer server;
  RawClient honest = RawClient::In(server);
  honest.Attach();
  const auto steps_of_put = [&](std::uint8_t name) {
    const std::uint64_t before = server.loop->executor().steps();
    EXPECT_EQ(CodeOf(honest.Do(honest.Put(name, 0, kBlock))), Code::kOk);
    return server.loop->executor().steps() - before;
  };
  steps_of_put(1);
  const std::uint64_t alone = steps_of_put(2);
  std::vector<RawClient> greedy;
  for (std::size_t i = 0; i < kGreedy; ++i) greedy.push_back(RawClient::In(server));
  // As many keys as a call may have, then the rest of the ring with calls of one block.
  const std::vector<wire::KeyItem> keys(wire::kArgumentBytes / sizeof(wire::KeyItem) / (kLargeCalls + 1),
                                        RawClient::Key(9));
  for (RawClient& client : greedy) {
    client.Attach();
    const wire::Submission large = client.With(wire::Op::kTouch, std::span<const wire::KeyItem>(keys));
    wire::Submission small = large;
    small.args_bytes = sizeof(wire::KeyItem);
    for (std::size_t i = 0; i < wire::kRingEntries - 1; ++i) client.Push(i < kLargeCalls ? large : small);
  }
  server.Until([&] {
    return std::ranges::all_of(greedy, [](RawClient& client) { return client.page().taken >= kLargeCalls; });
  });
  for (std::uint8_t name = 3; name < 9; ++name) {
    EXPECT_LE(steps_of_put(name), (1 + kGreedy) * alone + kStepsBetweenLooks);
    for (RawClient& client : greedy) ASSERT_LT(client.page().completed, client.page().submitted);
  }
  server.Settle();
}

}  // namespace
}  // namespace cistern::server
