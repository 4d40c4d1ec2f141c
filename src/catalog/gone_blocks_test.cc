// SPDX-License-Identifier: Apache-2.0
#include "catalog/gone_blocks.h"

#include <gtest/gtest.h>

namespace cistern::catalog {
namespace {

TEST(GoneBlocks, AnswersForTheLastBlockOfAPlaceAndForNoOther) {
  GoneBlocks gone;
  const KeyHash a = 0x1234'5678'9abc'0042, same_place = 0x4321'5678'9abc'0042;
  EXPECT_EQ(gone.Of(a), WentBy::kUnknown);
  gone.Note(a, WentBy::kEvicted);
  EXPECT_EQ(gone.Of(a), WentBy::kEvicted);
  EXPECT_EQ(gone.Of(same_place), WentBy::kUnknown);
  gone.Note(same_place, WentBy::kDropped);
  EXPECT_EQ(gone.Of(a), WentBy::kUnknown);
  EXPECT_EQ(gone.Of(same_place), WentBy::kDropped);
}

}  // namespace
}  // namespace cistern::catalog
