// SPDX-License-Identifier: Apache-2.0
#include "server/operations.h"

#include <gtest/gtest.h>

namespace cistern::server {
namespace {

using wire::Op;

TEST(Operations, ANumberThatIsNoneIsNotedNowhereAndSteersNothing) {
  const Operation& later = OperationOf(static_cast<Op>(wire::kLastOp + 1));
  EXPECT_EQ(later.op, Op::kNone);
  EXPECT_FALSE(later.slow.has_value());
  EXPECT_FALSE(later.steers);
  EXPECT_EQ(CountOf({.op = static_cast<Op>(UINT16_MAX), .args_bytes = 4096}), 1u);
}

TEST(Operations, ACallCountsAsManyAsItsArgumentsList) {
  EXPECT_EQ(CountOf({.op = Op::kHold, .args_bytes = 3 * sizeof(wire::KeyItem)}), 3u);
  EXPECT_EQ(CountOf({.op = Op::kAcquire, .args_bytes = 2 * sizeof(wire::BlockItem)}), 2u);
  EXPECT_EQ(CountOf({.op = Op::kAbandon, .args_bytes = 5 * sizeof(wire::PutIdItem)}), 5u);
  EXPECT_EQ(CountOf({.op = Op::kWrite, .args_bytes = 4096, .a = 7}), 7u);
  EXPECT_EQ(CountOf({.op = Op::kDropNamed, .args_bytes = 20}), 1u);
}

}  // namespace
}  // namespace cistern::server
