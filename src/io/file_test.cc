// SPDX-License-Identifier: Apache-2.0
// Files past the page cache, vectored operations and file locks, alike in every body.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "base/test_directory.h"
#include "io/loop.h"
#include "io/simulated_loop.h"
#include "io/test_files.h"

namespace cistern::io {
namespace {

struct FreeBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

class Aligned {
 public:
  Aligned(std::size_t size, int seed)
      : size_(size), bytes_(static_cast<std::byte*>(std::aligned_alloc(4096, size))) {
    Random random(static_cast<std::uint64_t>(seed));
    for (std::byte& b : all()) b = static_cast<std::byte>(random.Next());
  }
  std::span<std::byte> all() const { return {bytes_.get(), size_}; }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte, FreeBytes> bytes_;
};

bool Same(std::span<const std::byte> a, std::span<const std::byte> b) { return std::ranges::equal(a, b); }

class FileTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "io_uring") {
      Status works = ProbeUring();
      if (!works.ok()) GTEST_SKIP() << works.ToString();
    }
    Start();
  }
  void TearDown() override { loop_.reset(); }
  void Start() {
    if (GetParam() == "simulated") {
      loop_ = std::move(*SimulatedLoop::Make(simulated_clock_, disk_, 1));
    } else {
      LoopOptions options;
      options.kind = GetParam() == "epoll" ? LoopKind::kEpoll : LoopKind::kUring;
      loop_ = std::move(*MakeLoop(system_clock_, options));
    }
  }
  std::string Path(const char* name) { return dir_.path() + "/" + name; }

  SystemClock system_clock_;
  SimulatedClock simulated_clock_;
  SimulatedDisk disk_{1};
  std::unique_ptr<Loop> loop_;
  const TestDirectory dir_{TestDirectory::On::kDisk};
};

INSTANTIATE_TEST_SUITE_P(Bodies, FileTest, testing::Values("io_uring", "epoll", "simulated"),
                         [](const auto& which) { return which.param; });

TEST_P(FileTest, ADirectFileIsWrittenReadAndHeldToItsLimits) {
  EXPECT_FALSE(loop_->Open(Path("direct"), OpenMode::kDirect).has_value());
  Result<File> opened = loop_->Open(Path("direct"), OpenMode::kDirectCreateNew);
  if (!opened) {
    EXPECT_NE(opened.error().message().find("choose a directory"), std::string::npos);
    GTEST_SKIP() << opened.error().ToString();
  }
  File file = std::move(*opened);
  DirectLimits limits = *file.Direct();
  EXPECT_FALSE(limits.block_device);
  ASSERT_TRUE(limits.offset_align > 1 && limits.offset_align <= 4096);
  ASSERT_TRUE(limits.memory_align > 1 && limits.memory_align <= 4096);
  Aligned written(65536, 1);
  Aligned read(65536, 2);
  EXPECT_TRUE(loop_->BlockOn(file.WriteAll(written.all(), 8192)).ok());
  EXPECT_TRUE(loop_->BlockOn(file.Sync()).ok());
  EXPECT_EQ(*file.Size(), 73728u);
  File again = std::move(*loop_->Open(Path("direct"), OpenMode::kDirect));
  EXPECT_TRUE(loop_->BlockOn(again.ReadAll(read.all(), 8192)).ok());
  EXPECT_TRUE(Same(read.all(), written.all()));

  Status status = loop_->BlockOn(file.WriteAll(written.all(), 100));
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("(65536 bytes at 0x64)"), std::string::npos) << status.message();
  EXPECT_EQ(loop_->BlockOn(file.ReadAll(read.all().first(1000), 0)).code(), Code::kInvalid);
  EXPECT_EQ(loop_->BlockOn(file.ReadAll(read.all().subspan(1, 4096), 0)).code(), Code::kInvalid);
}

TEST_P(FileTest, AFileHasANameUntilItIsRemovedOrReplaced) {
  File file = *loop_->Open(Path("f"), OpenMode::kCreate);
  EXPECT_TRUE(file.Named());
  ASSERT_TRUE(loop_->Rename(Path("f"), Path("g")).ok());
  EXPECT_TRUE(file.Named());
  File other = *loop_->Open(Path("f"), OpenMode::kCreate);
  ASSERT_TRUE(loop_->Rename(Path("f"), Path("g")).ok());
  EXPECT_FALSE(file.Named());
  EXPECT_TRUE(other.Named());
  ASSERT_TRUE(loop_->Remove(Path("g")).ok());
  EXPECT_FALSE(other.Named());
}

TEST_P(FileTest, PiecesGoOneAfterTheOther) {
  File file = std::move(*loop_->Open(Path("pieces"), OpenMode::kCreateNew));
  Aligned from(16384, 1);
  Aligned to(16384, 2);
  // More than one operation takes, with empty ones between.
  std::vector<std::span<const std::byte>> out;
  for (std::size_t at = 0; at < 3 * kMaxPieces; ++at) {
    out.push_back(from.all().subspan(5 * at, 5));
    if (at % 7 == 0) out.emplace_back();
  }
  EXPECT_TRUE(loop_->BlockOn(file.WriteAllV(out, 10)).ok());
  EXPECT_EQ(*file.Size(), 10 + 15 * kMaxPieces);
  const auto in = to.all().first(15 * kMaxPieces);
  EXPECT_TRUE(loop_->BlockOn(file.ReadAll(in, 10)).ok());
  EXPECT_TRUE(Same(in, from.all().first(15 * kMaxPieces)));
}

TEST_P(FileTest, ALockKeepsOutEveryOtherOpenFileUntilItIsClosed) {
  File mine = std::move(*loop_->Open(Path("lock"), OpenMode::kCreate));
  File other = std::move(*loop_->Open(Path("lock"), OpenMode::kCreate));
  ASSERT_TRUE(loop_->Lock(mine).ok());
  EXPECT_TRUE(loop_->Lock(mine).ok());
  EXPECT_EQ(loop_->Lock(other).code(), Code::kBusy);
  // More often than locks can be held at once, so each close gives its own back.
  for (std::size_t i = 0; i < 2 * Loop::kMaxLocks; ++i) {
    mine = File();
    ASSERT_TRUE(loop_->Lock(other).ok());
    mine = std::move(other);
    other = std::move(*loop_->Open(Path("lock"), OpenMode::kCreate));
    ASSERT_EQ(loop_->Lock(other).code(), Code::kBusy);
  }
}

// As a program ends: the thread of the loop has gone, and another one closes what is left.
TEST_P(FileTest, ALockIsGivenBackByAnotherThreadThanTheLoops) {
  File mine = std::move(*loop_->Open(Path("lock"), OpenMode::kCreate));
  std::jthread([&] {
    std::vector<std::byte> bytes(100);
    EXPECT_TRUE(loop_->BlockOn(mine.WriteAll(bytes, 0)).ok());
    EXPECT_TRUE(loop_->Lock(mine).ok());
  }).join();
  mine = File();
  File other = std::move(*loop_->Open(Path("lock"), OpenMode::kCreate));
  EXPECT_EQ(*other.Size(), 100u);
  if (GetParam() == "io_uring") {
    Fd fd = std::move(*OpenFile(Path("lock"), OpenMode::kReadWrite));
    EXPECT_TRUE(TryLock(fd.get(), Path("lock")).ok());
  } else {
    EXPECT_TRUE(loop_->Lock(other).ok());
  }
}

TEST_P(FileTest, AKilledProcessKeepsTheLockOfAFileNoLongerThanItsOperations) {
  if (GetParam() == "simulated") GTEST_SKIP() << "Kill has tests of its own";
  Fd other = std::move(*OpenFile(Path("lock"), OpenMode::kCreate));
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  loop_.reset();  // no threads across the fork
  pid_t child = ::fork();
  if (child == 0) {
    Start();
    File lock = std::move(*loop_->Open(Path("lock"), OpenMode::kCreate));
    char c = loop_->Lock(lock).ok() ? 'y' : 'n';
    File file = std::move(*loop_->Open(Path("file"), OpenMode::kCreate));
    Aligned bytes(1 << 20, 1);
    std::vector<Task<Status>> writes;
    for (std::uint64_t i = 0; i < 32; ++i) writes.push_back(file.WriteAll(bytes.all(), i << 20));
    while (::write(ready[1], &c, 1) == 1) loop_->PollOnce();
    ::_exit(0);
  }
  Fd in(ready[0]);
  Fd(ready[1]).Close();
  char c = 0;
  ASSERT_EQ(::read(in.get(), &c, 1), 1);
  EXPECT_EQ(c, 'y');
  EXPECT_EQ(TryLock(other.get(), Path("lock")).code(), Code::kBusy);
  ::kill(child, SIGKILL);
  EXPECT_TRUE(WaitLock(other.get()));
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace cistern::io
