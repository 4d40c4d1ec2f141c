// SPDX-License-Identifier: Apache-2.0
// Quotas of a node, as an operator sets, changes and sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "../real_node.h"
#include "base/test_directory.h"

namespace cistern {
namespace {

using testing::HasSubstr;

constexpr std::size_t kBytes = 100'000;

TEST(Quotas, AReloadTrimsWhatIsAboveAndStatusAndNamespacesSaySo) {
  RealNode node(128u << 20);
  Store store = node.Connect();
  const Namespace burst = AttachTest(store, "burst"), quiet = AttachTest(store, "quiet");
  for (std::uint64_t n = 0; n < 50; ++n) {
    ASSERT_TRUE(PutBlock(store, burst, n, std::nullopt, kBytes).ok());
    ASSERT_TRUE(PutBlock(store, quiet, n, std::nullopt, kBytes).ok());
  }
  node::NodeOptions read = node.Options();
  read.quotas = {{.pattern = "name=burst", .memory_bytes = 20 * kBytes, .reserve_bytes = kBytes}};
  const Result<node::Reloaded> reloaded = node.Reload(read);
  ASSERT_TRUE(reloaded.has_value()) << reloaded.error().ToString();
  EXPECT_THAT(reloaded->changed, testing::Contains(HasSubstr("quota: none -> name=burst:memory=2000000B")));
  Until([&] { return StatusNumber(store, "evicted_over_quota") == 30; });
  EXPECT_THAT(store.StatusJson().value_or(""),
              HasSubstr(R"("quota":"name=burst","memory_bytes":2000000,"memory_limit_bytes":2000000)"));
  EXPECT_THAT(store.NamespacesJson().value_or(""), HasSubstr(R"("quota":"name=burst:memory=)"));
  for (std::uint64_t n = 0; n < 50; ++n) EXPECT_TRUE(store.Get(quiet, KeyOf(n)).has_value());
  // What it reserves memory has to have.
  read.quotas[0] = {.pattern = "x", .reserve_bytes = 90u << 20};
  ASSERT_TRUE(node.Reload(read).has_value());
  const Result<std::uint64_t> less = store.ResizeMemory(72u << 20);
  ASSERT_FALSE(less.has_value());
  EXPECT_THAT(less.error().ToString(), HasSubstr("the reserves are 90MiB together"));
  // Both smaller, in one reload.
  read.memory_bytes = 72u << 20;
  read.quotas[0].reserve_bytes = 10u << 20;
  const Result<node::Reloaded> both = node.Reload(read);
  EXPECT_TRUE(both.has_value()) << both.error().ToString();
}

// A node whose memory and flash are small, a namespace with some blocks, and another one's burst that is
// larger than both tiers.
class QuotasOfBothTiers : public testing::Test {
 protected:
  static constexpr std::size_t kBlockBytes = 1'000'000;
  static constexpr std::uint64_t kQuiet = 24;

  void TearDown() override { node_.reset(); }

  void Start(const std::vector<policy::Quota>& quotas) {
    node_ = std::make_unique<RealNode>(96u << 20, [&](node::NodeOptions& options) {
      options.flash = {{.path = flash_.path(), .size_bytes = 256u << 20}};
      options.flash_admit = Admission::kAll;
      options.quotas = quotas;
    });
    store_ = node_->Connect();
    quiet_ = AttachTest(*store_, "quiet");
    burst_ = AttachTest(*store_, "burst");
    for (std::uint64_t n = 0; n < kQuiet; ++n)
      ASSERT_TRUE(PutBlock(*store_, quiet_, n, std::nullopt, kBlockBytes).ok());
    Until([&] { return StatusNumber(*store_, "written_down") == kQuiet; });
  }
  // Until it has put so many blocks, and each region of flash has been given up once where `turns_over`.
  void Burst(std::uint64_t blocks, bool turns_over) {
    const std::uint64_t regions = turns_over ? StatusNumber(*store_, "regions") : 0;
    std::uint64_t n = 0;
    Until([&] {
      const Status put = PutBlock(*store_, burst_, 1'000 + n, std::nullopt, kBlockBytes);
      EXPECT_TRUE(put.ok() || put.code() == Code::kBusy) << put.ToString();
      ++n;
      return n >= blocks && StatusNumber(*store_, "released_regions") >= regions;
    });
  }
  std::uint64_t InMemory(const std::string& name) {
    const std::string status = store_->StatusJson().value_or("");
    const std::size_t at = status.find("\"quota\":\"name=" + name);
    EXPECT_NE(at, std::string::npos) << status;
    return std::strtoull(status.c_str() + status.find("memory_bytes\":", at) + 14, nullptr, 10);
  }
  std::uint64_t OnFlash(const std::string& name) {
    const std::string status = store_->StatusJson().value_or("");
    const std::size_t at = status.find("\"quota\":\"name=" + name);
    EXPECT_NE(at, std::string::npos) << status;
    return std::strtoull(status.c_str() + status.find("\"flash_bytes\":", at) + 14, nullptr, 10);
  }
  std::uint64_t QuietIsThere() {
    std::uint64_t there = 0;
    for (std::uint64_t n = 0; n < kQuiet; ++n) {
      const auto block = store_->Get(quiet_, KeyOf(n));
      there += block && *block == BodyOf(n, kBlockBytes) ? 1 : 0;
    }
    return there;
  }

  const TestDirectory flash_{TestDirectory::On::kDisk};
  std::unique_ptr<RealNode> node_;
  std::optional<Store> store_;
  Namespace quiet_, burst_;
};

TEST_F(QuotasOfBothTiers, WithoutAnyABurstPutsOthersOutOfBoth) {
  Start({});
  Burst(300, true);
  EXPECT_LT(QuietIsThere(), kQuiet / 2);
}

TEST_F(QuotasOfBothTiers, ABurstDoesNotEvictWhatAnotherModelReserves) {
  constexpr std::uint64_t kReserve = 8 * kBlockBytes;
  Start({{.pattern = "name=quiet", .reserve_bytes = kReserve, .flash_reserve_bytes = kQuiet * kBlockBytes}});
  Burst(300, true);
  EXPECT_GE(InMemory("quiet"), kReserve);
  EXPECT_LT(InMemory("quiet"), kQuiet * kBlockBytes) << "what is above the reserve leaves memory";
  EXPECT_EQ(OnFlash("quiet"), kQuiet * kBlockBytes);
  EXPECT_EQ(QuietIsThere(), kQuiet);
}

TEST_F(QuotasOfBothTiers, ABurstStaysWithinItsLimitsAndEvictsItsOwn) {
  constexpr std::uint64_t kMemory = 16 * kBlockBytes, kFlash = 64 * kBlockBytes;
  Start({{.pattern = "name=burst", .memory_bytes = kMemory, .flash_bytes = kFlash}});
  Burst(300, false);
  // On a slow disk the first of them is still being written when the last is put.
  Until([&] { return OnFlash("burst") > 0; });
  EXPECT_LE(InMemory("burst"), kMemory);
  EXPECT_LE(OnFlash("burst"), kFlash);
  EXPECT_EQ(QuietIsThere(), kQuiet);
  node_->Stop();  // a restart keeps to them too
  store_.reset();
  node_->Start();
  store_ = node_->Connect();
  quiet_ = AttachTest(*store_, "quiet");
  EXPECT_LE(InMemory("burst"), kMemory);
  // What was forgotten on flash is found again where its region was not given up, until the hand comes by.
  Until([&] { return OnFlash("burst") <= kFlash; });
  EXPECT_EQ(QuietIsThere(), kQuiet);
}

}  // namespace
}  // namespace cistern
