// SPDX-License-Identifier: Apache-2.0
#include "client/mapped.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cistern::client {
namespace {

TEST(ForkMark, R15TellsTheSidesOfAForkApart) {
  Result<ForkMark> mark = ForkMark::Make();
  ASSERT_TRUE(mark.has_value());
  EXPECT_FALSE(mark->forked());
  const pid_t child = fork();
  if (child == 0) _exit(mark->forked() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(mark->forked());
}

TEST(Mapped, AnEmptyFileIsAnErrorThatNamesIt) {
  Descriptor file(memfd_create("empty", MFD_CLOEXEC));
  Result<Mapped> mapped = Mapped::Map(file, "index", Mapped::Access::kRead, false);
  ASSERT_FALSE(mapped.has_value());
  EXPECT_NE(mapped.error().message().find("index"), std::string::npos);
}

}  // namespace
}  // namespace cistern::client
