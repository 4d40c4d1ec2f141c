// SPDX-License-Identifier: Apache-2.0
#include "mesh/block_server.h"

#include "mesh/test_mesh.h"
#include "mesh/test_peer_message.h"

namespace cistern::mesh {
namespace {

// Puts a block when it is asked to bring it; by then the member has applied a drop.
class BringsLate final : public MemoryKeeper {
 public:
  BringsLate(Executor& executor, std::function<Task<Status>()> put) : executor_(executor), put_(put) {}
  Executor& executor() { return executor_; }
  Task<Result<std::uint64_t>> Bring(ServedNamespace, catalog::BlockName, Instant, std::int64_t) override {
    const Status status = co_await put_();
    if (!status.ok()) co_return std::unexpected(status);
    co_return 5;
  }
  Task<std::optional<std::vector<std::uint64_t>>> NotesOf(ServedNamespace, BlockKey) override {
    co_return std::nullopt;
  }
  void LetGo(std::uint64_t kept) override { let_go += kept == 5 ? 1 : 100; }
  int let_go = 0;

 private:
  Executor& executor_;
  std::function<Task<Status>()> put_;
};

class BlockServerTest : public MeshTest {
 protected:
  struct PutsLate {
    static Task<Status> Run(MeshNode& node, std::uint32_t slot, std::vector<std::byte> body) {
      store::PartWrite part;
      part.key = store::Key(1);
      part.put_id = {3, 4};
      part.from = body;
      const catalog::Caller caller{1, {std::byte{1}}};
      std::vector<store::PartWrite> parts = {part};
      (void)co_await node.store->Write(caller, slot, std::move(parts),
                                       node.executor().Now().PlusUs(1'000'000));
      node.rule.applied = 9;
      co_return Status();
    }
  };
  BlockRequest RequestOf(std::uint64_t n) {
    return {.history = 7,
            .name = *node(0).names->NameAt(slot),
            .key = store::Key(n),
            .body_bytes = 4096,
            .worth_us = 1000};
  }
  net::RailSource::Answer Ask(BlockServer& server, const BlockRequest& request) {
    const std::vector<std::byte> question = Encode(request);
    return loop->BlockOn(server.Find(question, After(1'000'000)));
  }
};

TEST_F(BlockServerTest, AppliedIsThatOfBeforeTheRecordWasLookedUp) {
  StartNodes(1);
  BringsLate keeper(executor(), [&] { return PutsLate::Run(node(0), slot, store::Body(1, 4096)); });
  BlockServer server({executor(), clock, node(0).reader_of_arena(), *node(0).served, keeper});
  auto answer = Ask(server, RequestOf(1));
  ASSERT_TRUE(answer.status.ok()) << answer.status.ToString();
  const auto head = DecodeBlockHead(answer.head);
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->a, 0);
  EXPECT_EQ(head->put_id, (PutId{3, 4}));
  EXPECT_EQ(keeper.let_go, 0);
  EXPECT_TRUE(server.Sent(answer.handle));
  EXPECT_EQ(keeper.let_go, 1);
}

// Whoever asked, and whatever goes under another one's answer.
TEST_F(BlockServerTest, RecordsThatAreSentTogetherStandOrGoEachForItself) {
  StartNodes(1);
  Put(0, 1, std::nullopt);
  Put(0, 2, 1);
  const auto find = [&](std::uint64_t number) {
    auto answer = Ask(*node(0).server, RequestOf(number));
    EXPECT_TRUE(answer.status.ok()) << answer.status.ToString();
    return answer.handle;
  };
  for (int round = 0; round < 2; ++round) {
    const std::uint64_t first = find(1), second = find(2);
    EXPECT_NE(first, second);
    EXPECT_LT(std::max(first, second), 2u) << "what was sent makes room for what is";
    const BlockKey key = store::Key(2);
    ASSERT_TRUE(loop->BlockOn(node(0).store->Drop(slot, std::span(&key, 1))).has_value());
    EXPECT_TRUE(node(0).server->Stands(first));
    EXPECT_FALSE(node(0).server->Stands(second));
    EXPECT_FALSE(node(0).server->Sent(second));
    EXPECT_TRUE(node(0).server->Sent(first));
    Put(0, 2, 1);
  }
}

TEST_F(BlockServerTest, WhatWasBroughtForAnAnswerThatCannotBeSentIsLetGo) {
  StartNodes(1);
  bool fails = true;
  BringsLate keeper(executor(), [&]() -> Task<Status> {
    return fails ? [](Executor&) -> Task<Status> { co_return Status(Code::kTooLate, "late"); }(executor())
                 : PutsLate::Run(node(0), slot, store::Body(1, 4096));
  });
  BlockServer server({executor(), clock, node(0).reader_of_arena(), *node(0).served, keeper});
  BlockRequest request = RequestOf(1);
  request.body_bytes = 4095;
  const auto code = [&] { return Ask(server, request).status.code(); };
  EXPECT_EQ(code(), Code::kTooLate);
  EXPECT_EQ(keeper.let_go, 0) << "nothing was kept";
  fails = false;
  EXPECT_EQ(code(), Code::kMismatch) << "there is less room for it than it has bytes";
  EXPECT_EQ(keeper.let_go, 1);
  EXPECT_EQ(code(), Code::kMismatch) << "it is in memory now";
  EXPECT_EQ(keeper.let_go, 1);
  request.body_bytes = 4096;
  EXPECT_EQ(code(), Code::kOk);
  EXPECT_EQ(loop->BlockOn(server.Find({}, After(1'000'000))).status.code(), Code::kInvalid);
}

TEST_F(BlockServerTest, RecordThatGoesWhileItIsSentIsNotSaidToBeWhole) {
  StartNodes(1);
  Put(0, 1, std::nullopt);
  auto answer = Ask(*node(0).server, RequestOf(1));
  ASSERT_TRUE(answer.status.ok()) << answer.status.ToString();
  const BlockKey key = store::Key(1);
  ASSERT_TRUE(loop->BlockOn(node(0).store->Drop(slot, std::span(&key, 1))).has_value());
  EXPECT_FALSE(node(0).server->Sent(answer.handle));
}

// Ann wrote all, and has ended since Bob uses them. While Bob ends, nothing is sent as Ann's: no end would
// take it any more where it came to.
TEST_F(BlockServerTest, R10WhatAnEndUnderWayTakesIsNotSentAsItsWritersWhoHasEnded) {
  constexpr std::uint64_t kAnn = 11, kBob = 22, kBlocks = 600;
  StartNodes(1);
  for (std::uint64_t n = 1; n <= kBlocks; ++n) Put(0, n, std::nullopt, 4096, 0, kAnn);
  const std::vector<BlockKey> keys = Chain(1, kBlocks);
  ASSERT_EQ(loop->BlockOn(node(0).store->Touch(slot, keys, kBob)), kBlocks);
  ASSERT_EQ(loop->BlockOn(node(0).store->EndConversation(slot, kAnn)).value_or(1), 0u);
  Task<Result<std::uint64_t>> ending = node(0).store->EndConversation(slot, kBob);
  ASSERT_FALSE(ending.done());
  ASSERT_FALSE(node(0).store->source_puts().NotesOf(slot, store::Key(kBlocks)).has_value());
  ASSERT_TRUE(Here(0, kBlocks));
  auto answer = Ask(*node(0).server, RequestOf(kBlocks));
  EXPECT_FALSE(answer.status.ok() && node(0).server->Sent(answer.handle));
  EXPECT_EQ(loop->BlockOn(std::move(ending)).value_or(0), kBlocks);
}

// Ann wrote it, Bob used it and Ann has ended; past the bound of notes Bob's is forgotten.
TEST_F(BlockServerTest, R10WhatIsNobodysIsNotSentAsItsWritersWhoHasEnded) {
  constexpr std::uint64_t kAnn = 11, kBob = 22, kCarol = 33;
  TestNodeOptions options;
  options.store.max_noted_blocks = 4;
  StartNodes(1, Blocks(), options);
  Put(0, 1, std::nullopt, 4096, 0, kAnn);
  const BlockKey key = store::Key(1);
  const auto sent_as = [&]() -> std::optional<std::vector<std::uint64_t>> {
    const auto answer = Ask(*node(0).server, RequestOf(1));
    if (!answer.status.ok() || !node(0).server->Sent(answer.handle)) return std::nullopt;
    return DecodeBlockHead(answer.head)->notes;
  };
  EXPECT_EQ(sent_as(), (std::vector{kAnn}));
  ASSERT_EQ(loop->BlockOn(node(0).store->Touch(slot, std::span(&key, 1), kBob)), 1u);
  ASSERT_EQ(loop->BlockOn(node(0).store->EndConversation(slot, kAnn)).value_or(1), 0u);
  EXPECT_EQ(sent_as(), (std::vector{kBob}));
  for (std::uint64_t n = 2; n <= 5; ++n) Put(0, n, std::nullopt, 4096, 0, kCarol);
  ASSERT_FALSE(node(0).store->source_puts().NotesOf(slot, key).has_value());
  EXPECT_EQ(sent_as(), std::vector<std::uint64_t>());
}

TEST_F(BlockServerTest, TimeThatIsLeftIsRoundedDown) {
  StartNodes(1);
  Put(0, 1, std::nullopt, 4096, 100);
  RunFor(600'000);
  auto answer = Ask(*node(0).server, RequestOf(1));
  ASSERT_TRUE(answer.status.ok()) << answer.status.ToString();
  // The second that it began in has partly gone, and so has the one that is now.
  EXPECT_LE(DecodeBlockHead(answer.head)->ttl_s, 99u);
  EXPECT_GE(DecodeBlockHead(answer.head)->ttl_s, 98u);
  (void)node(0).server->Sent(answer.handle);
}

TEST_F(BlockServerTest, NobodyIsAnsweredOutsideOfTheCell) {
  StartNodes(1);
  Put(0, 1, std::nullopt);
  BlockRequest request = RequestOf(1);
  const auto code = [&] { return Ask(*node(0).server, request).status.code(); };
  node(0).rule.joined = false;
  EXPECT_EQ(code(), Code::kGone);
  node(0).rule.joined = true;
  request.history = 8;
  EXPECT_EQ(code(), Code::kMismatch);
  request.history = 7;
  request.name.tenant = "other";
  EXPECT_EQ(code(), Code::kMiss);
}

}  // namespace
}  // namespace cistern::mesh
