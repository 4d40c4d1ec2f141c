// SPDX-License-Identifier: Apache-2.0
// The faults of the simulated etcd, each as its header says.
#include "etcd/simulated.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/event.h"
#include "base/format.h"
#include "io/simulated_loop.h"

namespace cistern::etcd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SimulatedEtcdTest : public ::testing::Test {
 protected:
  Instant After(std::int64_t us) const { return clock_.Now().PlusUs(us); }
  Result<TransactionAnswer> Put(Etcd& etcd, std::string key, std::string value, std::int64_t lease = 0) {
    return loop_->BlockOn(etcd.Commit(PutOf(std::move(key), std::move(value), lease), After(kSoonUs)));
  }
  static Transaction PutOf(std::string key, std::string value, std::int64_t lease = 0) {
    return {.then = {{.keys = {std::move(key), ""}, .value = std::move(value), .lease = lease}}};
  }
  Code CodeOfPut(Etcd& etcd, std::string key) {
    const auto answer = Put(etcd, std::move(key), "");
    return answer ? Code::kOk : answer.error().code();
  }
  Result<RangeAnswer> Range(Etcd& etcd, std::string key) {
    return loop_->BlockOn(etcd.Range({.keys = {std::move(key), ""}}, After(kSoonUs)));
  }
  std::int64_t Count(Etcd& etcd, const std::string& key) {
    const auto answer = Range(etcd, key);
    return answer ? static_cast<std::int64_t>(answer->keys.size()) : -1;
  }
  // The values that come, until nothing comes any more or the watch ends.
  std::vector<std::string> Values(Watch& watch) {
    std::vector<std::string> values;
    for (;;) {
      auto events = loop_->BlockOn(watch.Next(After(kSoonUs)));
      if (!events) {
        end_ = events.error();
        return values;
      }
      for (const WatchEvent& event : *events)
        values.push_back(event.kind == WatchEvent::Kind::kPut ? event.key.value : "deleted");
    }
  }
  void Sleep(std::int64_t us) {
    Event never;
    loop_->BlockOn([](Executor&, Event& event, Instant until) -> Task<void> {
      (void)co_await event.Wait(until);
    }(loop_->executor(), never, After(us)));
  }

  static constexpr std::int64_t kSoonUs = 100'000;
  SimulatedClock clock_;
  io::SimulatedDisk disk_{1};
  std::unique_ptr<io::SimulatedLoop> loop_ = std::move(*io::SimulatedLoop::Make(clock_, disk_, 1));
  SimulatedEtcd etcd_{loop_->executor(), 7};
  std::unique_ptr<Etcd> a_ = etcd_.Client("a"), b_ = etcd_.Client("b");
  Status end_;
};

TEST_F(SimulatedEtcdTest, AnswersAndEventsTakeTheirLag) {
  etcd_.SetLags({.answer_us = 10'000, .event_us = 50'000});
  const auto watch = b_->WatchFrom({"k", ""}, 1);
  const Instant before = clock_.Now();
  ASSERT_TRUE(Put(*a_, "k", "1"));
  EXPECT_GE(clock_.Now().UsSince(before), 5'000) << "of simulated time";
  EXPECT_LE(clock_.Now().UsSince(before), 15'000);
  ASSERT_TRUE(loop_->BlockOn(watch->Next(After(kSoonUs))));
  EXPECT_GE(clock_.Now().UsSince(before), 25'000);
}

TEST_F(SimulatedEtcdTest, ASilentEtcdSaysNothingUntilItWakes) {
  const auto watch = b_->WatchFrom({"k", ""}, 1);
  etcd_.FallSilent();
  EXPECT_EQ(CodeOfPut(*a_, "k"), Code::kTooLate);
  auto waits = a_->Commit(PutOf("k", "2"), After(10'000'000));
  EXPECT_THAT(Values(*watch), ElementsAre());
  EXPECT_EQ(end_.code(), Code::kTooLate) << "no error";
  etcd_.Wake();
  ASSERT_TRUE(loop_->BlockOn(std::move(waits)));
  EXPECT_THAT(Values(*watch), Contains("2"));
}

TEST_F(SimulatedEtcdTest, OfTheQuestionsToASilentEtcdWhoseAskersHaveGoneSomeTakeEffect) {
  etcd_.FallSilent();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(CodeOfPut(*a_, Text("k", i)), Code::kTooLate);
  etcd_.Wake();
  Sleep(10'000);
  const auto range = loop_->BlockOn(a_->Range({.keys = KeyRange::Prefix("k")}, After(kSoonUs)));
  ASSERT_TRUE(range);
  EXPECT_GT(range->keys.size(), 5u);
  EXPECT_LT(range->keys.size(), 35u);
}

TEST_F(SimulatedEtcdTest, ACutIsOneClientsAlone) {
  const auto cut = a_->WatchFrom({"k", ""}, 1), whole = b_->WatchFrom({"k", ""}, 1);
  etcd_.Cut("a");
  ASSERT_TRUE(Put(*b_, "k", "1"));
  EXPECT_THAT(Values(*whole), ElementsAre("1"));
  EXPECT_THAT(Values(*cut), ElementsAre());
  EXPECT_EQ(end_.code(), Code::kTooLate);
  EXPECT_EQ(CodeOfPut(*a_, "k"), Code::kTooLate);
  etcd_.Heal("a");
  EXPECT_EQ(Values(*cut).front(), "1");
  EXPECT_TRUE(Put(*a_, "k", "2"));
}

TEST_F(SimulatedEtcdTest, AnAnswerThatIsLostLeavesItsTransactionInEffect) {
  etcd_.LoseAnswers("a", 1);
  EXPECT_EQ(CodeOfPut(*a_, "k"), Code::kTooLate);
  EXPECT_EQ(Count(*b_, "k"), 1);
  EXPECT_EQ(CodeOfPut(*a_, "l"), Code::kOk);
}

TEST_F(SimulatedEtcdTest, AStoppedEtcdBreaksWhatIsUnderWayAndIsGoneUntilItStarts) {
  const auto watch = a_->WatchFrom({"k", ""}, 1);
  ASSERT_TRUE(Put(*a_, "k", "1"));
  EXPECT_THAT(Values(*watch), ElementsAre("1"));
  auto under_way = a_->Range({.keys = {"k", ""}}, After(kSoonUs));
  etcd_.Stop();
  EXPECT_EQ(loop_->BlockOn(std::move(under_way)).error().code(), Code::kTooLate);
  EXPECT_EQ(CodeOfPut(*a_, "k"), Code::kGone);
  EXPECT_THAT(Values(*watch), ElementsAre());
  EXPECT_EQ(end_.code(), Code::kGone);
  etcd_.Start();
  EXPECT_EQ(Count(*a_, "k"), 1);
  ASSERT_TRUE(Put(*a_, "k", "2"));
  const auto again = a_->WatchFrom({"k", ""}, watch->next_revision());
  EXPECT_THAT(Values(*again), ElementsAre("2"));
}

TEST_F(SimulatedEtcdTest, ARestoredEtcdIsAtALowerRevisionOfTheSameCluster) {
  ASSERT_TRUE(Put(*a_, "k", "1"));
  const auto backup = etcd_.TakeBackup();
  const Header then = etcd_.header();
  for (int i = 2; i < 9; ++i) ASSERT_TRUE(Put(*a_, "k", Text(i)));
  const auto watch = a_->WatchFrom({"k", ""}, etcd_.header().revision + 1);
  etcd_.Restore(*backup);
  EXPECT_EQ(etcd_.header().revision, then.revision);
  EXPECT_EQ(etcd_.header().cluster_id, then.cluster_id);
  EXPECT_EQ(Range(*a_, "k")->keys.at(0).value, "1");
  EXPECT_THAT(Values(*watch), ElementsAre());
  EXPECT_EQ(end_.code(), Code::kGone);
  // A watch that goes on where it was misses what comes until etcd is there again.
  const auto again = a_->WatchFrom({"k", ""}, watch->next_revision());
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Put(*a_, "k", Text("new ", i)));
  EXPECT_THAT(Values(*again), ElementsAre("new 7"));
}

TEST_F(SimulatedEtcdTest, ARestoredEtcdMayBeAnotherCluster) {
  const Header before = etcd_.header();
  etcd_.Restore(*etcd_.TakeBackup(), true);
  EXPECT_NE(etcd_.header().cluster_id, before.cluster_id);
  EXPECT_EQ(Range(*a_, "k")->header.cluster_id, etcd_.header().cluster_id);
}

TEST_F(SimulatedEtcdTest, WatchesAreCancelledOrFallSilentWhileCallsAreAnswered) {
  auto watch = a_->WatchFrom({"k", ""}, 1);
  etcd_.CancelWatches();
  Values(*watch);
  EXPECT_EQ(end_.code(), Code::kGone);
  watch = a_->WatchFrom({"k", ""}, 1);
  etcd_.SilenceWatches();
  ASSERT_TRUE(Put(*a_, "k", "1"));
  EXPECT_THAT(Values(*watch), ElementsAre());
  EXPECT_EQ(end_.code(), Code::kTooLate);
  watch = a_->WatchFrom({"k", ""}, 1);
  EXPECT_THAT(Values(*watch), ElementsAre("1"));
}

TEST_F(SimulatedEtcdTest, AWatchThatLagsBehindACompactionHasLapsed) {
  const auto watch = a_->WatchFrom({"k", ""}, 1);
  etcd_.Cut("a");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Put(*b_, "k", Text(i)));
  etcd_.Compact(etcd_.header().revision);
  etcd_.Heal("a");
  EXPECT_THAT(Values(*watch), ElementsAre());
  EXPECT_EQ(end_.code(), Code::kLapsed);
  EXPECT_EQ(watch->compact_revision(), etcd_.header().revision);
}

TEST_F(SimulatedEtcdTest, AWatchThatNobodyReadsEndsPastItsBoundAfterWhatItHas) {
  const auto watch = a_->WatchFrom(KeyRange::Prefix(""), 1);
  constexpr std::size_t kValueBytes = Limits::kRequestBytes / 2;
  std::size_t count = 0;
  for (; count * kValueBytes <= Limits::kUnreadBytes; ++count)
    ASSERT_TRUE(Put(*a_, "k", std::string(kValueBytes, 'v')));
  const std::size_t had = Values(*watch).size();
  EXPECT_EQ(end_.code(), Code::kBusy);
  EXPECT_GE(had * (kValueBytes + 1 + Limits::kEventBytes), Limits::kUnreadBytes);
  EXPECT_EQ(watch->next_revision(), static_cast<std::int64_t>(2 + had));
}

TEST_F(SimulatedEtcdTest, LeasesLapseOnTimeAndNotWhileEtcdStandsStill) {
  const auto lease = loop_->BlockOn(a_->Grant(10, After(kSoonUs)));
  ASSERT_TRUE(lease);
  ASSERT_TRUE(Put(*a_, "k", "1", lease->id));
  Sleep(9'900'000);
  EXPECT_EQ(loop_->BlockOn(a_->KeepAlive(lease->id, After(kSoonUs)))->ttl_s, 10);
  Sleep(9'900'000);
  EXPECT_EQ(Count(*b_, "k"), 1);
  etcd_.FallSilent();
  Sleep(60'000'000);
  etcd_.Wake();
  EXPECT_EQ(Count(*b_, "k"), 1) << "it has not looked yet";
  Sleep(1'000'000);
  EXPECT_EQ(Count(*b_, "k"), 0);
}

TEST_F(SimulatedEtcdTest, ARestartGivesLeasesAllTheirTimeAgain) {
  const auto lease = loop_->BlockOn(a_->Grant(10, After(kSoonUs)));
  ASSERT_TRUE(Put(*a_, "k", "1", lease->id));
  Sleep(9'000'000);
  etcd_.Stop();
  etcd_.Start();
  Sleep(9'500'000);
  EXPECT_EQ(Count(*b_, "k"), 1);
  Sleep(1'500'000);
  EXPECT_EQ(Count(*b_, "k"), 0);
}

TEST_F(SimulatedEtcdTest, LostLeasesTakeTheirKeysAlong) {
  const auto lease = loop_->BlockOn(a_->Grant(1'000, After(kSoonUs)));
  ASSERT_TRUE(Put(*a_, "k", "1", lease->id));
  etcd_.LoseLeases();
  EXPECT_EQ(Count(*a_, "k"), 0);
  EXPECT_EQ(loop_->BlockOn(a_->KeepAlive(lease->id, After(kSoonUs)))->ttl_s, 0);
}

TEST_F(SimulatedEtcdTest, AFullEtcdTakesDeletesAndNothingElseThatChanges) {
  ASSERT_TRUE(Put(*a_, "k", "1"));
  etcd_.SetFull(true);
  EXPECT_EQ(CodeOfPut(*a_, "l"), Code::kBusy) << "which may have taken effect";
  EXPECT_EQ(CodeOfPut(*a_, "m"), Code::kBusy);
  EXPECT_EQ(Count(*a_, "m"), 0);
  EXPECT_EQ(loop_->BlockOn(a_->Grant(10, After(kSoonUs))).error().code(), Code::kBusy);
  Transaction deletes{.then = {{.kind = Operation::Kind::kDelete, .keys = {"k", ""}}}};
  EXPECT_TRUE(loop_->BlockOn(a_->Commit(deletes, After(kSoonUs))));
  EXPECT_EQ(Count(*a_, "k"), 0);
  etcd_.SetFull(false);
  EXPECT_EQ(CodeOfPut(*a_, "m"), Code::kOk);
}

TEST_F(SimulatedEtcdTest, WhoIsAskedForALoginIsDenied) {
  etcd_.Deny("a");
  EXPECT_EQ(CodeOfPut(*a_, "k"), Code::kDenied);
  EXPECT_EQ(CodeOfPut(*b_, "k"), Code::kOk);
  const auto watch = a_->WatchFrom({"k", ""}, 1);
  Values(*watch);
  EXPECT_EQ(end_.code(), Code::kDenied);
  etcd_.Admit("a");
  EXPECT_EQ(CodeOfPut(*a_, "k"), Code::kOk);
}

// What happened in a run under chances of every kind.
std::string RunOf(std::uint64_t seed) {
  SimulatedClock clock;
  io::SimulatedDisk disk(1);
  auto loop = std::move(*io::SimulatedLoop::Make(clock, disk, 1));
  SimulatedEtcd etcd(loop->executor(), seed);
  etcd.SetChances({.lost_question = 0.05,
                   .lost_answer = 0.05,
                   .broken_call = 0.05,
                   .slow = 0.05,
                   .cancelled_watch = 0.05,
                   .silent_watch = 0.02,
                   .split = 0.3});
  const auto client = etcd.Client("a");
  std::unique_ptr<Watch> watch = client->WatchFrom(KeyRange::Prefix(""), 1);
  std::string log;
  std::vector<std::string> seen;
  for (int i = 0; i < 200; ++i) {
    Transaction put{.then = {{.keys = {Text("k", i), ""}}}};
    const auto answer = loop->BlockOn(client->Commit(std::move(put), clock.Now().PlusUs(20'000)));
    log += answer ? Text(answer->header.revision, " ") : Text(CodeName(answer.error().code()), " ");
    const auto events = loop->BlockOn(watch->Next(clock.Now().PlusUs(3'000)));
    if (events) {
      for (const WatchEvent& event : *events) seen.push_back(event.key.key);
    } else if (events.error().code() != Code::kTooLate || i % 20 == 19) {
      const std::int64_t next = watch->next_revision();
      watch = client->WatchFrom(KeyRange::Prefix(""), next);
      log += Text("watch from ", next, " ");
    }
  }
  etcd.SetChances({});
  watch = client->WatchFrom(KeyRange::Prefix(""), watch->next_revision());
  while (auto events = loop->BlockOn(watch->Next(clock.Now().PlusUs(1'000'000)))) {
    for (const WatchEvent& event : *events) seen.push_back(event.key.key);
  }
  // Whatever went wrong: each change once, in order of revisions.
  const auto range = loop->BlockOn(client->Range({.keys = KeyRange::Prefix("")}, Instant::Never()));
  EXPECT_EQ(seen.size(), range->keys.size());
  EXPECT_EQ(etcd.header().revision, static_cast<std::int64_t>(range->keys.size()) + 1);
  for (const std::string& key : seen) log += key;
  return log;
}

TEST(SimulatedEtcdRun, TheSameSeedIsTheSameRunAndAnotherSeedAnother) {
  const std::string one = RunOf(1);
  EXPECT_EQ(RunOf(1), one);
  EXPECT_NE(RunOf(2), one);
  EXPECT_THAT(one, HasSubstr("too_late"));
  EXPECT_THAT(one, HasSubstr("watch from"));
}

}  // namespace
}  // namespace cistern::etcd
