// SPDX-License-Identifier: Apache-2.0
#include "catalog/deadline_heap.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace cistern::catalog {
namespace {

TEST(DueTest, TheEarliestIsFirstWhateverWasMovedOrRemoved) {
  constexpr std::uint32_t kIds = 300;
  DeadlineHeap due(kIds);
  std::map<std::uint32_t, std::int64_t> model;
  Random random(7);
  for (int step = 0; step < 20'000; ++step) {
    const auto id = static_cast<std::uint32_t>(random.Below(kIds));
    if (random.Chance(0.6)) {
      const auto when = static_cast<std::int64_t>(random.Below(1000));
      due.Set(id, when);
      model[id] = when;
    } else {
      due.Remove(id);
      model.erase(id);
    }
    ASSERT_EQ(due.size(), model.size());
    ASSERT_EQ(due.Contains(id), model.contains(id));
    if (model.empty()) continue;
    std::int64_t least = INT64_MAX;
    for (const auto& [key, when] : model) least = std::min(least, when);
    ASSERT_EQ(due.first_when(), least);
    ASSERT_EQ(model.at(due.first()), least);
  }
}

}  // namespace
}  // namespace cistern::catalog
