// SPDX-License-Identifier: Apache-2.0
// What a drop says of itself whose history ends while it is written, or whose name is another's.
#include "mesh/drop_writer.h"

#include <gtest/gtest.h>

#include "base/task_group.h"
#include "mesh/test_cell.h"

namespace cistern::mesh {
namespace {

constexpr std::int64_t kSecond = 1'000'000;

// A member of its own hand: the test says what it has seen of its cell.
class DropWriterTest : public ::testing::Test {
 protected:
  DropWriterTest() {
    etcd::Transaction write;
    write.then.push_back({.keys = {keys_.History(), ""}, .value = "the first"});
    const auto made = cell_.loop->BlockOn(client_->Commit(write, cell_.clock.Now().PlusUs(kSecond)));
    state_.history_revision = made->header.revision;
    state_.past = {.cluster_id = made->header.cluster_id, .highest_revision = made->header.revision};
    state_.history = 1;
    state_.joined = true;
    tasks_.Spawn(writer_.Run());
  }
  ~DropWriterTest() override { tasks_.Drop(); }
  // Written, and acknowledged by nobody: no member has said that it applied it.
  Task<Result<DropReceipt>> WriteOne() {
    auto writing = writer_.Write(DropOfKeys(NamespaceOf(1), {KeyOf(1)}), DropWait::kApplied,
                                 cell_.clock.Now().PlusUs(60 * kSecond));
    cell_.RunFor(kSecond);
    EXPECT_GT(cell_.etcd.header().revision, state_.history_revision);
    EXPECT_FALSE(writing.done());
    return writing;
  }
  void BeginHistory() {
    ++state_.history;
    state_.changed.Pulse();
  }

  TestCell cell_{1};
  const CellKeys keys_{"/cistern/"};
  std::unique_ptr<etcd::Etcd> client_ = cell_.etcd.Client("a");
  CellState state_{1};
  DropWriter writer_{*client_, keys_, 5, state_};
  TaskGroup tasks_{cell_.executor()};
};

TEST_F(DropWriterTest, ADropOfAHistoryThatEndedIsNotSaidToBeNoneWhereTheNextRefusesIt) {
  auto writing = WriteOne();
  cell_.etcd.Stop();
  BeginHistory();
  const auto ended = cell_.loop->BlockOn(std::move(writing));
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code(), Code::kTooLate) << ended.error().ToString();
}

TEST_F(DropWriterTest, ADropOfAHistoryThatEndedIsNotSaidToBeNoneWhereItsMemberEnds) {
  auto writing = WriteOne();
  tasks_.Drop();
  BeginHistory();
  cell_.RunFor(kSecond);  // it waits to be written under the next
  ASSERT_FALSE(writing.done());
  writer_.End();
  const auto ended = cell_.loop->BlockOn(std::move(writing));
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code(), Code::kTooLate) << ended.error().ToString();
}

TEST_F(DropWriterTest, ADropThatWaitsForTheNextHistoryEndsWithItsMember) {
  etcd::Transaction write;
  write.then.push_back({.keys = {keys_.History(), ""}, .value = "the second"});
  ASSERT_TRUE(cell_.loop->BlockOn(client_->Commit(write, cell_.clock.Now().PlusUs(kSecond))).has_value());
  auto writing = writer_.Write(DropOfKeys(NamespaceOf(1), {KeyOf(1)}), DropWait::kApplied,
                               cell_.clock.Now().PlusUs(60 * kSecond));
  cell_.RunFor(kSecond);
  state_.joined = false;
  BeginHistory();
  cell_.RunFor(kSecond);
  ASSERT_FALSE(writing.done());
  writer_.End();
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return writing.done(); }));
  const auto ended = cell_.loop->BlockOn(std::move(writing));
  ASSERT_FALSE(ended.has_value());
  EXPECT_NE(ended.error().message().find("leaves its cell"), std::string_view::npos)
      << ended.error().ToString();
}

// What an etcd answers that was another one by then says nothing of this one's past.
TEST_F(DropWriterTest, ALateAnswerUnderTheHistoryBeforeContradictsNothing) {
  cell_.etcd.SetLags({.answer_us = kSecond});
  for (const bool other_cluster : {false, true}) {
    SCOPED_TRACE(other_cluster);
    auto writing = writer_.Write(DropOfKeys(NamespaceOf(1), {KeyOf(1)}), DropWait::kDurable,
                                 cell_.clock.Now().PlusUs(3 * kSecond));
    cell_.RunFor(kSecond / 2);
    state_.past.highest_revision = 1;
    if (other_cluster) ++state_.past.cluster_id;
    state_.joined = !other_cluster;
    BeginHistory();
    cell_.RunFor(kSecond);
    EXPECT_FALSE(state_.past.contradicted);
    EXPECT_EQ(state_.past.highest_revision, 1);
    (void)cell_.loop->BlockOn(std::move(writing));
  }
}

// As a copy of a running machine writes it: its member has the same process number.
TEST_F(DropWriterTest, R10ABatchWhoseNameAnotherOneHasWasNotWritten) {
  etcd::Transaction write;
  write.then.push_back({.keys = {keys_.Drops() + CellKeys::BatchName(5, 1), ""},
                        .value = EncodeBatch({{DropOfKeys(NamespaceOf(2), {KeyOf(2)})}})});
  ASSERT_TRUE(cell_.loop->BlockOn(client_->Commit(write, cell_.clock.Now().PlusUs(kSecond))).has_value());
  const auto dropped = cell_.loop->BlockOn(writer_.Write(
      DropOfKeys(NamespaceOf(1), {KeyOf(1)}), DropWait::kDurable, cell_.clock.Now().PlusUs(60 * kSecond)));
  ASSERT_FALSE(dropped.has_value());
  EXPECT_EQ(dropped.error().code(), Code::kDenied) << dropped.error().ToString();
}

}  // namespace
}  // namespace cistern::mesh
