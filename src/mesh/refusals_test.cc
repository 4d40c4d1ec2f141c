// SPDX-License-Identifier: Apache-2.0
#include "mesh/refusals.h"

#include <gtest/gtest.h>

#include "store/block_store_fixture.h"

namespace cistern::mesh {
namespace {

TEST(RefusalsTest, WhatWasNotedAnewIsAmongTheLast) {
  Refusals refusals;
  const Refusal refusal{.peer = 1, .why = Status(Code::kBusy, "no room")};
  refusals.Note(1, store::Key(0), refusal);
  refusals.Forget(1, store::Key(0));
  for (std::uint64_t n = 1; n < Refusals::kMost; ++n) refusals.Note(1, store::Key(n), refusal);
  refusals.Note(1, store::Key(0), refusal);
  EXPECT_NE(refusals.Find(1, store::Key(0)), nullptr);
  EXPECT_NE(refusals.Find(1, store::Key(1)), nullptr);
  refusals.Note(1, store::Key(Refusals::kMost), refusal);
  EXPECT_EQ(refusals.Find(1, store::Key(1)), nullptr);
}

}  // namespace
}  // namespace cistern::mesh
