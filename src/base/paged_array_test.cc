// SPDX-License-Identifier: Apache-2.0
#include "base/paged_array.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace cistern {
namespace {

using Array = PagedArray<std::uint64_t>;

TEST(PagedArray, P5GrowthMovesNothingAndMakesOnePageAtATime) {
  Array array(7);
  const std::uint64_t* first = &array.Make(0);
  for (std::size_t at = 0; at < 100 * Array::kPage; ++at) {
    const std::size_t before = array.made();
    array.Make(at) = at;
    ASSERT_LE(array.made(), before + 1) << at;
  }
  EXPECT_EQ(&array[0], first);
  EXPECT_EQ(array.made(), 100u);
  for (std::size_t at = 0; at < 100 * Array::kPage; ++at) ASSERT_EQ(array[at], at);
  array.Make(10'000'000) = 1;
  EXPECT_EQ(array.made(), 101u) << "those in between have none";
  EXPECT_EQ(&array[0], first);
}

TEST(PagedArray, WhatWasNotWrittenIsEmptyAndOtherPagesAreNotThere) {
  Array array(7);
  EXPECT_EQ(array.Find(0), nullptr);
  array.Make(3 * Array::kPage + 1) = 1;
  EXPECT_EQ(array.Find(3 * Array::kPage - 1), nullptr);
  ASSERT_NE(array.Find(3 * Array::kPage), nullptr);
  EXPECT_EQ(*array.Find(3 * Array::kPage), 7u);
  EXPECT_EQ(*array.Find(3 * Array::kPage + 1), 1u);
  EXPECT_EQ(array.Find(4 * Array::kPage), nullptr);
  array.Reserve(2 * Array::kPage + 1);
  EXPECT_EQ(array.made(), 4u);
  EXPECT_EQ(*array.Find(2 * Array::kPage), 7u);
}

}  // namespace
}  // namespace cistern
