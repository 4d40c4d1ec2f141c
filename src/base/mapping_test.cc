// SPDX-License-Identifier: Apache-2.0
#include "base/mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"

namespace cistern {
namespace {

TEST(Mapping, AllOfAFileIsItsBytesWithoutOrWithItsPages) {
  Fd file(memfd_create("bytes", MFD_CLOEXEC));
  ASSERT_EQ(write(file.get(), "abc", 3), 3);
  for (Pages pages : {Pages::kAtTouch, Pages::kAtOnce}) {
    Result<Mapping> map = Mapping::MapWhole(file.get(), "bytes", Access::kRead, pages);
    ASSERT_TRUE(map.has_value()) << map.error().ToString();
    ASSERT_EQ(map->size(), 3u);
    EXPECT_EQ(map->bytes()[2], std::byte{'c'});
  }
}

TEST(Mapping, AnEmptyFileIsAnErrorThatNamesIt) {
  Fd file(memfd_create("empty", MFD_CLOEXEC));
  Result<Mapping> map = Mapping::MapWhole(file.get(), "the node's index", Access::kRead);
  ASSERT_FALSE(map.has_value());
  EXPECT_EQ(map.error().message(), "map the node's index: it is empty");
}

}  // namespace
}  // namespace cistern
