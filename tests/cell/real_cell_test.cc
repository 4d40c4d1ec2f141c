// SPDX-License-Identifier: Apache-2.0
// Cells over real stores: three nodes with memory and flash on one simulated network and etcd.
// The power goes at any moment, for memory too or for processes alone; etcd keeps what it answered. What was
// acknowledged as dropped or ended is never read again at a member that has joined.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "etcd/simulated.h"
#include "io/simulated_loop.h"
#include "net/simulated_network.h"
#include "real_node.h"
#include "store/block_store_fixture.h"

namespace cistern::mesh {
namespace {

constexpr std::int64_t kSecond = 1'000'000;

class RealCell {
 public:
  explicit RealCell(std::uint64_t seed) : random_(seed), no_disk_(seed) {
    RealNodeOptions options;
    options.store.max_lower_blocks = 4096;
    options.store.max_blocks = 24;
    for (const char* id : {"a", "b", "c"})
      nodes_.push_back(std::make_unique<RealNode>(id, options, clock_, random_.Next()));
    PowerOn();
  }
  ~RealCell() { PowerOff(false); }
  Executor& executor() { return loop_->executor(); }

  void PowerOn() {
    loop_ = std::move(*io::SimulatedLoop::Make(clock_, no_disk_, random_.Next()));
    loops_.Add(*loop_);
    network_.emplace(loop_->executor(), random_.Next());
    etcd_.emplace(loop_->executor(), random_.Next());
    if (backup_) etcd_->Restore(*backup_);
    for (auto& node : nodes_) {
      node->Start({clock_, loops_, *network_, *etcd_, *log_, random_});
      slot_ = loops_.BlockOn(node->store().Attach(store::OneGroup()))->slot;
    }
  }
  // Nothing of what is under way ends.
  void PowerOff(bool of_memory_too) {
    backup_ = etcd_->TakeBackup();
    under_way_.clear();
    for (auto& node : nodes_) {
      node->Crash();
      if (of_memory_too && random_.Chance(0.5)) node->ForgetMemory();
    }
    etcd_.reset();
    network_.reset();
    loops_.Remove(*loop_);
    loop_.reset();
  }

  Task<void> Pass(std::int64_t us) { (void)co_await SleepUntil(executor().Now().PlusUs(us)); }
  void RunFor(std::int64_t us) { loops_.BlockOn(Pass(us)); }
  bool AllJoin() {
    const Instant until = clock_.Now().PlusUs(60 * kSecond);
    while (!std::ranges::all_of(nodes_, [](const auto& node) { return node->member().joined(); })) {
      if (clock_.Now() >= until) return false;
      RunFor(1'000);
    }
    return true;
  }

  // A block without a parent and one below it, at some of the nodes.
  void Put() {
    const std::uint64_t number = 2 * ++last_;
    const std::uint64_t conversation = random_.Chance(0.3) ? number : 0;
    for (auto& node : nodes_) {
      if (random_.Chance(0.2)) continue;
      for (const std::uint64_t block : {number, number + 1}) {
        const std::vector<std::byte> body = store::Body(block, 4096);
        store::PartWrite part;
        part.key = store::Key(block);
        if (block != number) part.parent = store::Key(number);
        part.put_id = {1, ++puts_};
        part.from = body;
        part.conversation = conversation;
        (void)loops_.BlockOn(node->store().Write({}, slot_, {part}, clock_.Now().PlusUs(kSecond)));
      }
    }
    (conversation != 0 ? talks_ : plain_).push_back(number);
  }
  // Of one that was put; acknowledged, or cut off by the power.
  void Drop() {
    std::vector<std::uint64_t>& from = talks_.empty() || random_.Chance(0.6) ? plain_ : talks_;
    if (from.empty()) return;
    const auto at = from.begin() + static_cast<std::ptrdiff_t>(random_.Below(from.size()));
    const std::uint64_t number = *at;
    from.erase(at);
    RealNode& node = *nodes_[random_.Below(nodes_.size())];
    CellDrop drop{.name = NameOf("default", *node.store().NamespaceAt(slot_))};
    if (&from == &plain_) {
      drop.what = CellDrop::What::kKeys;
      drop.keys = {store::Key(number)};
    } else {
      drop.what = CellDrop::What::kConversation;
      drop.conversation = number;
    }
    auto dropping = node.member().Drop(std::move(drop), DropWait::kApplied, clock_.Now().PlusUs(5 * kSecond));
    if (random_.Chance(0.3)) {
      under_way_.push_back(std::move(dropping));
    } else if (loops_.BlockOn(std::move(dropping)).has_value()) {
      gone_.push_back(number);
    }
  }
  // The first of what was dropped and is read; 0: none is.
  std::uint64_t Revived() {
    for (auto& node : nodes_) {
      if (!node->member().joined()) continue;
      for (const std::uint64_t number : gone_) {
        for (const std::uint64_t block : {number, number + 1}) {
          const catalog::BlockName name{store::Key(block), 0};
          auto grant = loops_.BlockOn(
              node->store().Acquire({}, slot_, std::span(&name, 1), 1'000, clock_.Now().PlusUs(kSecond)));
          if (grant && grant->views[0].code == Code::kOk) return block;
        }
      }
    }
    return 0;
  }
  std::size_t gone() const { return gone_.size(); }
  Random& random() { return random_; }

 private:
  Random random_;
  SimulatedClock clock_;
  ProcessLoops loops_{clock_};
  io::SimulatedDisk no_disk_;
  const std::unique_ptr<Logger> log_ = Logger::ToSink(LogLevel::kOff, [](LogLevel, std::string_view) {});
  std::unique_ptr<io::SimulatedLoop> loop_;  // of network and etcd
  std::optional<net::SimulatedNetwork> network_;
  std::optional<etcd::SimulatedEtcd> etcd_;
  std::shared_ptr<const etcd::SimulatedEtcd::Backup> backup_;
  std::vector<std::unique_ptr<RealNode>> nodes_;
  std::uint32_t slot_ = 0;
  std::vector<Task<Result<DropReceipt>>> under_way_;
  std::vector<std::uint64_t> plain_, talks_, gone_;
  std::uint64_t last_ = 0, puts_ = 0;
};

// As many worlds as CISTERN_TEST_SEEDS says.
std::uint64_t Seeds() {
  const char* seeds = std::getenv("CISTERN_TEST_SEEDS");
  return seeds == nullptr ? 8 : std::strtoull(seeds, nullptr, 10);
}

TEST(RealCellTest, PowerCutsReviveNothingThatWasAcknowledged) {
  std::size_t gone = 0;
  for (std::uint64_t seed = 1; seed <= Seeds(); ++seed) {
    RealCell cell(seed);
    for (int life = 0; life < 4; ++life) {
      ASSERT_TRUE(cell.AllJoin()) << seed;
      ASSERT_EQ(cell.Revived(), 0u) << "seed " << seed << ", life " << life;
      for (int i = 0; i < 12; ++i) {
        if (cell.random().Chance(0.5)) {
          cell.Put();
        } else {
          cell.Drop();
        }
        cell.RunFor(static_cast<std::int64_t>(cell.random().Below(3'000)));
        ASSERT_EQ(cell.Revived(), 0u) << "seed " << seed << ", life " << life;
      }
      cell.PowerOff(true);
      cell.PowerOn();
    }
    ASSERT_TRUE(cell.AllJoin()) << seed;
    ASSERT_EQ(cell.Revived(), 0u) << seed;
    gone += cell.gone();
  }
  EXPECT_GT(gone, 5 * Seeds()) << "hardly a drop was acknowledged";
}

}  // namespace
}  // namespace cistern::mesh
