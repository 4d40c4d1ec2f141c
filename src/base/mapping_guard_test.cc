// SPDX-License-Identifier: Apache-2.0
#include "base/mapping_guard.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "base/fd.h"

namespace cistern {
namespace {

constexpr std::uint64_t kBytes = 16 * 4096;

struct CutFile {
  CutFile() : fd(memfd_create("cut", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd.get(), kBytes), 0);
    map = std::move(*Mapping::Map(fd.get(), "cut", 0, kBytes, Access::kReadWrite));
    for (std::byte& byte : map.bytes()) byte = std::byte{7};
  }
  void CutTo(std::uint64_t bytes) { EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0); }
  Fd fd;
  Mapping map;
};

TEST(MappingGuard, R14WhatIsCutOffReadsAsZerosAndIsSaid) {
  CutFile file;
  MappingGuard guard(file.map, Access::kReadWrite);
  EXPECT_FALSE(guard.lost());
  file.CutTo(4096);
  EXPECT_EQ(file.map.bytes()[4095], std::byte{7});
  EXPECT_FALSE(guard.lost()) << "nothing was touched";
  EXPECT_EQ(file.map.bytes()[5 * 4096 + 17], std::byte{0});
  EXPECT_TRUE(guard.lost());
  EXPECT_EQ(file.map.bytes()[kBytes - 1], std::byte{0});
  file.map.bytes()[4096] = std::byte{9};
  EXPECT_EQ(file.map.bytes()[4096], std::byte{9});
  EXPECT_EQ(file.map.bytes()[4095], std::byte{7});
}

TEST(MappingGuard, ItsPlaceIsFreeAfterItsEndAndMovesWithIt) {
  CutFile lost, sound;
  std::optional<MappingGuard> first(std::in_place, lost.map, Access::kReadWrite);
  lost.CutTo(0);
  EXPECT_EQ(lost.map.bytes()[0], std::byte{0});
  MappingGuard moved(std::move(*first));
  first.reset();
  EXPECT_TRUE(moved.lost());
  moved = MappingGuard();
  MappingGuard next(sound.map, Access::kReadWrite);
  EXPECT_FALSE(next.lost());
}

TEST(MappingGuardDeathTest, WhatIsInNoGuardedMappingEndsTheProcessAsBefore) {
  CutFile guarded, other;
  MappingGuard guard(guarded.map, Access::kReadWrite);
  other.CutTo(0);
  EXPECT_DEATH(other.map.bytes()[0] = std::byte{1}, "");  // of SIGBUS, or as a sanitizer that caught it says
}

}  // namespace
}  // namespace cistern
