// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace cistern {
namespace {

TEST(Utf8, IsLeftAsItIsAndOtherBytesAreLettersThatTellThemApart) {
  EXPECT_EQ(Utf8("/mnt/caf\xc3\xa9"), "/mnt/caf\xc3\xa9");
  EXPECT_EQ(Utf8("\xf0\x9f\x92\xbe"), "\xf0\x9f\x92\xbe");
  EXPECT_EQ(Utf8("a\xff"), "a\u01ff");
  EXPECT_EQ(Utf8("a\xfe"), "a\u01fe");
  EXPECT_EQ(Utf8("\xc3"), "\u01c3") << "cut off";
  EXPECT_EQ(Utf8("\xc0\xaf"), "\u01c0\u01af") << "overlong";
  EXPECT_EQ(Utf8("\xed\xa0\x80"), "\u01ed\u01a0\u0180") << "a surrogate";
}

}  // namespace
}  // namespace cistern
