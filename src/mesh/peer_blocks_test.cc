// SPDX-License-Identifier: Apache-2.0
#include "mesh/peer_blocks.h"

#include "mesh/test_mesh.h"

namespace cistern::mesh {
namespace {

constexpr std::int64_t kSecond = 1'000'000;
constexpr std::uint64_t kWindow = 8;  // blocks of an acquire

class PeerBlocksTest : public MeshTest {
 protected:
  // Node 0 has blocks 1 to `last`, and a match at node 1 has found them.
  void FindChain(std::uint64_t last, std::size_t bytes = 4096) {
    StartNodes(2);
    PutChain(0, 1, last, bytes);
    blocks_.emplace(PeerBlocks::Parts{executor(), clock, *node(1).store, *node(1).finder, *node(1).reader},
                    5);
    const std::vector<BlockKey> chain = Chain(1, last);
    ASSERT_TRUE(RunUntil([&] {
      std::uint64_t found = 0;
      for (const MatchRun& run : loop->BlockOn(blocks_->Match(slot, chain, 0, After(kSecond))))
        found += run.blocks;
      return found == last;
    }));
    node(0).before_find = [this](Executor&) -> Task<void> {
      ++asked_;
      co_return;
    };
  }
  // Of the window's blocks, from `first` on.
  Task<std::vector<store::RemoteMiss>> Bring(std::uint64_t first) {
    for (const BlockKey& key : Chain(first, first + kWindow - 1)) names_[first].push_back({key, 0, {}});
    return blocks_->Bring(slot, names_[first], After(10 * kSecond));
  }
  bool AllHere(std::uint64_t last) {
    for (std::uint64_t n = 1; n <= last; ++n) {
      if (!Exact(1, n)) return false;
    }
    return true;
  }

  std::optional<PeerBlocks> blocks_;
  std::map<std::uint64_t, std::vector<catalog::BlockName>> names_;
  int asked_ = 0;
};

TEST_F(PeerBlocksTest, WindowsOfAChainUnderWayTogetherAreAskedForOnceEach) {
  FindChain(3 * kWindow);
  std::vector<Task<std::vector<store::RemoteMiss>>> windows;
  for (const std::uint64_t first : {1, 9, 17}) windows.push_back(Bring(first));
  EXPECT_EQ(node(1).reader->transfers(), 3 * kWindow);
  for (auto& window : windows) EXPECT_TRUE(loop->BlockOn(std::move(window)).empty());
  EXPECT_TRUE(AllHere(3 * kWindow));
  EXPECT_EQ(asked_, 3 * static_cast<int>(kWindow));
}

TEST_F(PeerBlocksTest, WindowWhoseParentDidNotComeForAnotherCallReadsItItself) {
  FindChain(2 * kWindow);
  node(0).lie = [first = true](net::RailSource::Answer& answer) mutable {
    if (std::exchange(first, false)) answer.status = Status(Code::kBusy, "a lie");
  };
  Task<std::vector<store::RemoteMiss>> failing = Bring(1), next = Bring(9);
  const std::vector<store::RemoteMiss> misses = loop->BlockOn(std::move(failing));
  ASSERT_EQ(misses.size(), kWindow);
  EXPECT_EQ(misses[0].code, Code::kBusy);
  EXPECT_TRUE(loop->BlockOn(std::move(next)).empty());
  EXPECT_TRUE(AllHere(2 * kWindow));
}

TEST_F(PeerBlocksTest, WindowBehindBlocksThatLeftReadsTheseToo) {
  FindChain(2 * kWindow);
  EXPECT_TRUE(loop->BlockOn(Bring(9)).empty());
  EXPECT_TRUE(AllHere(2 * kWindow));
  EXPECT_EQ(asked_, 2 * static_cast<int>(kWindow));
}

TEST_F(PeerBlocksTest, OfBlocksThatCameInPartTheRestIsLate) {
  FindChain(16, 300'000);
  node(0).before_find = [this](Executor&) -> Task<void> {
    if (++asked_ > 4) co_await Pass(100'000);
  };
  std::vector<catalog::BlockName> all;
  for (const BlockKey& key : Chain(1, 16)) {
    all.push_back({key, 0, {0, 2}});
    all.push_back({key, 0, {2, 3}});
  }
  const auto misses = loop->BlockOn(blocks_->Bring(slot, all, After(50'000)));
  ASSERT_EQ(misses.size(), 24u);
  for (std::size_t i = 0; i < misses.size(); ++i) {
    EXPECT_EQ(misses[i].at, 8 + i);
    EXPECT_EQ(misses[i].code, Code::kTooLate);
  }
  EXPECT_EQ(blocks_->counters().late.value(), 12u) << "blocks, whatever shares of them are asked for";
  for (std::uint64_t n = 1; n <= 4; ++n) EXPECT_TRUE(Exact(1, n, 300'000)) << n;
}

TEST_F(PeerBlocksTest, MatchForgetsNoMoreOfWhatIsTooOldThanInProportionToItself) {
  constexpr std::uint64_t kLast = 2'000;
  FindChain(kLast);
  const std::vector<BlockKey> chain = Chain(1, kLast);
  const auto match = [&] { return loop->BlockOn(blocks_->Match(slot, chain, 0, After(kSecond))); };
  for (int i = 0; i < 130; ++i) ASSERT_FALSE(match().empty());
  RunFor(FoundRuns::kGoodUs + kSecond);
  const std::uint64_t before = executor().steps();
  EXPECT_FALSE(match().empty());
  EXPECT_LT(executor().steps() - before, 1'000u);
}

}  // namespace
}  // namespace cistern::mesh
