// SPDX-License-Identifier: Apache-2.0
// What etcd/etcd.h promises, of every etcd that stands behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "etcd/etcd.h"
#include "etcd/gateway.h"
#include "etcd/simulated.h"
#include "etcd/test_etcd.h"
#include "io/simulated_loop.h"

namespace cistern::etcd {
namespace {

using namespace std::literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// An etcd and two clients of it.
class World {
 public:
  virtual ~World() = default;
  virtual io::Loop& loop() = 0;
  virtual Etcd& etcd() = 0;
  virtual Etcd& other() = 0;
};

class SimulatedWorld final : public World {
 public:
  io::Loop& loop() override { return *loop_; }
  Etcd& etcd() override { return *one_; }
  Etcd& other() override { return *other_; }

 private:
  SimulatedClock clock_;
  io::SimulatedDisk disk_{1};
  std::unique_ptr<io::Loop> loop_ = std::move(*io::SimulatedLoop::Make(clock_, disk_, 1));
  SimulatedEtcd etcd_{loop_->executor(), 7};
  std::unique_ptr<Etcd> one_ = etcd_.Client("one"), other_ = etcd_.Client("other");
};

class RealWorld final : public World {
 public:
  RealWorld() {
    EXPECT_EQ(server_.Start().ToString(), "ok");
    one_ = std::move(*OpenGateway(*loop_, {.endpoints = {server_.endpoint()}}));
    other_ = std::move(*OpenGateway(*loop_, {.endpoints = {server_.endpoint()}}));
  }
  io::Loop& loop() override { return *loop_; }
  Etcd& etcd() override { return *one_; }
  Etcd& other() override { return *other_; }

 private:
  TestEtcd server_;
  SystemClock clock_;
  std::unique_ptr<io::Loop> loop_ = std::move(*io::MakeLoop(clock_));
  std::unique_ptr<Etcd> one_, other_;
};

std::vector<std::string> Names(const RangeAnswer& answer) {
  std::vector<std::string> names;
  for (const KeyValue& key : answer.keys) names.push_back(key.key);
  return names;
}

Operation PutOf(std::string key, std::string value, std::int64_t lease = 0) {
  return {.keys = {std::move(key), ""}, .value = std::move(value), .lease = lease};
}
Operation DeleteOf(KeyRange keys) { return {.kind = Operation::Kind::kDelete, .keys = std::move(keys)}; }
Operation RangeOf(KeyRange keys, std::int64_t limit = 0) {
  return {.kind = Operation::Kind::kRange, .keys = std::move(keys), .limit = limit};
}

class EtcdTest : public ::testing::TestWithParam<std::unique_ptr<World> (*)()> {
 protected:
  void SetUp() override {
    world_ = GetParam()();
    if (world_ == nullptr) GTEST_SKIP() << "no etcd is installed";
  }
  Etcd& etcd() { return world_->etcd(); }
  Instant Soon() { return world_->loop().clock().Now().PlusUs(60'000'000); }
  Instant Past() { return world_->loop().clock().Now(); }

  template <class T>
  Result<T> Await(Task<Result<T>> task) {
    Result<T> result = world_->loop().BlockOn(std::move(task));
    if (!result) ADD_FAILURE() << result.error().ToString();
    return result;
  }
  TransactionAnswer Commit(Transaction transaction) {
    return Await(etcd().Commit(std::move(transaction), Soon())).value_or(TransactionAnswer());
  }
  std::int64_t Change(std::vector<Operation> operations) {
    return Commit({.then = std::move(operations)}).header.revision;
  }
  std::int64_t Put(std::string key, std::string value, std::int64_t lease = 0) {
    return Change({PutOf(std::move(key), std::move(value), lease)});
  }
  RangeAnswer Range(RangeRequest request) {
    return Await(etcd().Range(std::move(request), Soon())).value_or(RangeAnswer());
  }
  Code CodeOfRange(RangeRequest request) {
    const auto answer = world_->loop().BlockOn(etcd().Range(std::move(request), Soon()));
    return answer ? Code::kOk : answer.error().code();
  }
  Code CodeOfCommit(Transaction transaction) {
    const auto answer = world_->loop().BlockOn(etcd().Commit(std::move(transaction), Soon()));
    return answer ? Code::kOk : answer.error().code();
  }
  Status Compact(std::int64_t revision) { return world_->loop().BlockOn(etcd().Compact(revision, Soon())); }
  std::int64_t Grant(std::int64_t ttl_s = 600) {
    return Await(etcd().Grant(ttl_s, Soon())).value_or(LeaseAnswer()).id;
  }
  // As many changes as are asked for, or more.
  std::vector<WatchEvent> Changes(Watch& watch, std::size_t count) {
    std::vector<WatchEvent> all;
    while (all.size() < count) {
      auto next = Await(watch.Next(Soon()));
      if (!next) break;
      EXPECT_FALSE(next->empty());
      all.insert(all.end(), next->begin(), next->end());
    }
    return all;
  }
  Status EndOf(Watch& watch) {
    for (;;) {
      auto next = world_->loop().BlockOn(watch.Next(Soon()));
      if (!next) return next.error();
    }
  }

  std::unique_ptr<World> world_;
};

TEST_P(EtcdTest, AKeyHasItsLastValueAndBothRevisions) {
  const std::int64_t first = Put("a", "1");
  const std::int64_t second = Put("a", "2");
  EXPECT_EQ(second, first + 1);
  const RangeAnswer answer = Range({.keys = {"a", ""}});
  ASSERT_THAT(answer.keys, SizeIs(1));
  EXPECT_EQ(answer.keys[0].key, "a");
  EXPECT_EQ(answer.keys[0].value, "2");
  EXPECT_EQ(answer.keys[0].create_revision, first);
  EXPECT_EQ(answer.keys[0].mod_revision, second);
  EXPECT_EQ(answer.keys[0].lease, 0);
  EXPECT_EQ(answer.header.revision, second);
  EXPECT_NE(answer.header.cluster_id, 0u);
  EXPECT_THAT(Range({.keys = {"b", ""}}).keys, IsEmpty());
}

TEST_P(EtcdTest, KeysAndValuesAreAnyBytes) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  std::vector<Operation> puts = {PutOf("empty", "")};
  for (std::size_t length = 1; length <= 5; ++length) puts.push_back(PutOf(bytes.substr(250, length), bytes));
  puts.push_back(PutOf("\0"s, "zero"));
  puts.push_back(PutOf(bytes, bytes.substr(0, 7)));
  const std::size_t count = puts.size();
  Change(std::move(puts));
  const RangeAnswer answer = Range({.keys = KeyRange::Prefix("")});
  ASSERT_THAT(answer.keys, SizeIs(count));
  EXPECT_EQ(answer.keys[0].key, "\0"s);
  EXPECT_EQ(answer.keys[1].key, bytes);
  EXPECT_EQ(answer.keys[1].value, bytes.substr(0, 7));
  EXPECT_EQ(answer.keys[2].value, "");
  for (std::size_t length = 1; length <= 5; ++length) {
    EXPECT_EQ(answer.keys[2 + length].key, bytes.substr(250, length));
    EXPECT_EQ(answer.keys[2 + length].value, bytes);
  }
}

TEST_P(EtcdTest, ARangeIsInOrderOfKeysUpToItsLimit) {
  Change({PutOf("cell/c", "3"), PutOf("cell/a", "1"), PutOf("cell0", "x"), PutOf("cell/b", "2"),
          PutOf("cel", "y")});
  const RangeAnswer all = Range({.keys = KeyRange::Prefix("cell/")});
  EXPECT_THAT(Names(all), ElementsAre("cell/a", "cell/b", "cell/c"));
  EXPECT_FALSE(all.more);
  const RangeAnswer two = Range({.keys = KeyRange::Prefix("cell/"), .limit = 2});
  EXPECT_THAT(Names(two), ElementsAre("cell/a", "cell/b"));
  EXPECT_TRUE(two.more);
  const RangeAnswer three = Range({.keys = KeyRange::Prefix("cell/"), .limit = 3});
  EXPECT_THAT(three.keys, SizeIs(3));
  EXPECT_FALSE(three.more);
  EXPECT_THAT(Names(Range({.keys = {"cell/b", "\0"s}})), ElementsAre("cell/b", "cell/c", "cell0"));
}

TEST_P(EtcdTest, ARangeAsOfARevisionIsWhatWasThereThen) {
  const std::int64_t first = Put("a", "1");
  Put("a", "2");
  Put("b", "x");
  const std::int64_t deleted = Change({DeleteOf({"a", ""})});
  const RangeAnswer then = Range({.keys = KeyRange::Prefix(""), .revision = first});
  ASSERT_THAT(Names(then), ElementsAre("a"));
  EXPECT_EQ(then.keys[0].value, "1");
  EXPECT_EQ(then.header.revision, deleted) << "the header says where etcd is now";
  EXPECT_THAT(Names(Range({.keys = KeyRange::Prefix(""), .revision = deleted - 1})), ElementsAre("a", "b"));
  EXPECT_THAT(Names(Range({.keys = KeyRange::Prefix(""), .revision = deleted})), ElementsAre("b"));
  EXPECT_EQ(CodeOfRange({.keys = {"a", ""}, .revision = deleted + 1}), Code::kMismatch);
}

TEST_P(EtcdTest, ConditionsOnKeysThatAreThereAndThatAreNot) {
  const std::int64_t created = Put("k", "old");
  const std::int64_t changed = Put("k", "value");
  using What = Compare::What;
  const struct {
    Compare condition;
    bool holds;
  } cases[] = {
      {{"k", What::kCreateRevision, created, ""}, true},
      {{"k", What::kCreateRevision, changed, ""}, false},
      {{"k", What::kModRevision, changed, ""}, true},
      {{"k", What::kModRevision, changed + 1, ""}, false},
      {{"k", What::kValue, 0, "value"}, true},
      {{"k", What::kValue, 0, "valu"}, false},
      {{"none", What::kCreateRevision, 0, ""}, true},
      {{"none", What::kModRevision, 0, ""}, true},
      {{"none", What::kModRevision, created, ""}, false},
      {{"none", What::kValue, 0, ""}, false},
  };
  for (const auto& [condition, holds] : cases) {
    EXPECT_EQ(Commit({.conditions = {condition}}).succeeded, holds)
        << condition.key << " " << int(condition.what) << " " << condition.number;
  }
  EXPECT_FALSE(Commit({.conditions = {cases[0].condition, cases[1].condition}}).succeeded) << "all must hold";
  EXPECT_TRUE(Commit({}).succeeded);
}

TEST_P(EtcdTest, ATransactionTakesOneSideWholeUnderOneRevision) {
  const std::int64_t before = Change({PutOf("a/1", "x"), PutOf("a/2", "x")});
  const TransactionAnswer taken = Commit({
      .conditions = {{.key = "lock", .what = Compare::What::kCreateRevision}},
      .then = {PutOf("lock", "mine"), RangeOf(KeyRange::Prefix("a/"), 1), DeleteOf(KeyRange::Prefix("a/")),
               RangeOf(KeyRange::Prefix("a/")), RangeOf({"lock", ""})},
      .otherwise = {PutOf("never", "")},
  });
  EXPECT_TRUE(taken.succeeded);
  EXPECT_EQ(taken.header.revision, before + 1);
  ASSERT_THAT(taken.ranges, SizeIs(3));
  EXPECT_THAT(Names(taken.ranges[0]), ElementsAre("a/1"));
  EXPECT_TRUE(taken.ranges[0].more);
  EXPECT_THAT(taken.ranges[1].keys, IsEmpty());
  ASSERT_THAT(taken.ranges[2].keys, SizeIs(1));
  EXPECT_EQ(taken.ranges[2].keys[0].value, "mine");
  EXPECT_EQ(taken.ranges[2].header.revision, before + 1);
  EXPECT_EQ(taken.ranges[2].header.cluster_id, taken.header.cluster_id);

  const TransactionAnswer refused = Commit({
      .conditions = {{.key = "lock", .what = Compare::What::kCreateRevision}},
      .then = {PutOf("lock", "yours")},
      .otherwise = {RangeOf({"lock", ""})},
  });
  EXPECT_FALSE(refused.succeeded);
  EXPECT_EQ(refused.header.revision, before + 1) << "nothing changed";
  ASSERT_THAT(refused.ranges, SizeIs(1));
  EXPECT_EQ(refused.ranges[0].keys.at(0).value, "mine");
  EXPECT_THAT(Range({.keys = {"never", ""}}).keys, IsEmpty());
}

TEST_P(EtcdTest, ADeleteOfWhatIsNotThereChangesNothing) {
  const std::int64_t before = Put("a", "");
  EXPECT_EQ(Change({DeleteOf({"b", ""}), DeleteOf(KeyRange::Prefix("c/"))}), before);
}

TEST_P(EtcdTest, WhatNoEtcdTakesIsInvalid) {
  EXPECT_EQ(CodeOfRange({.keys = {"", ""}}), Code::kInvalid);
  EXPECT_EQ(CodeOfRange({.keys = {"b", "a"}}), Code::kInvalid);
  EXPECT_EQ(CodeOfRange({.keys = {"b", ""}, .revision = -1}), Code::kInvalid);
  EXPECT_EQ(CodeOfCommit({.then = {PutOf("a", "1"), PutOf("a", "2")}}), Code::kInvalid);
  EXPECT_EQ(CodeOfCommit({.then = {PutOf("a/1", "1"), DeleteOf(KeyRange::Prefix("a/"))}}), Code::kInvalid);
  EXPECT_EQ(CodeOfCommit({.conditions = {Compare()}}), Code::kInvalid);
  EXPECT_EQ(CodeOfCommit({.otherwise = {PutOf("", "1")}}), Code::kInvalid);
  EXPECT_EQ(CodeOfCommit({.then = {PutOf("a", std::string(Limits::kRequestBytes, 'x'))}}), Code::kInvalid);
  EXPECT_EQ(CodeOfCommit({.then = std::vector<Operation>(Limits::kOperations + 1, RangeOf({"a", ""}))}),
            Code::kInvalid);
  for (const std::int64_t ttl_s : {std::int64_t{0}, std::int64_t{-1}, Limits::kLeaseTtlS + 1}) {
    const auto granted = world_->loop().BlockOn(etcd().Grant(ttl_s, Soon()));
    EXPECT_EQ(granted ? Code::kOk : granted.error().code(), Code::kInvalid) << ttl_s;
  }
}

TEST_P(EtcdTest, TheLongestAndTheLargestTransactionAreTaken) {
  std::vector<Operation> puts;
  std::vector<Compare> conditions;
  for (std::size_t i = 0; i < Limits::kOperations; ++i) {
    puts.push_back(PutOf(Text("key/", i), std::string(8'000, '\xff')));
    conditions.push_back({.key = Text("key/", i)});
  }
  EXPECT_TRUE(Commit({.conditions = conditions, .then = puts, .otherwise = {}}).succeeded);
  const RangeAnswer all = Range({.keys = KeyRange::Prefix("key/")});
  ASSERT_THAT(all.keys, SizeIs(Limits::kOperations));
  EXPECT_EQ(all.keys.at(77).value, puts[0].value);
}

TEST_P(EtcdTest, ChangesOfManyAtOnceHaveARevisionEach) {
  std::vector<Task<Result<TransactionAnswer>>> tasks;
  for (int i = 0; i < 60; ++i) {
    Etcd& from = i % 2 == 0 ? world_->etcd() : world_->other();
    tasks.push_back(from.Commit({.then = {PutOf(Text("key/", i), "x")}}, Soon()));
  }
  std::set<std::int64_t> revisions;
  for (auto& task : tasks)
    revisions.insert(Await(std::move(task)).value_or(TransactionAnswer()).header.revision);
  EXPECT_THAT(revisions, SizeIs(60));
  EXPECT_EQ(*revisions.rbegin() - *revisions.begin(), 59);
}

TEST_P(EtcdTest, ACallPastItsDeadlineIsTooLate) {
  const auto range = world_->loop().BlockOn(etcd().Range({.keys = {"a", ""}}, Past()));
  ASSERT_FALSE(range.has_value());
  EXPECT_EQ(range.error().code(), Code::kTooLate);
  Put("a", "1");
}

// ------------------------------------------------------------------------------------------------ leases

TEST_P(EtcdTest, ARevokedLeaseTakesItsKeysAlongUnderOneRevision) {
  const std::int64_t lease = Grant();
  EXPECT_GT(lease, 0);
  Put("a", "", lease);
  Put("b", "", lease);
  Put("c", "", lease);
  const std::int64_t last = Put("b", "stays");  // put again, without a lease
  EXPECT_EQ(Range({.keys = {"a", ""}}).keys.at(0).lease, lease);
  EXPECT_EQ(Range({.keys = {"b", ""}}).keys.at(0).lease, 0);
  EXPECT_EQ(world_->loop().BlockOn(etcd().Revoke(lease, Soon())).ToString(), "ok");
  EXPECT_EQ(world_->loop().BlockOn(etcd().Revoke(lease, Soon())).ToString(), "ok") << "it has ended";
  const RangeAnswer left = Range({.keys = KeyRange::Prefix("")});
  EXPECT_THAT(Names(left), ElementsAre("b"));
  EXPECT_EQ(left.header.revision, last + 1);
}

TEST_P(EtcdTest, ALeaseThatHasEndedIsNotRenewedAndNothingIsPutUnderIt) {
  const std::int64_t lease = Grant();
  const auto renewed = Await(etcd().KeepAlive(lease, Soon())).value_or(LeaseAnswer());
  EXPECT_EQ(renewed.ttl_s, 600);
  EXPECT_EQ(renewed.id, lease);
  EXPECT_NE(renewed.header.cluster_id, 0u);
  const std::int64_t before = Put("a", "1", lease);
  EXPECT_TRUE(world_->loop().BlockOn(etcd().Revoke(lease, Soon())).ok());
  EXPECT_EQ(Await(etcd().KeepAlive(lease, Soon())).value_or(LeaseAnswer{.ttl_s = 7}).ttl_s, 0);
  EXPECT_EQ(CodeOfCommit({.then = {PutOf("b", ""), PutOf("a", "2", lease)}}), Code::kLapsed);
  EXPECT_EQ(Range({.keys = KeyRange::Prefix("")}).header.revision, before + 1)
      << "nothing but the revocation";
}

TEST_P(EtcdTest, ALeaseThatNobodyRenewsEndsWithItsKeys) {
  const auto granted = Await(etcd().Grant(1, Soon()));
  ASSERT_TRUE(granted.has_value());
  EXPECT_GE(granted->ttl_s, 1);
  const std::int64_t put = Put("a", "", granted->id);
  const auto watch = etcd().WatchFrom({"a", ""}, put + 1);
  const std::vector<WatchEvent> ended = Changes(*watch, 1);
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].kind, WatchEvent::Kind::kDelete);
  EXPECT_EQ(Await(etcd().KeepAlive(granted->id, Soon())).value_or(LeaseAnswer{.ttl_s = 7}).ttl_s, 0);
}

// ----------------------------------------------------------------------------------------------- watches

TEST_P(EtcdTest, AWatchGivesEachChangeOnceInOrderFromItsRevisionOn) {
  Put("cell/a", "0");
  const std::int64_t from = Put("cell/a", "1");
  Change({PutOf("cell/b", "2"), PutOf("other", ""), PutOf("cell/c", "3")});
  const auto watch = etcd().WatchFrom(KeyRange::Prefix("cell/"), from);
  EXPECT_EQ(watch->next_revision(), from);
  std::vector<WatchEvent> events = Changes(*watch, 3);
  Change({DeleteOf(KeyRange::Prefix("cell/")), PutOf("other", "")});
  const std::int64_t last = Put("cell/a", "4");
  for (WatchEvent& event : Changes(*watch, 4)) events.push_back(std::move(event));
  ASSERT_THAT(events, SizeIs(7));
  const auto told = [](const WatchEvent& event) {
    return Text(event.kind == WatchEvent::Kind::kPut ? "+" : "-", event.key.key, event.key.value);
  };
  std::vector<std::string> texts;
  for (const WatchEvent& event : events) texts.push_back(told(event));
  EXPECT_THAT(texts,
              ElementsAre("+cell/a1", "+cell/b2", "+cell/c3", "-cell/a", "-cell/b", "-cell/c", "+cell/a4"));
  std::vector<std::int64_t> revisions;
  for (const WatchEvent& event : events) revisions.push_back(event.key.mod_revision - from);
  EXPECT_THAT(revisions, ElementsAre(0, 1, 1, 2, 2, 2, 3));
  EXPECT_EQ(events[0].key.create_revision, from - 1);
  EXPECT_EQ(events[6].key.create_revision, last);
  EXPECT_EQ(watch->next_revision(), last + 1);
}

TEST_P(EtcdTest, AWatchSaysTheLeaseOfWhatIsPut) {
  const std::int64_t lease = Grant();
  const std::int64_t put = Put("a", "1", lease);
  const auto watch = etcd().WatchFrom({"a", ""}, put);
  EXPECT_EQ(Changes(*watch, 1).at(0).key.lease, lease);
}

TEST_P(EtcdTest, NoRevisionIsSplitOverTwoAnswersOfAWatch) {
  const std::int64_t from = Put("0", "");
  const auto watch = etcd().WatchFrom(KeyRange::Prefix("key/"), from);
  constexpr std::size_t kRevisions = 40, kKeys = 50;
  std::vector<Task<Result<TransactionAnswer>>> tasks;
  for (std::size_t i = 0; i < kRevisions; ++i) {
    std::vector<Operation> puts;
    for (std::size_t j = 0; j < kKeys; ++j) puts.push_back(PutOf(Text("key/", j), std::string(1'000, 'v')));
    tasks.push_back(world_->other().Commit({.then = std::move(puts)}, Soon()));
  }
  std::size_t count = 0;
  std::int64_t last = 0;
  while (count < kRevisions * kKeys) {
    const auto events = Await(watch->Next(Soon()));
    ASSERT_TRUE(events.has_value());
    EXPECT_EQ(events->size() % kKeys, 0u);
    EXPECT_GT(events->front().key.mod_revision, last);
    last = events->back().key.mod_revision;
    count += events->size();
  }
  for (auto& task : tasks) Await(std::move(task));
}

TEST_P(EtcdTest, AWatchThatNothingComesToIsTooLateAndGoesOn) {
  const std::int64_t before = Put("a", "1");
  const auto watch = etcd().WatchFrom({"a", ""}, before + 1);
  EXPECT_EQ(world_->loop().BlockOn(watch->Next(Past())).error().code(), Code::kTooLate);
  Put("a", "2");
  EXPECT_EQ(Changes(*watch, 1).at(0).key.value, "2");
  EXPECT_EQ(world_->loop().BlockOn(watch->Next(Past())).error().code(), Code::kTooLate);
}

TEST_P(EtcdTest, AWatchOfARevisionToComeWaitsForIt) {
  const std::int64_t before = Put("a", "1");
  const auto watch = etcd().WatchFrom({"a", ""}, before + 3);
  Put("a", "2");
  Put("a", "3");
  Put("a", "4");
  EXPECT_EQ(Changes(*watch, 1).at(0).key.value, "4");
}

TEST_P(EtcdTest, AWatchBehindACompactionHasLapsedAndSaysUpToWhere) {
  const std::int64_t first = Put("a", "1");
  Put("a", "2");
  const std::int64_t upto = Put("a", "3");
  EXPECT_EQ(Compact(upto).ToString(), "ok");
  const auto watch = etcd().WatchFrom({"a", ""}, first);
  EXPECT_EQ(EndOf(*watch).code(), Code::kLapsed);
  EXPECT_EQ(EndOf(*watch).code(), Code::kLapsed) << "it has ended";
  EXPECT_EQ(watch->compact_revision(), upto);
  Put("a", "4");
  const auto later = etcd().WatchFrom({"a", ""}, upto + 1);
  EXPECT_EQ(Changes(*later, 1).at(0).key.value, "4");
}

TEST_P(EtcdTest, ACompactionForgetsWhatWasBeforeAndDeletesAtIt) {
  const std::int64_t first = Put("a", "1");
  Put("b", "1");
  const std::int64_t upto = Change({DeleteOf({"a", ""}), PutOf("c", "1")});
  Put("b", "2");
  EXPECT_EQ(Compact(upto).ToString(), "ok");
  EXPECT_EQ(Compact(upto).ToString(), "ok") << "it was forgotten before";
  EXPECT_EQ(CodeOfRange({.keys = {"a", ""}, .revision = first}), Code::kLapsed);
  EXPECT_EQ(Range({.keys = {"b", ""}, .revision = upto}).keys.at(0).value, "1");
  EXPECT_EQ(Compact(upto + 100).code(), Code::kMismatch) << "it has not come so far";
  const auto watch = etcd().WatchFrom(KeyRange::Prefix(""), upto);
  // A real etcd forgets the delete a moment later.
  std::vector<WatchEvent> events = Changes(*watch, 1);
  while (events.back().key.key != "b") events.push_back(Changes(*watch, 1).at(0));
  std::erase_if(events, [](const WatchEvent& event) { return event.kind == WatchEvent::Kind::kDelete; });
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].key.key, "c");
  EXPECT_EQ(events[1].key.value, "2");
}

TEST_P(EtcdTest, AWatchThatIsGivenUpEndsForItsOwnerAlone) {
  const std::int64_t before = Put("a", "1");
  auto one = etcd().WatchFrom({"a", ""}, before);
  const auto other = etcd().WatchFrom({"a", ""}, before);
  auto waiting = one->Next(Soon());
  waiting = {};
  one.reset();
  EXPECT_EQ(Changes(*other, 1).at(0).key.value, "1");
}

TEST_P(EtcdTest, ACallThatIsGivenUpKeepsNobodyWaiting) {
  {
    auto dropped = etcd().Range({.keys = {"a", ""}}, Soon());
    EXPECT_FALSE(dropped.done());
  }
  Put("a", "1");
  EXPECT_THAT(Range({.keys = {"a", ""}}).keys, SizeIs(1));
}

std::unique_ptr<World> MakeSimulated() { return std::make_unique<SimulatedWorld>(); }
std::unique_ptr<World> MakeReal() { return TestEtcd::Installed() ? std::make_unique<RealWorld>() : nullptr; }

INSTANTIATE_TEST_SUITE_P(Etcds, EtcdTest, ::testing::Values(&MakeSimulated, &MakeReal),
                         [](const auto& made) { return made.index == 0 ? "simulated" : "real"; });

}  // namespace
}  // namespace cistern::etcd
