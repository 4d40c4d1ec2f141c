// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "mesh/test_cell.h"

namespace cistern::mesh {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000;

NamedList ListOf(std::string name, std::string model) {
  NamespaceSpec spec;
  spec.name = name;
  spec.fields = {{"model", std::move(model)}};
  spec.groups = {{.name = "all"}};
  return NamedListOf("default", std::move(name), catalog::NamespaceTable().Merged(spec, 1));
}

// Counts what is asked of another.
class CountingEtcd final : public etcd::Etcd {
 public:
  explicit CountingEtcd(etcd::Etcd& etcd) : etcd_(etcd) {}
  Executor& executor() override { return etcd_.executor(); }
  Task<Result<etcd::TransactionAnswer>> Commit(etcd::Transaction transaction, Instant deadline) override {
    ++asked;
    most = std::max(most, ++under_way_);
    auto answer = co_await etcd_.Commit(std::move(transaction), deadline);
    --under_way_;
    co_return answer;
  }
  Task<Result<etcd::RangeAnswer>> Range(etcd::RangeRequest request, Instant deadline) override {
    return etcd_.Range(std::move(request), deadline);
  }
  Task<Result<etcd::LeaseAnswer>> Grant(std::int64_t ttl_s, Instant deadline) override {
    return etcd_.Grant(ttl_s, deadline);
  }
  Task<Result<etcd::LeaseAnswer>> KeepAlive(std::int64_t lease, Instant deadline) override {
    return etcd_.KeepAlive(lease, deadline);
  }
  Task<Status> Revoke(std::int64_t lease, Instant deadline) override { return etcd_.Revoke(lease, deadline); }
  std::unique_ptr<etcd::Watch> WatchFrom(etcd::KeyRange keys, std::int64_t revision) override {
    return etcd_.WatchFrom(std::move(keys), revision);
  }
  Task<Status> Compact(std::int64_t revision, Instant deadline) override {
    return etcd_.Compact(revision, deadline);
  }
  std::size_t asked = 0, most = 0;  // transactions, and of them at a time

 private:
  etcd::Etcd& etcd_;
  std::size_t under_way_ = 0;
};

class CellNamesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {"a", "b"}) {
      cell_.Start(cell_.Add(id));
      etcds_.emplace_back(std::make_unique<CountingEtcd>(*cell_.nodes.back()->client));
      names_.emplace_back(
          std::make_unique<CellNames>(*etcds_.back(), "/cistern/", cell_.nodes.back()->member->state()));
    }
    ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [this] { return cell_.AllJoined(); }));
  }
  Status Claim(std::size_t i, NamedList list) {
    return cell_.loop->BlockOn(names_[i]->Claim(std::move(list), cell_.clock.Now().PlusUs(kSecond)));
  }
  void Withdraw(std::size_t i, NamedList list) {
    cell_.loop->BlockOn(names_[i]->Withdraw(std::move(list), cell_.clock.Now().PlusUs(kSecond)));
  }
  // All at once; how many end with this.
  std::size_t ClaimAll(std::size_t i, std::vector<NamedList> lists, Code code) {
    std::vector<Task<Status>> claims;
    for (NamedList& list : lists)
      claims.push_back(names_[i]->Claim(std::move(list), cell_.clock.Now().PlusUs(kSecond)));
    std::size_t count = 0;
    for (Task<Status>& claim : claims) count += cell_.loop->BlockOn(std::move(claim)).code() == code ? 1 : 0;
    return count;
  }
  TestCell cell_{1};
  std::vector<std::unique_ptr<CountingEtcd>> etcds_;
  std::vector<std::unique_ptr<CellNames>> names_;
};

TEST_F(CellNamesTest, ANameStandsForOneListOnEveryNode) {
  EXPECT_TRUE(Claim(0, ListOf("demo", "one")).ok());
  EXPECT_TRUE(Claim(1, ListOf("demo", "one")).ok());
  const Status other = Claim(1, ListOf("demo", "two"));
  EXPECT_EQ(other.code(), Code::kMismatch);
  for (const char* said : {"demo", "model=one", "model=two", "/cistern/names/default/demo"})
    EXPECT_THAT(std::string(other.message()), HasSubstr(said));
  EXPECT_TRUE(Claim(1, ListOf("another", "two")).ok());
  EXPECT_TRUE(Claim(0, ListOf("demo", "one")).ok()) << "and the first one has kept it";
}

TEST_F(CellNamesTest, ANameWhoseAttachFailedIsFreeAgain) {
  ASSERT_TRUE(Claim(0, ListOf("demo", "one")).ok());
  Withdraw(0, ListOf("demo", "one"));
  EXPECT_TRUE(Claim(1, ListOf("demo", "two")).ok());
  EXPECT_EQ(Claim(0, ListOf("demo", "one")).code(), Code::kMismatch);
  Withdraw(0, ListOf("demo", "two"));
  EXPECT_EQ(Claim(0, ListOf("demo", "one")).code(), Code::kMismatch) << "it was not its own";
}

// As the ranks of an engine attach at its start. None has claimed it in another's place.
TEST_F(CellNamesTest, ANameThatTwoClaimedTogetherIsFreeAgainWhereBothFailed) {
  const auto claim = [this] {
    return names_[0]->Claim(ListOf("demo", "one"), cell_.clock.Now().PlusUs(kSecond));
  };
  auto one = claim(), other = claim();
  EXPECT_TRUE(cell_.loop->BlockOn(std::move(one)).ok());
  EXPECT_TRUE(cell_.loop->BlockOn(std::move(other)).ok());
  Withdraw(0, ListOf("demo", "one"));
  EXPECT_TRUE(Claim(1, ListOf("demo", "two")).ok());
}

TEST_F(CellNamesTest, ANameThatAnotherHasClaimedSinceStays) {
  ASSERT_TRUE(Claim(0, ListOf("demo", "one")).ok());
  ASSERT_TRUE(Claim(1, ListOf("demo", "one")).ok());
  Withdraw(0, ListOf("demo", "one"));
  EXPECT_EQ(Claim(0, ListOf("demo", "two")).code(), Code::kMismatch);
  const std::int64_t revision = cell_.etcd.header().revision;
  EXPECT_TRUE(Claim(0, ListOf("demo", "one")).ok());
  EXPECT_EQ(cell_.etcd.header().revision, revision) << "whoever comes later writes nothing";
}

// Between the look at a name and the word that it stays it may be given back.
TEST_F(CellNamesTest, ANameThatIsGivenBackWhileAnotherClaimsItIsNeverHalfClaimed) {
  bool gone = false, kept = false;
  for (std::int64_t us = 0; us < 6'000; us += 100) {
    const std::string name = "n" + std::to_string(us);
    ASSERT_TRUE(Claim(0, ListOf(name, "one")).ok());
    const Instant deadline = cell_.clock.Now().PlusUs(kSecond);
    Task<Status> claiming = names_[1]->Claim(ListOf(name, "one"), deadline);
    cell_.RunFor(us);
    Withdraw(0, ListOf(name, "one"));
    const Status claimed = cell_.loop->BlockOn(std::move(claiming));
    (claimed.ok() ? kept : gone) = true;
    EXPECT_TRUE(claimed.ok() || claimed.code() == Code::kLapsed) << claimed.ToString();
    EXPECT_EQ(Claim(0, ListOf(name, "two")).ok(), !claimed.ok()) << us;
  }
  EXPECT_TRUE(gone && kept);
}

TEST_F(CellNamesTest, ANameThatCouldNotBeGivenBackIsGivenBackLater) {
  for (const char* name : {"one", "two"}) ASSERT_TRUE(Claim(0, ListOf(name, "x")).ok());
  cell_.etcd.Stop();
  for (const char* name : {"one", "two"}) Withdraw(0, ListOf(name, "x"));
  cell_.etcd.Start();
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return Claim(0, ListOf("one", "y")).ok(); }))
      << "it is first when it wants the name itself";
  EXPECT_TRUE(
      cell_.RunUntil(30 * kSecond, [&] { return Claim(1, ListOf("two", "y")).code() == Code::kMismatch; }));
  cell_.loop->BlockOn(names_[0]->WithdrawRest(cell_.clock.Now().PlusUs(kSecond)));
  cell_.RunFor(CellNames::kRefusedUs);
  EXPECT_TRUE(Claim(1, ListOf("two", "y")).ok());
}

TEST_F(CellNamesTest, ANameThatAPersonHasFreedIsAskedForAgain) {
  ASSERT_TRUE(Claim(0, ListOf("demo", "one")).ok());
  ASSERT_EQ(Claim(1, ListOf("demo", "two")).code(), Code::kMismatch);
  EXPECT_EQ(names_[1]->Known(ListOf("demo", "two")), nullptr);
  etcd::Transaction remove;
  remove.then.push_back({.kind = etcd::Operation::Kind::kDelete,
                         .keys = {CellKeys("/cistern/").NameKey("default", "demo"), ""}});
  const auto person = cell_.etcd.Client("somebody");
  ASSERT_TRUE(
      cell_.loop->BlockOn(person->Commit(std::move(remove), cell_.clock.Now().PlusUs(kSecond))).has_value());
  cell_.RunFor(CellNames::kRefusedUs);
  EXPECT_TRUE(Claim(1, ListOf("demo", "two")).ok());
}

TEST_F(CellNamesTest, WhatIsKnownCostsNoQuestion) {
  ASSERT_TRUE(Claim(0, ListOf("demo", "one")).ok());
  const std::int64_t revision = cell_.etcd.header().revision;
  cell_.etcd.Cut("a");
  EXPECT_TRUE(Claim(0, ListOf("demo", "one")).ok());
  EXPECT_FALSE(Claim(0, ListOf("other", "one")).ok()) << "and nothing is claimed without etcd";
  ASSERT_NE(names_[0]->Known(ListOf("demo", "one")), nullptr);
  EXPECT_EQ(names_[0]->Known(ListOf("demo", "two")), nullptr);
  cell_.etcd.Heal("a");
  EXPECT_EQ(cell_.etcd.header().revision, revision);
  EXPECT_TRUE(cell_.RunUntil(30 * kSecond, [this] { return Claim(0, ListOf("other", "one")).ok(); }));
}

// Nothing takes a name out of etcd, so a node that attached ever new ones would fill it.
TEST_F(CellNamesTest, P5ANodeAsksForABoundedNumberOfNames) {
  const auto name = [](std::size_t n) { return ListOf("n" + std::to_string(n), "one"); };
  for (std::size_t n = 0; n < CellNames::kMostNames; ++n) ASSERT_TRUE(Claim(0, name(n)).ok()) << n;
  const std::int64_t revision = cell_.etcd.header().revision;
  const Status past = Claim(0, name(CellNames::kMostNames));
  EXPECT_EQ(past.code(), Code::kBusy);
  EXPECT_THAT(std::string(past.message()), HasSubstr("4096"));
  EXPECT_EQ(cell_.etcd.header().revision, revision) << "nothing was claimed";
  EXPECT_TRUE(Claim(0, name(7)).ok()) << "what is known stays so";
  EXPECT_EQ(Claim(0, ListOf("n7", "two")).code(), Code::kMismatch) << "and is asked for anew under its name";
  EXPECT_TRUE(Claim(1, name(CellNames::kMostNames)).ok()) << "another node has its own";
}

// Leases and drops go by the same way, and its calls are bounded.
TEST_F(CellNamesTest, P5AttachesOfManyNamesLeaveEtcdToOthers) {
  std::vector<NamedList> lists;
  for (int n = 0; n < 200; ++n) lists.push_back(ListOf("n" + std::to_string(n), "one"));
  EXPECT_EQ(ClaimAll(0, lists, Code::kOk), 200u);
  EXPECT_EQ(etcds_[0]->most, CellNames::kMostAsked);
}

// By a client that asks again at each refusal, also each time for another list.
TEST_F(CellNamesTest, P5ANameOfAnotherListIsAskedForOnceASecond) {
  ASSERT_TRUE(Claim(0, ListOf("demo", "one")).ok());
  const auto refused = [&] {
    std::vector<NamedList> lists;
    for (int n = 0; n < 100; ++n) lists.push_back(ListOf("demo", "other " + std::to_string(n % 50)));
    return ClaimAll(1, std::move(lists), Code::kMismatch);
  };
  EXPECT_EQ(refused(), 100u);
  EXPECT_EQ(etcds_[1]->asked, 1u);
  cell_.RunFor(CellNames::kRefusedUs);
  EXPECT_EQ(refused(), 100u);
  EXPECT_EQ(etcds_[1]->asked, 2u);
  EXPECT_TRUE(Claim(1, ListOf("demo", "one")).ok()) << "the list that it stands for is taken at once";
}

// Drops go on beside names, which are no changes that a member reads.
TEST_F(CellNamesTest, AMemberReadsPastThem) {
  ASSERT_TRUE(Claim(0, ListOf("demo", "one")).ok());
  ASSERT_TRUE(cell_.Drop(*cell_.nodes[1], DropOfKeys(NamespaceOf(1), {KeyOf(1)})).has_value());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Claim(1, ListOf("n" + std::to_string(i), "one")).ok());
  cell_.etcd.CancelWatches();
  ASSERT_TRUE(cell_.Drop(*cell_.nodes[0], DropOfKeys(NamespaceOf(1), {KeyOf(2)})).has_value());
  cell_.Kill(*cell_.nodes[0]);
  cell_.Start(*cell_.nodes[0]);
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [this] { return cell_.AllJoined(); }));
  EXPECT_TRUE(cell_.Drop(*cell_.nodes[0], DropOfKeys(NamespaceOf(1), {KeyOf(3)})).has_value());
}

}  // namespace
}  // namespace cistern::mesh
