// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/step_budget.h"
#include "mesh/cell_history.h"
#include "mesh/peer_message.h"
#include "mesh/test_cell.h"

namespace cistern::mesh {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000;

class CellTest : public ::testing::Test {
 protected:
  void StartCell(int members) {
    for (int i = 0; i < members; ++i) cell_.Start(cell_.Add(std::string(1, static_cast<char>('a' + i))));
    ASSERT_TRUE(Settled());
  }
  TestNode& node(std::size_t i) { return *cell_.nodes[i]; }
  Member& member(std::size_t i) { return *node(i).member; }
  // Every member runs, has joined and knows every other.
  bool Settled(std::int64_t us = 30 * kSecond) {
    return cell_.RunUntil(us, [this] {
      std::size_t running = 0;
      for (const auto& each : cell_.nodes) running += each->member != nullptr ? 1 : 0;
      for (const auto& each : cell_.nodes) {
        if (!each->member) continue;
        if (!each->member->joined() || each->member->reachable() + 1 < running ||
            each->member->state().view.members.size() != running)
          return false;
      }
      return true;
    });
  }
  void Put(std::size_t i, const std::vector<BlockKey>& chain, std::vector<std::uint64_t> notes = {}) {
    node(i).store->Put({name_, chain.back()}, {.put = ++puts_, .chain = chain, .notes = std::move(notes)});
  }
  // By somebody who is no member.
  void Commit(std::string key, std::string value) {
    etcd::Transaction write;
    write.then.push_back({.keys = {std::move(key), ""}, .value = std::move(value)});
    const auto client = cell_.etcd.Client("somebody");
    ASSERT_TRUE(cell_.loop->BlockOn(client->Commit(write, cell_.clock.Now().PlusUs(kSecond))).has_value());
  }
  // Until somebody makes room, etcd takes nothing more.
  void FillEtcd() {
    cell_.etcd.SetFull(true);
    etcd::Transaction write;
    write.then.push_back({.keys = {"/another/key", ""}, .value = "value"});
    (void)cell_.loop->BlockOn(
        cell_.etcd.Client("somebody")->Commit(write, cell_.clock.Now().PlusUs(kSecond)));
  }
  // From the first to the second: it holds all that it can, until the network is healed.
  void FillTheConnectionOfTwo() {
    cell_.network.Cut("a", "b");
    for (int round = 0; round < 4; ++round) {
      std::vector<std::byte> message(net::ControlLimits::kPayloadBytes);
      while (!message.empty()) {
        if (!member(0).links().Tell(member(1).options().process_number, 99, message).ok())
          message.resize(message.size() / 2);
      }
      cell_.RunFor(1'000);
    }
  }
  std::size_t KeysOf(const std::string& prefix) {
    const auto client = cell_.etcd.Client("somebody");
    const auto found = cell_.loop->BlockOn(
        client->Range({.keys = etcd::KeyRange::Prefix(prefix)}, cell_.clock.Now().PlusUs(kSecond)));
    return found ? found->keys.size() : 999;
  }
  bool Has(std::size_t i, const BlockKey& key) const {
    return cell_.nodes[i]->store->tree().contains({name_, key});
  }
  const SharedNamespace name_ = NamespaceOf(1);
  TestCell cell_{1};
  std::uint64_t puts_ = 0;
};

TEST_F(CellTest, DropIsAcknowledgedOnceEveryMemberHasAppliedIt) {
  StartCell(5);
  for (std::size_t i = 0; i < 5; ++i) Put(i, {KeyOf(1), KeyOf(2)});
  Put(4, {KeyOf(7)});
  const auto receipt = cell_.Drop(node(2), DropOfKeys(name_, {KeyOf(1)}));
  ASSERT_TRUE(receipt.has_value()) << receipt.error().ToString();
  EXPECT_EQ(receipt->applied, 5u);
  EXPECT_EQ(receipt->members, 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_FALSE(Has(i, KeyOf(2)));
    EXPECT_GE(node(i).medium.standing.applied, receipt->revision);
  }
  EXPECT_TRUE(Has(4, KeyOf(7)));
}

TEST_F(CellTest, WhatIsAppliedIsHeardThoughOtherMessagesFilledTheConnectionMeanwhile) {
  StartCell(2);
  FillTheConnectionOfTwo();
  auto drop = member(1).Drop(DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied,
                             cell_.clock.Now().PlusUs(20 * kSecond));
  const std::int64_t before = member(0).state().applied;
  ASSERT_TRUE(cell_.RunUntil(kSecond / 2, [&] { return member(0).state().applied > before; }));
  cell_.network.Heal("a", "b");
  EXPECT_TRUE(cell_.RunUntil(5 * kSecond, [&] { return drop.done(); }));
  EXPECT_TRUE(cell_.loop->BlockOn(std::move(drop)).has_value());
}

TEST_F(CellTest, DropOfTenThousandKeysIsOneCall) {
  StartCell(5);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 10'000; ++i) keys.push_back(KeyOf(i));
  Put(3, {KeyOf(9'999)});
  const Instant began = cell_.clock.Now();
  const auto receipt = cell_.Drop(node(0), DropOfKeys(name_, keys));
  ASSERT_TRUE(receipt.has_value()) << receipt.error().ToString();
  EXPECT_FALSE(Has(3, KeyOf(9'999)));
  EXPECT_LT(cell_.clock.Now().UsSince(began), 2 * kSecond);  // of simulated time
}

TEST_F(CellTest, P5DropOfManyKeysIsCutUpInStepsThatAreCounted) {
  StartCell(2);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 20'000; ++i) keys.push_back(KeyOf(i));
  const auto most_of_a_step = [](Executor& executor, std::uint64_t* most) -> Task<void> {
    for (int turns = 0; turns < 100; ++turns) {
      const std::uint64_t before = executor.work();
      co_await Yield();
      *most = std::max(*most, executor.work() - before);
    }
  };
  const std::uint64_t before = cell_.executor().work();
  std::uint64_t most = 0;
  auto dropping =
      member(0).Drop(DropOfKeys(name_, keys), DropWait::kDurable, cell_.clock.Now().PlusUs(60 * kSecond));
  most = cell_.executor().work() - before;
  cell_.loop->BlockOn(most_of_a_step(cell_.executor(), &most));
  EXPECT_GE(cell_.executor().work() - before, keys.size() * sizeof(BlockKey) / kBytesPerTouch);
  EXPECT_LE(most, kStepTouches);
  EXPECT_TRUE(cell_.loop->BlockOn(std::move(dropping)).has_value());
}

TEST_F(CellTest, DropOfWhichAPartWasWrittenIsNotSaidToBeNone) {
  StartCell(2);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 60'000; ++i) keys.push_back(KeyOf(i));
  Put(1, {KeyOf(0)});
  auto dropping =
      member(0).Drop(DropOfKeys(name_, keys), DropWait::kApplied, cell_.clock.Now().PlusUs(60 * kSecond));
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return !Has(1, KeyOf(0)); }));
  ASSERT_FALSE(dropping.done());
  cell_.etcd.Deny("a");
  const auto ended = cell_.loop->BlockOn(std::move(dropping));
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code(), Code::kTooLate) << ended.error().ToString();
  EXPECT_THAT(std::string(ended.error().message()), HasSubstr("some of its keys have been dropped"));
}

// Another part of the call is on its way by then.
TEST_F(CellTest, DropOfWhichAPartMayYetBeWrittenIsNotSaidToBeNone) {
  StartCell(2);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 8'000; ++i) keys.push_back(KeyOf(i));
  Put(1, {KeyOf(7'999)});
  cell_.etcd.Stop();
  auto dropping =
      member(0).Drop(DropOfKeys(name_, keys), DropWait::kApplied, cell_.clock.Now().PlusUs(60 * kSecond));
  const auto ended = cell_.loop->BlockOn(std::move(dropping));
  cell_.etcd.Start();
  cell_.RunFor(10 * kSecond);
  ASSERT_FALSE(ended.has_value());
  if (!Has(1, KeyOf(7'999))) {
    EXPECT_EQ(ended.error().code(), Code::kTooLate) << ended.error().ToString();
  }
}

TEST_F(CellTest, MemberWhoseAddressIsAnothersIsNamedByIt) {
  cell_.Start(cell_.Add("a"));
  cell_.Add("b").address = member(0).options().address;
  cell_.Start(node(1));
  ASSERT_TRUE(cell_.RunUntil(5 * kSecond, [this] { return member(0).state().view.members.size() == 2; }));
  cell_.RunFor(kSecond);
  EXPECT_THAT(member(0).WhyApart("b"), HasSubstr("this node itself answers there"));
  EXPECT_EQ(member(0).reachable(), 0u);
}

TEST_F(CellTest, MemberWhoseAddressWasAnothersIsReachedOnceItIsMended) {
  StartCell(2);
  const auto acknowledged = [this](std::size_t i) {
    return cell_.Drop(node(i), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, kSecond).has_value();
  };
  cell_.Add("c").address = member(1).options().address;
  cell_.Start(node(2));
  ASSERT_TRUE(cell_.RunUntil(5 * kSecond, [this] { return member(0).state().view.members.size() == 3; }));
  cell_.RunFor(kSecond);
  EXPECT_THAT(member(0).WhyApart("c"), HasSubstr("member 'b' answers there"));
  cell_.Kill(node(2));
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(0).state().view.members.size() == 2; }));
  EXPECT_TRUE(acknowledged(0));  // what c's address led to took nothing of the way to b
  EXPECT_TRUE(acknowledged(1));
  node(2).address.clear();
  cell_.Start(node(2));
  ASSERT_TRUE(Settled());
  EXPECT_TRUE(acknowledged(0));
}

TEST_F(CellTest, MemberThatStartedElsewhereIsReachedThoughItsOldStartStillIs) {
  StartCell(2);
  cell_.etcd.Cut("b");
  TestNode& other = cell_.Add("b", "other");
  other.boot = 2;
  cell_.Start(other);
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return other.member->joined(); }));
  EXPECT_TRUE(cell_.RunUntil(kSecond, [&] { return other.member->reachable() == 1; }));
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, kSecond).has_value());
}

TEST_F(CellTest, WhoFindsAllConnectionsOfAMemberTakenIsNamedByIt) {
  cell_.Start(cell_.Add("b"));
  ASSERT_TRUE(Settled());
  const auto others = cell_.network.Host("others");
  std::vector<std::unique_ptr<net::Stream>> silent;
  for (std::size_t i = 0; i < PeerLimits::kConnections; ++i) {
    auto stream =
        cell_.loop->BlockOn(others->Connect(member(0).options().address, cell_.clock.Now().PlusUs(kSecond)));
    ASSERT_TRUE(stream.has_value());
    silent.push_back(std::move(*stream));
  }
  cell_.Start(cell_.Add("a"));
  EXPECT_TRUE(cell_.RunUntil(5 * kSecond, [this] {
    return member(0).WhyApart("a").find("256 connections of other members, the limit") != std::string::npos;
  }));
  EXPECT_EQ(member(0).reachable(), 0u);
}

TEST_F(CellTest, DropWaitsForAMemberThatIsCutOffUntilItsMembershipLapses) {
  StartCell(3);
  Put(2, {KeyOf(1)});
  // Its lease stands, but nothing reaches it.
  cell_.etcd.Cut("c");
  const auto late = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, kSecond);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), Code::kTooLate);
  EXPECT_THAT(std::string(late.error().message()), HasSubstr("2 of 3 members"));
  EXPECT_TRUE(Has(2, KeyOf(1)));
  const auto durable = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(2)}), DropWait::kDurable, kSecond);
  EXPECT_TRUE(durable.has_value());
  const auto acknowledged =
      cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 30 * kSecond);
  ASSERT_TRUE(acknowledged.has_value()) << acknowledged.error().ToString();
  EXPECT_EQ(acknowledged->members, 2u);
  // Who has lapsed knows that nobody can vouch for it by now.
  EXPECT_LT(member(2).valid_until(), cell_.clock.Now());
  cell_.etcd.Heal("c");
  ASSERT_TRUE(Settled());
  EXPECT_FALSE(Has(2, KeyOf(1)));
}

TEST_F(CellTest, MembershipIsBelievedNoLongerThanItsLeaseStands) {
  // A renewal begins when etcd has it, long before its answer is here; the lease's end is noticed at once.
  cell_.etcd.SetLags({.answer_us = 600'000, .event_us = 1'000, .lapse_us = 0});
  StartCell(3);
  for (int round = 0; round < 16; ++round) {
    cell_.RunFor(6 * kSecond + round * 170'000);  // it has renewed its lease and looked since
    ASSERT_GT(member(2).valid_until(), cell_.clock.Now());
    cell_.etcd.Cut("c");
    ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(0).state().view.members.size() == 2; }));
    EXPECT_LE(member(2).valid_until(), cell_.clock.Now());
    cell_.etcd.Heal("c");
    ASSERT_TRUE(Settled());
  }
}

// The clock that tasks go by stands still meanwhile, etcd's does not.
TEST_F(CellTest, R10MembershipEndsWhileItsHostSleeps) {
  struct Boot final : Clock {
    explicit Boot(const Clock& of) : clock(of) {}
    Instant Now() const override { return clock.Now().PlusUs(slept_us); }
    WallTime Wall() const override { return clock.Wall(); }
    const Clock& clock;
    std::int64_t slept_us = 0;
  } boot(cell_.clock);
  cell_.boot = &boot;
  StartCell(2);
  cell_.RunFor(6 * kSecond);
  ASSERT_GT(member(1).valid_until(), boot.Now());
  boot.slept_us += 3600 * kSecond;
  EXPECT_LE(member(1).valid_until(), boot.Now());
  // A renewal under way is of before.
  cell_.RunFor(6 * kSecond);
  EXPECT_GT(member(1).valid_until(), boot.Now());
  EXPECT_LE(member(1).valid_until().UsSince(boot.Now()), CellLimits::kLeaseS * kSecond);
}

TEST_F(CellTest, EndOfAConversationTakesWhatItAloneWrote) {
  StartCell(3);
  Put(0, {KeyOf(1)}, {71});
  Put(1, {KeyOf(1)}, {71, 72});
  Put(2, {KeyOf(1)});
  ASSERT_TRUE(cell_.Drop(node(0), EndOf(name_, 71)).has_value());
  EXPECT_FALSE(Has(0, KeyOf(1)));
  EXPECT_TRUE(Has(1, KeyOf(1)));
  EXPECT_TRUE(Has(2, KeyOf(1)));
}

TEST_F(CellTest, RecordFromBeforeADropIsNotTakenAfterIt) {
  StartCell(2);
  const Answered before = *member(1).Answering();
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  const std::vector<BlockKey> below = {KeyOf(1), KeyOf(2)}, beside = {KeyOf(3)};
  std::vector<std::uint64_t> notes;
  EXPECT_EQ(member(0).Admit(before, name_, below, &notes), Verdict::kCovered);
  EXPECT_EQ(member(0).Admit(before, name_, beside, &notes), Verdict::kTake);
  EXPECT_EQ(member(0).Admit(*member(1).Answering(), name_, below, &notes), Verdict::kTake);
}

TEST_F(CellTest, MemberThatWasAwayAppliesWhatItMissedBeforeItServes) {
  StartCell(3);
  Put(2, {KeyOf(1)});
  cell_.Kill(node(2));
  ASSERT_TRUE(
      cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 30 * kSecond).has_value());
  cell_.Start(node(2));
  EXPECT_TRUE(Has(2, KeyOf(1)));  // its medium kept it
  EXPECT_FALSE(member(2).joined());
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(2).joined(); }));
  EXPECT_FALSE(Has(2, KeyOf(1)));
}

TEST_F(CellTest, MemberThatStartsAnewIsReachedAtOnceHoweverLongItWasAway) {
  StartCell(3);
  cell_.Kill(node(2));
  cell_.RunFor(8 * kSecond);  // the pauses between two dials have grown
  cell_.Start(node(2));
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(2).joined(); }));
  EXPECT_TRUE(cell_.RunUntil(kSecond, [this] { return member(2).reachable() == 2; }));
}

// Answers when it is let.
class SlowListener final : public PeerListener {
 public:
  explicit SlowListener(Executor& executor) : executor_(executor) {}
  Executor& executor() { return executor_; }
  void Connected(std::uint64_t) override {}
  void Disconnected(std::uint64_t) override {}
  void Heard(std::uint64_t, std::uint16_t type, net::ConstPiece payload) override {
    if (type == kRoomNotice) room = DecodeRoomNotice(payload);
  }
  Task<Result<std::vector<std::byte>>> Answer(std::uint64_t, std::uint16_t, net::ConstPiece,
                                              Instant) override {
    ++asked;
    co_await let.Wait();
    co_return std::vector<std::byte>();
  }

  int asked = 0;
  Event let;
  std::optional<RoomNotice> room;  // that it heard last

 private:
  Executor& executor_;
};

TEST_F(CellTest, TheLatestOfWhatAMemberHasIsHeardThoughTheConnectionWasFull) {
  StartCell(2);
  SlowListener listener(cell_.executor());
  member(1).SetListener(&listener);
  FillTheConnectionOfTwo();
  for (const bool drains : {true, false, true}) {
    member(0).links().TellLatest(member(1).options().process_number, kRoomNotice,
                                 Encode({5, drains, Role::kEngine, 0}));
  }
  cell_.network.Heal("a", "b");
  EXPECT_TRUE(cell_.RunUntil(kSecond, [&] { return listener.room && listener.room->drains; }));
  member(1).SetListener(nullptr);
}

TEST_F(CellTest, MemberThatIsStillAnsweringIsReachedAgainAtOnce) {
  StartCell(2);
  SlowListener listener(cell_.executor());
  member(0).SetListener(&listener);
  const std::uint64_t a = member(0).options().process_number;
  auto asked = member(1).links().Ask(a, 1, {}, cell_.clock.Now().PlusUs(60 * kSecond));
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return listener.asked == 1; }));
  cell_.network.Reset("a", "b");
  EXPECT_EQ(cell_.loop->BlockOn(std::move(asked)).error().code(), Code::kGone);
  EXPECT_TRUE(cell_.RunUntil(kSecond, [&] { return member(1).Reaches(a); }));
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, kSecond).has_value());
  listener.let.Set();
  member(0).SetListener(nullptr);
}

TEST_F(CellTest, WhatOneMemberTrimsTheOthersKeepNoNoteOf) {
  StartCell(2);
  const auto dropped = cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(9)}));
  ASSERT_TRUE(dropped.has_value());
  ASSERT_TRUE(cell_.Drop(node(1), EndOf(name_, 7)).has_value());
  EXPECT_GT(member(1).state().kept_drops.bytes(), 0u);
  EXPECT_GT(member(1).state().kept_ends.bytes(), 0u);
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  const std::int64_t seen = member(0).state().seen;
  ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim({seen, seen})).ok());
  cell_.RunFor(kSecond);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(member(i).state().kept_drops.bytes(), 0u) << i;
    EXPECT_EQ(member(i).state().kept_ends.bytes(), 0u) << i;
  }
}

TEST_F(CellTest, WhatATrimLeftBehindItsFloorIsDeletedByALaterOne) {
  cell_.etcd.SetLags({.answer_us = 10'000, .event_us = 1'000});
  StartCell(2);
  const auto dropped = cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(9)}));
  ASSERT_TRUE(dropped.has_value());
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  auto trim = member(0).Trim({dropped->revision, 0});
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return member(1).state().floor.drops == dropped->revision; }));
  cell_.etcd.Cut("a");
  EXPECT_FALSE(cell_.loop->BlockOn(std::move(trim)).ok());
  cell_.etcd.Heal("a");
  const CellKeys keys("/cistern/");
  ASSERT_EQ(KeysOf(keys.Drops()), 1u);
  cell_.RunFor(2 * Trimmer::kEveryUs);
  EXPECT_EQ(KeysOf(keys.Drops()), 0u);
}

TEST_F(CellTest, EtcdIsCompactedBehindATrimWhateverThatWasCutOffFrom) {
  cell_.etcd.SetLags({.answer_us = 10'000, .event_us = 1'000});
  StartCell(2);
  const auto somebody = cell_.etcd.Client("somebody");
  for (std::int64_t us = 0; us < 40'000; us += 2'000) {
    const auto dropped = cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(9)}));
    ASSERT_TRUE(dropped.has_value());
    cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
    const std::int64_t before = cell_.etcd.header().revision;
    auto trim = member(0).Trim({dropped->revision, 0});
    // The floor is raised, the drop deleted.
    ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return cell_.etcd.header().revision == before + 2; }));
    cell_.RunFor(us);
    cell_.etcd.Cut("a");
    (void)cell_.loop->BlockOn(std::move(trim));
    cell_.etcd.Heal("a");
    cell_.RunFor(2 * Trimmer::kEveryUs);
    const auto of_before = cell_.loop->BlockOn(somebody->Range(
        {.keys = etcd::KeyRange::Prefix("/"), .revision = before}, cell_.clock.Now().PlusUs(kSecond)));
    ASSERT_FALSE(of_before.has_value()) << us;
    EXPECT_EQ(of_before.error().code(), Code::kLapsed) << us;
  }
}

// As many as the cell writes in four minutes, as large as they are where many keys are dropped.
TEST_F(CellTest, MemberJoinsBehindManyLargeBatchesAndTheyAreTrimmed) {
  StartCell(1);
  const CellKeys keys("/cistern/");
  std::vector<CellDrop> drops;
  std::size_t bytes = 0;
  for (std::uint64_t n = 0;; ++n) {
    drops.push_back(DropOfKeys(name_, {}));
    for (std::uint64_t key = 0; key < 500; ++key) drops.back().keys.push_back(KeyOf(1'000 * n + key));
    bytes += EncodedBytes(drops.back());
    if (bytes > DropLimits::kBatchBytes) break;
  }
  drops.pop_back();
  const std::string large = EncodeBatch(drops);
  ASSERT_GT(large.size(), DropLimits::kBatchBytes * 9 / 10);
  for (std::uint64_t n = 0; n < 600; ++n) Commit(keys.Drops() + CellKeys::BatchName(7, n), large);
  cell_.Start(cell_.Add("b"));
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(1).joined(); }));
  EXPECT_EQ(member(1).state().seen, cell_.etcd.header().revision);
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  const std::int64_t seen = member(0).state().seen;
  const Status trimmed = cell_.loop->BlockOn(member(0).Trim({seen, seen}));
  EXPECT_TRUE(trimmed.ok()) << trimmed.ToString();
  EXPECT_EQ(KeysOf(keys.Drops()), 0u);
}

TEST_F(CellTest, MemberBehindTheFloorDiscardsWhatItHas) {
  StartCell(3);
  Put(2, {KeyOf(1)});
  cell_.Kill(node(2));
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(9)}), DropWait::kDurable);
  ASSERT_TRUE(dropped.has_value());
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim({dropped->revision, 0})).ok());
  cell_.Start(node(2));
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(2).joined(); }));
  EXPECT_FALSE(Has(2, KeyOf(1)));
  EXPECT_GE(member(2).state().list.begin(), dropped->revision);
  std::vector<std::uint64_t> notes;
  const std::vector<BlockKey> chain = {KeyOf(2)};
  const auto takes = [&](std::size_t from) {
    return member(2).Admit(*member(from).Answering(), name_, chain, &notes) == Verdict::kTake;
  };
  EXPECT_TRUE(cell_.RunUntil(kSecond, [&] { return takes(0) && takes(1); }));
}

// Whatever it has asked by then.
TEST_F(CellTest, R10WhatIsTrimmedWhileAMemberJoinsIsNotMissed) {
  cell_.etcd.SetLags({.answer_us = 10'000, .event_us = 1'000, .lapse_us = 0});
  StartCell(3);
  for (std::uint64_t ms = 0; ms < 120; ms += 3) {
    const BlockKey key = KeyOf(100 + ms);
    Put(2, {key});
    cell_.Kill(node(2));
    const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {key}), DropWait::kDurable);
    ASSERT_TRUE(dropped.has_value());
    cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
    cell_.Start(node(2));
    cell_.RunFor(static_cast<std::int64_t>(ms) * 1'000);
    cell_.etcd.Cut("c");
    ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim({dropped->revision, 0})).ok());
    cell_.etcd.Heal("c");
    ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(2).joined(); }));
    ASSERT_FALSE(Has(2, key)) << ms << " ms after its start";
    ASSERT_TRUE(Settled());
  }
}

TEST_F(CellTest, CompactedWatchReadsAllInOneTransaction) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  cell_.etcd.Cut("b");
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kDurable).has_value());
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(2)}), DropWait::kDurable).has_value());
  cell_.etcd.Compact(cell_.etcd.header().revision);
  cell_.etcd.CancelWatches();
  cell_.etcd.Heal("b");
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return !Has(1, KeyOf(1)); }));
  EXPECT_EQ(member(1).state().seen, cell_.etcd.header().revision);
}

// Of an etcd that others write to and compact, while the cell itself changes nothing.
TEST_F(CellTest, QuietCellInACompactedEtcdReadsAllOnce) {
  StartCell(2);
  for (int i = 0; i < 10; ++i) Commit("/another/key", "value");
  cell_.etcd.Compact(cell_.etcd.header().revision);
  cell_.etcd.CancelWatches();
  const std::uint64_t views = member(0).state().views;
  cell_.RunFor(20 * kSecond);
  EXPECT_LE(member(0).state().views, views + 4);
  EXPECT_TRUE(cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(1)})).has_value());
}

TEST_F(CellTest, WhatIsReadAnewAfterACompactionIsAsOldAsItWas) {
  StartCell(1);
  ASSERT_TRUE(cell_.Drop(node(0), EndOf(name_, 7)).has_value());
  for (std::int64_t us = 0; us < CellLimits::kKeepEndsUs + 2 * Trimmer::kEveryUs; us += 600 * kSecond) {
    Commit("/another/key", "value");
    cell_.etcd.Compact(cell_.etcd.header().revision);
    cell_.etcd.CancelWatches();
    cell_.RunFor(600 * kSecond);
  }
  EXPECT_EQ(KeysOf(CellKeys("/cistern/").Ends()), 0u);
}

// Also where etcd takes no put for a while, so that nothing later than what came and went can be written.
TEST_F(CellTest, MemberThatCameAndWentBehindACompactionIsNoSignOfAnotherEtcd) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  const std::uint64_t history = member(0).state().history;
  for (const bool full : {false, true}) {
    SCOPED_TRACE(full);
    cell_.etcd.Cut("a");
    const auto dropped = cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(2)}), DropWait::kDurable);
    ASSERT_TRUE(dropped.has_value());
    TestNode& passing = cell_.Add(full ? "d" : "c");
    cell_.Start(passing);
    ASSERT_TRUE(cell_.RunUntil(2 * kSecond, [&] { return passing.member->joined(); }));
    cell_.loop->BlockOn(passing.member->Leave(cell_.clock.Now().PlusUs(kSecond)));
    cell_.Kill(passing);
    cell_.etcd.Compact(dropped->revision);
    cell_.etcd.CancelWatches();
    if (full) FillEtcd();
    cell_.etcd.Heal("a");
    cell_.RunFor(5 * kSecond);
    cell_.etcd.SetFull(false);
    cell_.RunFor(15 * kSecond);
    EXPECT_EQ(member(0).state().history, history);
    EXPECT_TRUE(Has(1, KeyOf(1)));
  }
}

TEST_F(CellTest, SilentWatchIsFoundByALook) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  cell_.etcd.SilenceWatches();
  const auto receipt = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 10 * kSecond);
  EXPECT_TRUE(receipt.has_value());
  EXPECT_FALSE(Has(1, KeyOf(1)));
}

TEST_F(CellTest, WithoutEtcdTheCellGoesOnAndADropChangesNothing) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  cell_.etcd.Stop();
  cell_.RunFor(3600 * kSecond);
  EXPECT_TRUE(member(0).joined() && member(1).joined());
  std::vector<std::uint64_t> notes;
  const std::vector<BlockKey> chain = {KeyOf(1)};
  EXPECT_EQ(member(0).Admit(*member(1).Answering(), name_, chain, &notes), Verdict::kTake);
  EXPECT_LT(member(0).valid_until(), cell_.clock.Now());
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}));
  ASSERT_FALSE(dropped.has_value());
  EXPECT_EQ(dropped.error().code(), Code::kGone);
  EXPECT_TRUE(Has(1, KeyOf(1)));
  cell_.etcd.Start();
  EXPECT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(0).valid_until() > cell_.clock.Now(); }));
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
}

TEST_F(CellTest, RestoredEtcdBeginsAnotherHistory) {
  StartCell(3);
  const auto backup = cell_.etcd.TakeBackup();
  const std::uint64_t history = member(0).state().history;
  for (std::size_t i = 0; i < 3; ++i) Put(i, {KeyOf(1)});
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(5)})).has_value());
  cell_.etcd.Restore(*backup);
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] {
    for (std::size_t i = 0; i < 3; ++i) {
      if (member(i).state().history == history || !member(i).joined()) return false;
    }
    return true;
  }));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(member(i).state().history, member(0).state().history);
    EXPECT_FALSE(Has(i, KeyOf(1)));
  }
  ASSERT_TRUE(Settled());
  EXPECT_TRUE(cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(5)})).has_value());
}

TEST_F(CellTest, RestoredEtcdIsNoticedThoughItsRevisionHasRisenSince) {
  StartCell(2);
  const auto backup = cell_.etcd.TakeBackup();
  const std::uint64_t history = member(0).state().history;
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(5)})).has_value());
  cell_.etcd.Restore(*backup);
  for (int i = 0; i < 10; ++i) Commit("/another/key", "value");
  EXPECT_TRUE(cell_.RunUntil(30 * kSecond, [&] {
    return member(0).state().history != history && member(1).state().history != history;
  }));
}

// Before anybody has looked.
TEST_F(CellTest, R10NothingIsTrimmedInAnEtcdThatWasRestoredMeanwhile) {
  StartCell(2);
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(5)})).has_value());
  const auto backup = cell_.etcd.TakeBackup();
  const std::uint64_t history = member(0).state().history;
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(6)})).has_value());
  const std::int64_t seen = member(0).state().seen;
  cell_.etcd.Restore(*backup);
  EXPECT_EQ(cell_.loop->BlockOn(member(0).Trim({seen, seen})).code(), Code::kLapsed);
  const CellKeys keys("/cistern/");
  EXPECT_EQ(KeysOf(keys.Drops()), 1u);
  EXPECT_EQ(KeysOf(keys.Floor()), 0u);
  EXPECT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return member(1).state().history != history; }));
}

// By who knows nothing of what was lost; the revision has risen, and the floor, before anybody looks.
TEST_F(CellTest, R10AMemberThatJoinsARestoredEtcdTrimsNothingThatOthersHaveToMiss) {
  StartCell(3);
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(5)})).has_value());
  cell_.Kill(node(2));
  cell_.RunFor(15 * kSecond);
  const auto backup = cell_.etcd.TakeBackup();
  const std::uint64_t history = member(0).state().history;
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(6)})).has_value());
  cell_.etcd.Restore(*backup);
  for (const char* host : {"a", "b"}) cell_.etcd.Cut(host);
  cell_.Start(node(2));
  ASSERT_TRUE(cell_.RunUntil(5 * kSecond, [this] { return member(2).joined(); }));
  for (int i = 0; i < 10; ++i) Commit("/another/key", "value");
  const auto dropped = cell_.Drop(node(2), DropOfKeys(name_, {KeyOf(7)}), DropWait::kDurable);
  ASSERT_TRUE(dropped.has_value());
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return member(2).state().seen >= dropped->revision; }));
  ASSERT_TRUE(cell_.loop->BlockOn(member(2).Trim({dropped->revision, dropped->revision})).ok());
  for (const char* host : {"a", "b"}) cell_.etcd.Heal(host);
  EXPECT_TRUE(cell_.RunUntil(30 * kSecond, [&] {
    return member(0).state().history != history && member(1).state().history != history;
  }));
}

TEST_F(CellTest, FloorBeyondWhatEtcdHasCostsWhatIsHereAndEndsNobody) {
  StartCell(1);
  Commit(CellKeys("/cistern/").Floor(), CellFloor{1'000, 1'000}.Encode());
  cell_.Start(cell_.Add("b"));
  ASSERT_TRUE(Settled());
  EXPECT_LE(member(1).state().list.begin(), cell_.etcd.header().revision);
  Put(1, {KeyOf(1)});
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}));
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(dropped->applied, 2u);
  EXPECT_FALSE(Has(1, KeyOf(1)));
  std::vector<std::uint64_t> notes;
  const std::vector<BlockKey> chain = {KeyOf(1)};
  EXPECT_EQ(member(0).Admit(*member(1).Answering(), name_, chain, &notes), Verdict::kTake);
}

TEST_F(CellTest, DropInTheRevisionOfAChangeThatARestoredEtcdHasLostIsNotMissed) {
  StartCell(2);
  const auto backup = cell_.etcd.TakeBackup();
  cell_.Start(cell_.Add("c"));
  ASSERT_TRUE(Settled());
  cell_.Kill(node(2));
  Put(0, {KeyOf(1)});
  const std::int64_t seen = member(0).state().seen;
  cell_.etcd.Restore(*backup);
  Commit(CellKeys("/cistern/").Drops() + "x", EncodeBatch({DropOfKeys(name_, {KeyOf(1)})}));
  ASSERT_LE(cell_.etcd.header().revision, seen);
  Commit("/another/key", "value");
  EXPECT_TRUE(cell_.RunUntil(30 * kSecond, [this] { return !Has(0, KeyOf(1)); }));
}

TEST_F(CellTest, RevisionsOfAnEtcdBeforeItWasRestoredVouchForNothing) {
  StartCell(2);
  const auto backup = cell_.etcd.TakeBackup();
  for (const std::uint64_t key : {5, 6})
    ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(key)})).has_value());
  // On its way to a member that joins after the restore, which nobody else is left to notice.
  const Answered before = *member(1).Answering();
  cell_.Kill(node(0));
  cell_.Kill(node(1));
  cell_.etcd.Restore(*backup);
  cell_.Start(cell_.Add("c"));
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(2).joined(); }));
  ASSERT_EQ(member(2).state().history, before.history);
  const std::vector<BlockKey> chain = {KeyOf(1)};
  std::vector<std::uint64_t> notes;
  EXPECT_TRUE(member(2).Behind(before));
  EXPECT_EQ(member(2).Admit(before, name_, chain, &notes), Verdict::kBehind);
  Commit(CellKeys("/cistern/").Drops() + "x", EncodeBatch({DropOfKeys(name_, {KeyOf(1)})}));
  ASSERT_LE(cell_.etcd.header().revision, before.a);
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(2).drops().size() > 0; }));
  EXPECT_EQ(member(2).Admit(before, name_, chain, &notes), Verdict::kBehind);
}

TEST_F(CellTest, AnotherClusterBeginsAnotherHistory) {
  StartCell(2);
  const std::uint64_t history = member(0).state().history;
  Put(1, {KeyOf(1)});
  cell_.etcd.Restore(*cell_.etcd.TakeBackup(), true);
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return member(1).state().history != history; }));
  EXPECT_FALSE(Has(1, KeyOf(1)));
}

TEST_F(CellTest, TwoMembersWithOneId) {
  StartCell(2);
  // On another host: it waits, and says why.
  TestNode& clone = cell_.Add("a", "other");
  clone.boot = 2;
  cell_.Start(clone);
  cell_.RunFor(15 * kSecond);
  EXPECT_FALSE(clone.member->joined());
  EXPECT_THAT(std::string(clone.member->why().message()), HasSubstr("two members with one id"));
  EXPECT_TRUE(member(0).joined());
  // The first one is cut off until its membership lapses: the other one takes over, and the first one stops.
  cell_.etcd.Cut("a");
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return clone.member->joined(); }));
  EXPECT_LT(member(0).valid_until(), cell_.clock.Now());
  cell_.etcd.Heal("a");
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] {
    return !member(0).joined() &&
           member(0).why().message().find("two members with one id") != std::string::npos;
  }));
  EXPECT_TRUE(clone.member->joined());
  cell_.Kill(clone);
  EXPECT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return member(0).joined(); }));
}

TEST_F(CellTest, TwoMembersWithOneIdOnOneBootDoNotTakeItFromEachOther) {
  StartCell(2);
  TestNode& clone = cell_.Add("a", "a2");
  cell_.Start(clone);
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return member(0).ended(); }));
  EXPECT_THAT(std::string(member(0).why().message()), HasSubstr("two members with one id"));
  cell_.RunFor(30 * kSecond);
  EXPECT_TRUE(clone.member->joined());
}

TEST_F(CellTest, RestartOnTheSameBootTakesItsMembershipOverAtOnce) {
  StartCell(2);
  cell_.Kill(node(0));
  cell_.Start(node(0));
  EXPECT_TRUE(cell_.RunUntil(kSecond, [this] { return member(0).joined(); }));
}

TEST_F(CellTest, MemberWithoutAKeyOfTheCellIsRefusedByName) {
  cell_.Add("a").cell_keys.resize(1);
  cell_.Start(node(0));
  ASSERT_TRUE(Settled());
  TestNode& stranger = cell_.Add("b");
  stranger.cell_keys.resize(1);
  stranger.cell_keys[0].bytes[0] = std::byte{1};
  cell_.Start(stranger);
  ASSERT_TRUE(cell_.RunUntil(10 * kSecond, [&] { return stranger.member->ended(); }));
  EXPECT_EQ(stranger.member->why().code(), Code::kMismatch);
  EXPECT_THAT(std::string(stranger.member->why().message()), HasSubstr("cell key"));
}

TEST_F(CellTest, CellGoesFromOneKeyToTheOther) {
  net::CellKey first, second;
  second.bytes.fill(std::byte{2});
  using Keys = std::vector<net::CellKey>;
  // Also where somebody leaves out that each key is used while the other one is accepted.
  for (const std::vector<Keys>& way :
       {std::vector<Keys>{{first, second}, {second, first}, {second}}, {{second, first}, {first}}}) {
    for (const Keys& keys : way) {
      for (std::size_t i = 0; i < 2; ++i) {
        const bool starts = cell_.nodes.size() <= i;
        if (starts) cell_.Add(i == 0 ? "a" : "b").cell_keys = {first};
        if (starts) cell_.Start(node(i));
        ASSERT_TRUE(Settled());
        if (starts) Put(i, {KeyOf(i)});
      }
      for (std::size_t i = 0; i < 2; ++i) {
        cell_.Kill(node(i));
        node(i).cell_keys = keys;
        cell_.Start(node(i));
        ASSERT_TRUE(Settled());
      }
    }
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(Has(i, KeyOf(i)));  // the history is the same one
  }
}

TEST_F(CellTest, KeyThatTheCellHasLeftIsRefusedByName) {
  net::CellKey first, second;
  second.bytes.fill(std::byte{2});
  cell_.Add("a").cell_keys = {first};
  cell_.Add("b").cell_keys = {first};
  for (std::size_t i = 0; i < 2; ++i) cell_.Start(node(i));
  ASSERT_TRUE(Settled());
  for (const std::vector<net::CellKey>& keys :
       {std::vector{first, second}, std::vector{second, first}, std::vector{second}}) {
    for (std::size_t i = 0; i < 2; ++i) {
      cell_.Kill(node(i));
      node(i).cell_keys = keys;
      cell_.Start(node(i));
      ASSERT_TRUE(Settled());
      // Whoever accepts the first key yet joins again, and takes nothing back.
      cell_.Kill(node(1));
      cell_.Start(node(1));
      ASSERT_TRUE(Settled());
    }
  }
  TestNode& old = cell_.Add("c");
  old.cell_keys = {first};
  cell_.Start(old);
  ASSERT_TRUE(cell_.RunUntil(10 * kSecond, [&] { return old.member->ended(); }));
  EXPECT_THAT(std::string(old.member->why().message()), HasSubstr("cell key"));
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}));
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  EXPECT_EQ(dropped->members, 2u);
}

TEST_F(CellTest, DropsDoNotWaitForAMemberThatHasEnded) {
  net::CellKey first, second;
  second.bytes.fill(std::byte{2});
  cell_.Add("a").cell_keys = {first};
  cell_.Start(node(0));
  ASSERT_TRUE(Settled());
  cell_.Add("b").cell_keys = {first, second};
  for (int starts = 0; starts < 2; ++starts) {
    cell_.Kill(node(1));
    cell_.Start(node(1));
    ASSERT_TRUE(Settled());
    cell_.RunFor(kSecond);  // it remembers the history
  }
  const auto client = cell_.etcd.Client("somebody");
  const CellKeys keys("/cistern/");
  const std::vector<net::CellKey> later = {second};
  const Instant deadline = cell_.clock.Now().PlusUs(kSecond);
  const auto replaced = cell_.loop->BlockOn(ReplaceHistory(*client, keys, later, 77, deadline));
  ASSERT_TRUE(replaced.has_value()) << replaced.error().ToString();
  ASSERT_TRUE(cell_.RunUntil(10 * kSecond, [&] { return member(0).ended() && member(1).joined(); }));
  const auto dropped = cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 30 * kSecond);
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  EXPECT_EQ(dropped->members, 1u);
}

TEST_F(CellTest, DropWhoseAnswerWasLostIsWrittenOnce) {
  StartCell(2);
  cell_.etcd.LoseAnswers("a", 1);
  const std::int64_t before = cell_.etcd.header().revision;
  const auto receipt = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 10 * kSecond);
  ASSERT_TRUE(receipt.has_value()) << receipt.error().ToString();
  EXPECT_EQ(receipt->revision, before + 1);
  EXPECT_EQ(cell_.etcd.header().revision, before + 1);
}

TEST_F(CellTest, DropsUnderWayEndWithTheirMemberAndSayHowFarTheyCame) {
  StartCell(2);
  cell_.etcd.Cut("b");
  auto dropping = member(0).Drop(DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied,
                                 cell_.clock.Now().PlusUs(60 * kSecond));
  cell_.RunFor(kSecond);
  ASSERT_FALSE(dropping.done());
  member(0).EndDrops();
  const auto ended = cell_.loop->BlockOn(std::move(dropping));
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code(), Code::kTooLate) << "kGone says that nothing was dropped";
  EXPECT_THAT(std::string(ended.error().message()), HasSubstr("1 of 2 members"));
  EXPECT_EQ(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(2)})).error().code(), Code::kGone);
}

TEST_F(CellTest, DropThatMayHaveBeenWrittenIsNotSaidToBeNoneWhateverEtcdSaysLast) {
  StartCell(2);
  cell_.etcd.LoseAnswers("a", 1);
  auto dropping = member(0).Drop(DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied,
                                 cell_.clock.Now().PlusUs(60 * kSecond));
  cell_.RunFor(10'000);  // it is written
  cell_.etcd.Stop();
  cell_.RunFor(5 * kSecond);
  ASSERT_FALSE(dropping.done());
  member(0).EndDrops();
  const auto ended = cell_.loop->BlockOn(std::move(dropping));
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code(), Code::kTooLate) << ended.error().ToString();
}

TEST_F(CellTest, LeavingMemberIsNotWaitedFor) {
  StartCell(2);
  cell_.loop->BlockOn(member(1).Leave(cell_.clock.Now().PlusUs(kSecond)));
  const auto receipt = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, kSecond);
  ASSERT_TRUE(receipt.has_value()) << receipt.error().ToString();
  EXPECT_EQ(receipt->members, 1u);
}

TEST_F(CellTest, NothingIsKeptOfAMemberThatLeft) {
  StartCell(3);
  const std::uint64_t left = member(1).options().process_number;
  const auto heard_of_it = [&] { return member(0).state().heard.contains(left); };
  ASSERT_TRUE(cell_.RunUntil(kSecond, heard_of_it));
  cell_.loop->BlockOn(member(1).Leave(cell_.clock.Now().PlusUs(kSecond)));
  // Its key goes first, and its connection later.
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return member(0).state().view.members.size() == 2; }));
  cell_.Kill(node(1));
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return !member(0).Reaches(left); }));
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  EXPECT_FALSE(heard_of_it());
}

TEST_F(CellTest, BatchThatCannotBeReadDropsEverything) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  Commit(CellKeys("/cistern/").Drops() + "x", "of a later version");
  ASSERT_TRUE(cell_.RunUntil(kSecond, [this] { return !Has(1, KeyOf(1)) && cell_.AllJoined(); }));
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
}

}  // namespace
}  // namespace cistern::mesh
