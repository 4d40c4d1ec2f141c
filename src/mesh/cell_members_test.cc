// SPDX-License-Identifier: Apache-2.0
// Members of a cell: how they join, are known, reached and refused, and how they leave.
#include <gmock/gmock.h>

#include <optional>

#include "mesh/peer_message.h"
#include "mesh/test_members.h"

namespace cistern::mesh {
namespace {

using ::testing::HasSubstr;

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

// Whoever looks for a firewall looks in vain: the way is known.
TEST_F(CellTest, MemberWhoseConnectionStoodIsSaidToHaveLostItAndWhy) {
  StartCell(2);
  ASSERT_TRUE(Settled());
  cell_.network.Cut("a", "b");
  ASSERT_TRUE(
      cell_.RunUntil(5 * kSecond, [this] { return member(0).reachable() + member(1).reachable() == 0; }));
  const std::string to_dial = member(0).WhyApart("b"), to_wait = member(1).WhyApart("a");
  EXPECT_THAT(to_dial, HasSubstr("its connection ended 0 s ago ("));
  EXPECT_THAT(to_dial, HasSubstr("it cannot be reached at "));
  EXPECT_THAT(to_wait, HasSubstr("has been silent for "));
  EXPECT_THAT(to_wait, HasSubstr("); it is to connect anew to this node at "));
  cell_.network.Heal("a", "b");
  cell_.network.Heal("b", "a");
  ASSERT_TRUE(
      cell_.RunUntil(20 * kSecond, [this] { return member(0).reachable() + member(1).reachable() == 2; }));
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
  EXPECT_TRUE(member(1).stands());
  boot.slept_us += 3600 * kSecond;
  EXPECT_LE(member(1).valid_until(), boot.Now());
  EXPECT_FALSE(member(1).stands());
  // A renewal under way is of before.
  cell_.RunFor(6 * kSecond);
  EXPECT_GT(member(1).valid_until(), boot.Now());
  EXPECT_LE(member(1).valid_until().UsSince(boot.Now()), CellLimits::kLeaseS * kSecond);
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
  net::CellKey another;
  another.bytes[0] = std::byte{1};
  ExpectRefused("b", another);
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
        // Checks that another one has written are no reason to join again, by a look or a reading of all.
        RaiseTo(cell_.etcd.header().revision + 3);
        cell_.etcd.Compact(cell_.etcd.header().revision);
        cell_.etcd.CancelWatches();
        EXPECT_FALSE(cell_.RunUntil(2 * CellLimits::kLookUs, [this] { return !cell_.AllJoined(); }));
      }
    }
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(Has(i, KeyOf(i)));  // the history is the same one
  }
}

// As after reboots: what a node knows of the cell is gone.
TEST_F(CellTest, CellOfNodesThatBeginEmptyGoesFromOneKeyToTheOther) {
  net::CellKey first, second;
  second.bytes.fill(std::byte{2});
  for (const char* id : {"a", "b"}) {
    TestNode& node = cell_.Add(id);
    node.cell_keys = {first};
    cell_.Start(node);
  }
  ASSERT_TRUE(Settled());
  for (const std::vector<net::CellKey>& keys :
       {std::vector{first, second}, std::vector{second, first}, std::vector{second}}) {
    for (std::size_t i = 0; i < 2; ++i) {
      cell_.Kill(node(i));
      node(i).medium = ModelMedium();
      node(i).cell_keys = keys;
      cell_.Start(node(i));
      ASSERT_TRUE(Settled());
    }
  }
  ExpectRefused("c", first);
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
  ExpectRefused("c", first);
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}));
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  EXPECT_EQ(dropped->members, 2u);
}

TEST_F(CellTest, LeavingMemberIsNotWaitedFor) {
  StartCell(2);
  cell_.loop->BlockOn(member(1).Leave(cell_.clock.Now().PlusUs(kSecond)));
  const auto receipt = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, kSecond);
  ASSERT_TRUE(receipt.has_value()) << receipt.error().ToString();
  EXPECT_EQ(receipt->members, 1u);
}

TEST_F(CellTest, MemberLeavesSoonHoweverSteadilyDropsCome) {
  StartCell(1);
  cell_.faults.sync_us = 100'000;
  cell_.Start(cell_.Add("b"));
  ASSERT_TRUE(Settled());
  const auto dropping = [](TestCell& cell, Member& by, SharedNamespace name) -> Task<void> {
    for (std::uint64_t n = 0;; ++n) {
      const std::vector<BlockKey> key(1, KeyOf(n));
      CellDrop drop = DropOfKeys(name, key);
      (void)co_await by.Drop(std::move(drop), DropWait::kDurable, cell.clock.Now().PlusUs(kSecond));
      (void)co_await SleepUntil(cell.clock.Now().PlusUs(2'000));
    }
  };
  node(0).calls->Spawn(dropping(cell_, member(0), name_));
  cell_.RunFor(kSecond);
  auto leaving = member(1).Leave(cell_.clock.Now().PlusUs(60 * kSecond));
  EXPECT_TRUE(cell_.RunUntil(2 * kSecond, [&] { return leaving.done(); }));
  cell_.Kill(node(0));
  cell_.loop->BlockOn(std::move(leaving));
}

// Its process goes on until its store has ended.
TEST_F(CellTest, NothingIsAskedOrKeptOfAMemberThatLeft) {
  StartCell(3);
  const std::uint64_t left = member(1).options().process_number;
  const auto heard_of_it = [&] { return member(0).state().heard.contains(left); };
  ASSERT_TRUE(cell_.RunUntil(kSecond, heard_of_it));
  cell_.loop->BlockOn(member(1).Leave(cell_.clock.Now().PlusUs(kSecond)));
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return member(0).state().view.members.size() == 2; }));
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return !member(0).Reaches(left); }));
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  EXPECT_FALSE(heard_of_it());
}

}  // namespace
}  // namespace cistern::mesh
