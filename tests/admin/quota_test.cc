// SPDX-License-Identifier: Apache-2.0
// Quotas of a node, as an operator sets, changes and sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../real_node.h"

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

}  // namespace
}  // namespace cistern
