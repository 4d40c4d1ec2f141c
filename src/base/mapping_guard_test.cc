// SPDX-License-Identifier: Apache-2.0
#include "base/mapping_guard.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/assert.h"
#include "base/fd.h"
#include "base/test_call_filter.h"

namespace cistern {
namespace {

constexpr std::uint64_t kBytes = 16 * 4096;

struct CutFile {
  explicit CutFile(std::uint64_t bytes = kBytes) : fd(memfd_create("cut", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    map = std::move(*Mapping::Map(fd.get(), "cut", 0, bytes, Access::kReadWrite));
    for (std::byte& byte : map.bytes().first(kBytes)) byte = std::byte{7};
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

constexpr std::uint64_t kLargeBytes = std::uint64_t{1} << 30;

// From then on nothing larger than half of that is put in another mapping's place, as with
// vm.overcommit_memory=2 nothing is for which memory may lack. An address sanitizer puts an eighth of it.
void ForbidLargeReplacements() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kCallNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, CallArgument(3)),  // flags
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_FIXED, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, CallArgument(1)),  // length
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kLargeBytes / 2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  FilterCalls(steps);
}

void TouchWhatIsCutOffWithoutMemoryForAll() {
  CutFile file(kLargeBytes);
  MappingGuard guard(file.map, Access::kReadWrite);
  file.CutTo(0);
  ForbidLargeReplacements();
  for (std::uint64_t at = 0; at < 64 * 4096; at += 4096) CISTERN_ASSERT(file.map.bytes()[at] == std::byte{0});
  std::fprintf(stderr, "%s\n", guard.lost() ? "zeros" : "no guard");
}

TEST(MappingGuardDeathTest, R14WhatIsCutOffOfMoreThanTheSystemCommitsReadsAsZeros) {
  EXPECT_EXIT((TouchWhatIsCutOffWithoutMemoryForAll(), std::_Exit(0)), ::testing::ExitedWithCode(0), "zeros");
}

TEST(MappingGuardDeathTest, WhatIsInNoGuardedMappingEndsTheProcessAsBefore) {
  CutFile guarded, other;
  MappingGuard guard(guarded.map, Access::kReadWrite);
  other.CutTo(0);
  EXPECT_DEATH(other.map.bytes()[0] = std::byte{1}, "");  // of SIGBUS, or as a sanitizer that caught it says
}

}  // namespace
}  // namespace cistern
