// SPDX-License-Identifier: Apache-2.0
#include "io/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "io/test_files.h"

namespace cistern::io {
namespace {

class FilesTest : public testing::Test {
 protected:
  FilesTest() { dir_ = ::mkdtemp(dir_.data()); }
  ~FilesTest() override { std::filesystem::remove_all(dir_); }
  std::string Path(const char* name) { return dir_ + "/" + name; }
  std::string dir_ = (std::filesystem::temp_directory_path() / "cistern-files-XXXXXX").string();
};

TEST_F(FilesTest, ErrorsNameThePathAndTheReason) {
  Result<Fd> missing = OpenFile(Path("missing"), OpenMode::kRead);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().ToString(),
            "io_error: open " + Path("missing") + ": No such file or directory (ENOENT)");
  ASSERT_TRUE(OpenFile(Path("there"), OpenMode::kCreateNew).has_value());
  EXPECT_FALSE(OpenFile(Path("there"), OpenMode::kCreateNew).has_value());
  EXPECT_TRUE(OpenFile(Path("there"), OpenMode::kCreate).has_value());
}

TEST_F(FilesTest, AFileSystemWithoutODirectIsNamedWithTheWayOut) {
  Result<Fd> fd = OpenFile("/proc/self/comm", OpenMode::kDirect);
  ASSERT_FALSE(fd.has_value());
  EXPECT_EQ(fd.error().ToString(),
            "io_error: open /proc/self/comm past the page cache: its file system has no O_DIRECT; choose a "
            "directory on another file system, or a block device");
}

TEST_F(FilesTest, NoRoomIsAnErrorAtStartWithTheNumber) {
  Fd fd = std::move(*OpenFile(Path("huge"), OpenMode::kCreateNew));
  Status status = Preallocate(fd.get(), Path("huge"), std::uint64_t{1} << 42);
  EXPECT_EQ(status.code(), Code::kBusy);
  EXPECT_NE(status.message().find("4398046511104"), std::string::npos) << status.message();
  ASSERT_TRUE(Preallocate(fd.get(), Path("huge"), 1 << 20).ok());
  EXPECT_GE(*FileSize(fd.get(), Path("huge")), 1u << 20);
}

TEST_F(FilesTest, AReadDescriptorCannotBeMappedToWrite) {
  ASSERT_TRUE(Preallocate(OpenFile(Path("a"), OpenMode::kCreateNew)->get(), Path("a"), 4096).ok());
  Fd fd = std::move(*OpenFile(Path("a"), OpenMode::kRead));
  EXPECT_FALSE(Mapping::Map(fd.get(), Path("a"), 0, 4096, Access::kReadWrite).has_value());
  Mapping mapping = std::move(*Mapping::Map(fd.get(), Path("a"), 0, 4096, Access::kRead));
  EXPECT_NE(::mprotect(mapping.data(), 4096, PROT_READ | PROT_WRITE), 0);
}

TEST_F(FilesTest, MappingsOfAFileShareItsBytesAndOutliveItsDescriptor) {
  Fd fd = std::move(*OpenFile(Path("a"), OpenMode::kCreateNew));
  ASSERT_TRUE(Preallocate(fd.get(), Path("a"), 8192).ok());
  Mapping one = std::move(*Mapping::Map(fd.get(), Path("a"), 0, 8192, Access::kReadWrite));
  Mapping two = std::move(*Mapping::Map(fd.get(), Path("a"), 4096, 4096, Access::kRead));
  std::memcpy(one.data() + 4096, "shared", 6);
  EXPECT_EQ(std::memcmp(two.data(), "shared", 6), 0);
  fd.Close();
  Mapping moved = std::move(one);
  EXPECT_FALSE(one.valid());
  EXPECT_EQ(moved.size(), 8192u);
}

TEST_F(FilesTest, ALockIsHeldOnce) {
  Fd one = std::move(*OpenFile(Path("lock"), OpenMode::kCreate));
  Fd two = std::move(*OpenFile(Path("lock"), OpenMode::kCreate));
  ASSERT_TRUE(TryLock(one.get(), Path("lock")).ok());
  EXPECT_EQ(TryLock(two.get(), Path("lock")).code(), Code::kBusy);
  one.Close();
  EXPECT_TRUE(TryLock(two.get(), Path("lock")).ok());
}

TEST_F(FilesTest, AnEventFdCounts) {
  Fd fd = std::move(*MakeEventFd());
  EXPECT_FALSE(DrainEventFd(fd.get()));
  SignalEventFd(fd.get());
  SignalEventFd(fd.get());
  EXPECT_TRUE(DrainEventFd(fd.get()));
  EXPECT_FALSE(DrainEventFd(fd.get()));
}

}  // namespace
}  // namespace cistern::io
