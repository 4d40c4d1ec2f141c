// SPDX-License-Identifier: Apache-2.0
#include "client/extents.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace cistern::client {
namespace {

TEST(Extents, FirstFitAndNeighboursJoin) {
  Extents extents(1024);
  EXPECT_EQ(*extents.Take(1), 0u);
  EXPECT_EQ(*extents.Take(100), 64u);
  EXPECT_EQ(*extents.Take(512), 192u);
  EXPECT_FALSE(extents.Take(512).has_value());
  extents.Free(64, 100);
  EXPECT_EQ(*extents.Take(128), 64u);
  extents.Free(64, 128);
  extents.Free(0, 1);
  extents.Free(192, 512);
  EXPECT_EQ(extents.largest(), 1024u);
}

TEST(Extents, NothingIsGivenTwiceAndAllComesBack) {
  Random random(1);
  Extents extents(1 << 20);
  std::map<std::uint64_t, std::uint64_t> taken;
  for (int i = 0; i < 20'000; ++i) {
    if (random.Below(2) == 0 || taken.empty()) {
      const std::uint64_t bytes = random.Between(1, 8192);
      const std::optional<std::uint64_t> offset = extents.Take(bytes);
      if (!offset) continue;
      auto after = taken.lower_bound(*offset);
      ASSERT_TRUE(after == taken.end() || *offset + bytes <= after->first);
      ASSERT_TRUE(after == taken.begin() || std::prev(after)->first + std::prev(after)->second <= *offset);
      taken[*offset] = bytes;
    } else {
      auto one = std::next(taken.begin(), static_cast<std::ptrdiff_t>(random.Below(taken.size())));
      extents.Free(one->first, one->second);
      taken.erase(one);
    }
  }
  for (const auto& [offset, bytes] : taken) extents.Free(offset, bytes);
  EXPECT_EQ(extents.largest(), 1u << 20);
}

}  // namespace
}  // namespace cistern::client
