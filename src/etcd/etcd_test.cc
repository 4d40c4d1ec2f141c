// SPDX-License-Identifier: Apache-2.0
#include "etcd/etcd.h"

#include <gtest/gtest.h>

namespace cistern::etcd {
namespace {

using namespace std::literals;

TEST(KeyRange, PrefixEndsBehindTheLastKeyThatBeginsWithIt) {
  EXPECT_EQ(KeyRange::Prefix("cell/").end, "cell0");
  EXPECT_EQ(KeyRange::Prefix("a\xff\xff").end, "b");
  EXPECT_EQ(KeyRange::Prefix("\xff").end, "\0"s);  // no key lies behind
  EXPECT_EQ(KeyRange::Prefix("").key, "\0"s);
  EXPECT_EQ(KeyRange::Prefix("").end, "\0"s);
}

}  // namespace
}  // namespace cistern::etcd
