// SPDX-License-Identifier: Apache-2.0
#include "memory/arena_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "arena/protocol.h"
#include "arena/reader.h"
#include "base/format.h"
#include "base/test_directory.h"
#include "memory/host_memory.h"

namespace cistern::memory {
namespace {

constexpr std::uint64_t kBytes = 70u << 20;  // two chunks

class ArenaFileTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.memory_dir = directory_.path() + "/memory";
    options_.memory_bytes = kBytes;
    options_.lock_wait_us = 200'000;
  }

  Result<ArenaFile> Open() { return ArenaFile::Open(options_, clock_); }
  std::string path(const char* name) const { return options_.memory_dir + "/default/" + name; }
  static std::uint64_t Inode(const std::string& path) {
    struct stat info{};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return info.st_ino;
  }

  SystemClock clock_;
  const TestDirectory directory_;
  ArenaOptions options_;
};

TEST_F(ArenaFileTest, R14AnArenaIsWholeFromTheStartAndKeepsItsInode) {
  std::uint64_t arena_inode, index_inode;
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    EXPECT_TRUE(file->fresh());
    EXPECT_EQ(file->boot_count(), 1u);
    EXPECT_TRUE(file->notes().empty());
    EXPECT_EQ(file->arena().geometry().header_count, 2u);
    struct stat info{};
    ASSERT_EQ(::stat(path("arena").c_str(), &info), 0);
    EXPECT_LE(static_cast<std::uint64_t>(info.st_size), kBytes);
    EXPECT_GE(info.st_blocks * 512, info.st_size) << "sparse";
    file->arena().slot(0)[5] = std::byte{77};
    file->SetAlive(true);
    arena_inode = Inode(path("arena"));
    index_inode = Inode(path("index"));
  }
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_FALSE(file->fresh());
  EXPECT_EQ(file->boot_count(), 2u);
  EXPECT_EQ(file->arena().slot(0)[5], std::byte{77});
  EXPECT_EQ(file->arena().header()->node_alive, 0u) << "not before the new node says so";
  EXPECT_EQ(Inode(path("arena")), arena_inode);
  EXPECT_EQ(Inode(path("index")), index_inode);
}

TEST_F(ArenaFileTest, R12SessionsGetDescriptorsThatCannotBeMadeWritable) {
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file);
  for (int fd : {file->arena_fd(), file->index_fd()}) {
    EXPECT_EQ(::fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    void* map = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(map, MAP_FAILED);
    EXPECT_NE(::mprotect(map, 4096, PROT_READ | PROT_WRITE), 0);
    ::munmap(map, 4096);
  }
}

// A process of another user made the place before the node did.
class PreparedPlace : public ArenaFileTest {
 protected:
  void SetUp() override {
    ArenaFileTest::SetUp();
    if (::geteuid() != 0) GTEST_SKIP() << "gives directories to another user: run as root";
    ASSERT_TRUE(Open()) << "and what it leaves";
  }
  void ExpectRefused(const std::string& text) {
    Result<ArenaFile> file = Open();
    ASSERT_FALSE(file) << text;
    EXPECT_EQ(file.error().code(), Code::kDenied) << file.error().ToString();
    EXPECT_NE(file.error().message().find(text), std::string::npos) << file.error().ToString();
  }
  static constexpr uid_t kStranger = 54321;
};

TEST_F(PreparedPlace, R12ADirectoryOfAnotherUserIsRefusedByName) {
  ASSERT_EQ(::chown(options_.memory_dir.c_str(), kStranger, kStranger), 0);
  ExpectRefused(Text(options_.memory_dir, " belongs to user 54321"));
  ASSERT_EQ(::chown(options_.memory_dir.c_str(), 0, 0), 0);
  ASSERT_EQ(::chown(path("").c_str(), kStranger, kStranger), 0);
  ExpectRefused(Text(options_.memory_dir, "/default belongs to user 54321"));
}

TEST_F(PreparedPlace, R12ALinkOfAnotherUserIsRefused) {
  const std::string link = directory_.path() + "/link";
  ASSERT_EQ(::symlink(options_.memory_dir.c_str(), link.c_str()), 0);
  ASSERT_EQ(::lchown(link.c_str(), kStranger, kStranger), 0);
  options_.memory_dir = link;
  ExpectRefused(Text(link, " belongs to user 54321"));
}

TEST_F(PreparedPlace, R12ADirectoryInWhichOthersMayExchangeThingsIsRefused) {
  ASSERT_EQ(::chmod(options_.memory_dir.c_str(), 0777), 0);
  ExpectRefused(Text(options_.memory_dir, " has mode 0777"));
  ASSERT_EQ(::chmod(options_.memory_dir.c_str(), 01777), 0);  // as /dev/shm
  ASSERT_TRUE(Open());
  ASSERT_EQ(::chmod(path("").c_str(), 0755), 0);
  ExpectRefused(Text(options_.memory_dir, "/default has mode 0755"));
}

TEST_F(PreparedPlace, R12FilesThatOthersMayReadAreRefused) {
  for (const char* name : {"arena", "index", "lock"}) {
    ASSERT_EQ(::chmod(path(name).c_str(), 0666), 0);
    ExpectRefused(Text(path(name), " is a file of user 0 with mode 0666"));
    ASSERT_EQ(::chmod(path(name).c_str(), 0600), 0);
    ASSERT_EQ(::chown(path(name).c_str(), kStranger, kStranger), 0);
    ExpectRefused(Text(path(name), " is a file of user 54321"));
    ASSERT_EQ(::chown(path(name).c_str(), 0, 0), 0);
  }
  EXPECT_TRUE(Open());
}

TEST_F(ArenaFileTest, ADirectoryHeldByALivingNodeIsRefusedByItsPid) {
  int ready[2], end[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(end), 0);
  pid_t child = ::fork();
  if (child == 0) {
    ::close(end[1]);
    char byte = Open() ? 'y' : 'n';
    Result<ArenaFile> file = Open();  // its own lock: the first was given back
    static_cast<void>(!::write(ready[1], &byte, 1));
    static_cast<void>(!::read(end[0], &byte, 1));
    ::_exit(0);
  }
  ::close(end[0]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  Result<ArenaFile> file = Open();
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), Code::kBusy);
  EXPECT_NE(file.error().message().find(Text("pid ", child)), std::string::npos) << file.error().ToString();
  Result<std::uint64_t> forgotten = ForgetArena(options_.memory_dir, "default", clock_);
  ASSERT_FALSE(forgotten);
  EXPECT_EQ(forgotten.error().code(), Code::kBusy);
  // Killed, and not even waited for: the successor gets the lock as soon as the kernel lets go of it.
  ::kill(child, SIGKILL);
  options_.lock_wait_us = 300'000'000;
  file = Open();
  EXPECT_TRUE(file) << file.error().ToString();
  ::close(end[1]);
  ::waitpid(child, nullptr, 0);
}

TEST_F(ArenaFileTest, R8AnOrderlyEndGivesTheLockBackThoughTheKernelStillHoldsItsFile) {
  options_.lock_wait_us = 0;
  Fd in_a_ring;
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    // As the fixed files of a closed ring, which the kernel lets go of some time later.
    in_a_ring = Fd(::fcntl(file->lock_fd(), F_DUPFD_CLOEXEC, 0));
    ASSERT_TRUE(in_a_ring.valid());
  }
  Result<ArenaFile> next = Open();
  EXPECT_TRUE(next) << next.error().ToString();
}

TEST_F(ArenaFileTest, R8ALockThatADeadNodeLeftIsWaitedForAndThenNamed) {
  ASSERT_TRUE(Open());
  // Held by an open file that outlives the process whose name is in it, as unfinished I/O does.
  Result<Fd> held = io::OpenFile(path("lock"), io::OpenMode::kReadWrite);
  ASSERT_TRUE(held);
  ASSERT_TRUE(io::TryLock(held->get(), path("lock")).ok());
  pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  std::ofstream(path("lock")) << child << " 1\n";
  Result<ArenaFile> file = Open();
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), Code::kBusy);
  EXPECT_NE(file.error().message().find("200 ms"), std::string::npos) << file.error().ToString();
  held->Close();
  EXPECT_TRUE(Open());
}

TEST_F(ArenaFileTest, R8AForkedChildThatHasTheLockOfAKilledNodeIsNamed) {
  int said[2], go_on[2];
  ASSERT_EQ(::pipe(said), 0);
  ASSERT_EQ(::pipe(go_on), 0);
  const pid_t node = ::fork();
  if (node == 0) {
    ::close(go_on[1]);  // so that the child ends with this test
    const Result<ArenaFile> file = Open();
    const pid_t heir = file ? ::fork() : -1;
    if (heir == 0) {
      char end;
      ::_exit(static_cast<int>(::read(go_on[0], &end, 1)));
    }
    static_cast<void>(!::write(said[1], &heir, sizeof(heir)));
    ::raise(SIGKILL);
  }
  pid_t heir = 0;
  ASSERT_EQ(::read(said[0], &heir, sizeof(heir)), static_cast<ssize_t>(sizeof(heir)));
  ASSERT_GT(heir, 0);
  ::waitpid(node, nullptr, 0);
  const Result<ArenaFile> file = Open();
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().message().find(Text("process ", heir, ", which that one forked")), std::string::npos)
      << file.error().ToString();
  for (const int fd : {said[0], said[1], go_on[0], go_on[1]}) ::close(fd);
}

TEST_F(ArenaFileTest, AnotherVersionIsRefusedByName) {
  Open().value().arena().header()->version = 9;
  Result<ArenaFile> file = Open();
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), Code::kMismatch);
  EXPECT_NE(file.error().message().find("format version 9"), std::string::npos) << file.error().ToString();
  EXPECT_NE(file.error().message().find("cistern forget"), std::string::npos);
  EXPECT_TRUE(ForgetArena(options_.memory_dir, "default", clock_));
  EXPECT_TRUE(Open());
}

TEST_F(ArenaFileTest, WhatIsNoArenaIsNotOverwritten) {
  ASSERT_TRUE(Open());
  std::ofstream(path("arena"), std::ios::trunc) << "letters to a friend";
  Result<ArenaFile> file = Open();
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), Code::kMismatch);
  EXPECT_EQ(std::filesystem::file_size(path("arena")), 19u);
  // A damaged header is no smaller arena either.
  std::filesystem::remove(path("arena"));
  ASSERT_TRUE(Open());
  Open().value().arena().header()->header_count = 1;
  EXPECT_EQ(Open().error().code(), Code::kMismatch);
}

TEST_F(ArenaFileTest, AnArenaWithoutRoomKeepsItsSizeAndSaysSo) {
  ASSERT_TRUE(Open());
  options_.memory_bytes = 2 * kBytes;
  options_.alignment = 512;
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->arena().geometry(), arena::Geometry::Within(kBytes, 4096));
  ASSERT_EQ(file->notes().size(), 2u);
  EXPECT_NE(file->notes()[0].find("alignment"), std::string::npos) << file->notes()[0];
  for (const std::string& note : file->notes())
    EXPECT_NE(note.find("cistern forget"), std::string::npos) << note;
}

// An arena of two chunks that may have sixteen.
class RoomyArena : public ArenaFileTest {
 protected:
  void SetUp() override {
    ArenaFileTest::SetUp();
    options_.room_bytes = kRoomShare * kBytes;
  }
  static constexpr std::uint64_t kHeader = arena::Geometry::header_memory_bytes();
  std::uint64_t Held() const {
    struct stat info{};
    EXPECT_EQ(::stat(path("arena").c_str(), &info), 0);
    return static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  std::uint32_t Served(ArenaFile& file) { return arena::ServedHeaders(words_, file.arena()); }
  // As the node does it.
  void Grow(ArenaFile& file, std::uint32_t headers) {
    for (std::uint32_t header = Served(file); header < headers; ++header) {
      ASSERT_TRUE(file.Reserve(header).ok());
      arena::SetServedHeaders(words_, file.arena(), header + 1);
    }
  }
  arena::RealWords words_;
};

TEST_F(RoomyArena, R14RoomIsAddressesAndTakesNoMemory) {
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(Served(*file), 2u);
  EXPECT_GE(file->arena().geometry().header_count, 16u);
  EXPECT_LE(Held(), kBytes);
  EXPECT_GE(Held(), 2 * kHeader) << "what is served is not sparse";
  EXPECT_EQ(file->index().bucket_count(), file->arena().geometry().bucket_count(2));
}

TEST_F(RoomyArena, R14WhatItGivesBackTheHostHasAndGenerationsStay) {
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  const std::uint64_t before = Held();
  Grow(*file, 5);
  EXPECT_EQ(Held(), before + 3 * kHeader);
  const arena::ArenaSpace space = file->arena();
  const arena::Place place = space.geometry().place(4 * arena::kHeaderSpanBytes);
  words_.Store(space.generation(place), 77);
  words_.Store(&space.directory(place)->generation, 76);
  space.slot(place)[100] = std::byte{5};
  arena::SetServedHeaders(words_, space, 2);
  file->Release({2, 3});
  EXPECT_LT(Held(), before + kHeader);
  const std::uint64_t released = Held();
  EXPECT_EQ(words_.Load(space.generation(place)), 77u) << "R1: never repeated over the file's life";
  EXPECT_EQ(Held(), released);
  // A late reader's touch brings pages back, which read as zeros; the next look gives them back.
  EXPECT_EQ(words_.Load(&space.directory(place)->generation), 0u);
  EXPECT_EQ(space.slot(place)[100], std::byte{0});
  EXPECT_GT(Held(), released);
  file->Release({2, 14});
  EXPECT_EQ(Held(), released);
  Grow(*file, 5);
  EXPECT_EQ(Held(), before + 3 * kHeader);
}

TEST_F(RoomyArena, ARestartTakesMoreAtOnceAndKeepsWhatWasThere) {
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    file->arena().slot(0)[5] = std::byte{77};
  }
  const std::uint64_t before = Held();
  options_.memory_bytes = 2 * kBytes;
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_FALSE(file->fresh());
  EXPECT_EQ(Served(*file), 4u);
  EXPECT_EQ(file->asked_headers(), 4u);
  EXPECT_EQ(Held(), before + 2 * kHeader);
  EXPECT_EQ(file->arena().slot(0)[5], std::byte{77});
  EXPECT_TRUE(file->notes().empty());
  EXPECT_EQ(file->index().bucket_count(), file->arena().geometry().bucket_count(4)) << "R3";
}

// A start that takes a piece of one chunk, of four.
class FirstPiece : public RoomyArena {
 protected:
  void SetUp() override {
    RoomyArena::SetUp();
    options_.memory_bytes = 2 * kBytes;
    options_.first_bytes = arena::kHeaderSpanBytes;
  }
};

TEST_F(FirstPiece, R14AStartTakesAPieceAndTheIndexIsOfTheWhole) {
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    EXPECT_EQ(Served(*file), 1u);
    EXPECT_EQ(file->asked_headers(), 4u);
    EXPECT_LE(Held(), 2 * kHeader);
    EXPECT_GE(Held(), kHeader) << "what is served is not sparse";
    EXPECT_EQ(file->index().bucket_count(), file->arena().geometry().bucket_count(4)) << "R3";
    Grow(*file, 4);
  }
  // What it had it has at the next start, which takes no less than the piece.
  options_.first_bytes = 2 * arena::kHeaderSpanBytes;
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(Served(*file), 4u);
}

TEST_F(FirstPiece, R14NoRoomForTheWholeIsAStartErrorWithTheNumberThoughThePieceFits) {
  options_.memory_bytes = std::uint64_t{1} << 43;
  const Result<ArenaFile> fresh = Open();
  ASSERT_FALSE(fresh);
  EXPECT_EQ(fresh.error().code(), Code::kBusy);
  const arena::Geometry geometry = arena::Geometry::Within(options_.memory_bytes, 4096);
  EXPECT_NE(fresh.error().message().find(Text(geometry.file_bytes() + geometry.index_bytes())),
            std::string::npos)
      << fresh.error().ToString();
  EXPECT_FALSE(std::filesystem::exists(path("arena")));
  // And so of one that is there and has room for it.
  options_.memory_bytes = 2 * kBytes;
  options_.room_bytes = std::uint64_t{1} << 43;
  ASSERT_TRUE(Open());
  const std::uint64_t held = Held();
  options_.memory_bytes = std::uint64_t{1} << 42;
  EXPECT_EQ(Open().error().code(), Code::kBusy);
  EXPECT_EQ(Held(), held);
}

TEST_F(FirstPiece, P7AKillWhileItGrowsLeavesWhatItServedAndTheNextStartGoesOn) {
  std::uint64_t held;
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    Grow(*file, 3);
    file->arena().slot(file->arena().geometry().place(2 * arena::kHeaderSpanBytes))[7] = std::byte{9};
    held = Held();
    ASSERT_TRUE(file->Reserve(3).ok());  // and the kill
  }
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(Served(*file), 3u);
  EXPECT_EQ(file->asked_headers(), 4u);
  EXPECT_EQ(Held(), held) << "nothing is left of what nobody had served";
  EXPECT_EQ(file->arena().slot(file->arena().geometry().place(2 * arena::kHeaderSpanBytes))[7], std::byte{9});
  Grow(*file, 4);
  EXPECT_EQ(Served(*file), 4u);
}

TEST_F(RoomyArena, ARestartThatAsksForLessHasWhatWasThereUntilItShrinks) {
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    Grow(*file, 4);
  }
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->asked_headers(), 2u);
  EXPECT_EQ(Served(*file), 4u);
}

TEST_F(RoomyArena, P7WhatAKilledNodeHadNotGivenBackYetIsAtTheNextStart) {
  std::uint64_t held;
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    Grow(*file, 4);
    arena::SetServedHeaders(words_, file->arena(), 2);
    held = Held();
  }
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    EXPECT_EQ(Served(*file), 2u);
    EXPECT_LT(Held(), held - kHeader);
  }
  // And what it had not served yet.
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    held = Held();
    ASSERT_TRUE(file->Reserve(2).ok());
  }
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(Served(*file), 2u);
  EXPECT_EQ(Held(), held);
}

TEST_F(RoomyArena, R14WhatAnotherProgramPunchedIsWholeAgain) {
  ASSERT_TRUE(Open());
  const std::uint64_t held = Held();
  {
    Result<Fd> fd = io::OpenFile(path("arena"), io::OpenMode::kReadWrite);
    ASSERT_TRUE(fd);
    ASSERT_TRUE(io::ReleaseRange(fd->get(), path("arena"), 1 << 20, 1 << 20).ok());
    ASSERT_LT(Held(), held);
  }
  ASSERT_TRUE(Open());
  EXPECT_EQ(Held(), held);
}

TEST_F(RoomyArena, MoreThanTheHostOrTheRoomHasIsRefusedAndNothingChanged) {
  options_.room_bytes = std::uint64_t{1} << 40;
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    const Result<std::uint32_t> huge = file->HeadersOf(options_.room_bytes);
    ASSERT_TRUE(huge);
    Status refused = file->CheckGrowth(2, *huge);
    EXPECT_EQ(refused.code(), Code::kBusy);
    EXPECT_NE(refused.message().find(Text((*huge - 2) * kHeader)), std::string::npos) << refused.message();
    EXPECT_EQ(file->HeadersOf(std::uint64_t{1} << 41).error().code(), Code::kInvalid);
    EXPECT_EQ(file->HeadersOf(1 << 20).error().code(), Code::kInvalid);
  }
  const std::uint64_t held = Held();
  options_.memory_bytes = std::uint64_t{1} << 40;
  EXPECT_EQ(Open().error().code(), Code::kBusy);
  EXPECT_EQ(Held(), held);
  options_.memory_bytes = kBytes;
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(Served(*file), 2u);
}

TEST_F(RoomyArena, AnArenaThatWasMadeWithoutRoomShrinksAndGrowsBackToItsSize) {
  options_.room_bytes = 0;
  std::uint64_t held;
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    file->arena().slot(0)[5] = std::byte{77};
    held = Held();
    arena::SetServedHeaders(words_, file->arena(), 1);
    file->Release({1, 1});
    EXPECT_LT(Held(), held - kHeader / 2);
  }
  options_.memory_bytes = kBytes / 2;
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file) << file.error().ToString();
    EXPECT_EQ(Served(*file), 1u);
    EXPECT_TRUE(file->notes().empty());
  }
  options_.memory_bytes = kBytes;
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(Served(*file), 2u);
  EXPECT_EQ(file->arena().slot(0)[5], std::byte{77});
  EXPECT_EQ(Held(), held);
}

// The node of before there was room reads the size from the header, and would take all of it from the host.
TEST_F(RoomyArena, AFileWithRoomIsNotAsLongAsANodeOfBeforeBelieves) {
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_GT(std::filesystem::file_size(path("arena")), file->arena().geometry().file_bytes());
}

TEST_F(ArenaFileTest, NoRoomIsAStartErrorWithTheNumbers) {
  options_.memory_bytes = std::uint64_t{1} << 44;
  Result<ArenaFile> file = Open();
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), Code::kBusy);
  arena::Geometry geometry = arena::Geometry::Within(options_.memory_bytes, 4096);
  EXPECT_NE(file.error().message().find(Text(geometry.file_bytes() + geometry.index_bytes())),
            std::string::npos)
      << file.error().ToString();
  EXPECT_FALSE(std::filesystem::exists(path("arena"))) << "nothing half done";
  EXPECT_FALSE(std::filesystem::exists(path("arena.new")));
}

TEST_F(ArenaFileTest, OptionsAreRefusedByName) {
  auto refused = [&](auto change, const char* word) {
    ArenaOptions options = options_;
    change(options);
    Status status = options.Validate();
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_NE(status.message().find(word), std::string::npos) << status.ToString();
  };
  refused([](ArenaOptions& o) { o.tenant = "../other"; }, "../other");
  refused([](ArenaOptions& o) { o.tenant = ".."; }, "..");
  refused([](ArenaOptions& o) { o.memory_bytes = 1 << 20; }, "1048576");
  refused([](ArenaOptions& o) { o.alignment = 1024; }, "1024");
  refused([](ArenaOptions& o) { o.memory_dir = ""; }, "memory_dir");
  options_.memory_dir = directory_.path() + "/no/such";
  EXPECT_EQ(Open().error().code(), Code::kIoError);
  EXPECT_NE(Open().error().message().find("/no/such"), std::string::npos);
}

TEST_F(ArenaFileTest, ForgottenMeansFoundByNobody) {
  EXPECT_EQ(ForgetArena(options_.memory_dir, "default", clock_).error().code(), Code::kMiss);
  arena::RealWords words;
  Fd index_fd;
  std::uint64_t buckets;
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file);
    arena::SetIncarnation(words, file->index(), 3, 42);
    index_fd = Fd(::dup(file->index_fd()));
    buckets = file->index().bucket_count();
  }
  // A client that was not told still maps it.
  Result<Mapping> map = Mapping::Map(index_fd.get(), "index", 0, arena::kIndexBucketsOffset, Access::kRead);
  ASSERT_TRUE(map);
  arena::IndexView index(map->data(), buckets);
  EXPECT_EQ(words.Load(&index.header()->incarnations[3]), 42u);
  Result<std::uint64_t> freed = ForgetArena(options_.memory_dir, "default", clock_);
  ASSERT_TRUE(freed) << freed.error().ToString();
  EXPECT_GT(*freed, 64u << 20);
  EXPECT_EQ(words.Load(&index.header()->incarnations[3]), 0u);
  EXPECT_FALSE(std::filesystem::exists(path("arena")));
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->fresh());
}

TEST_F(ArenaFileTest, WhatAKilledFirstStartLeftIsForgottenToo) {
  {
    Result<ArenaFile> file = Open();
    ASSERT_TRUE(file);
  }
  std::filesystem::rename(path("arena"), path("arena.new"));
  std::filesystem::remove(path("index"));
  Result<std::uint64_t> freed = ForgetArena(options_.memory_dir, "default", clock_);
  ASSERT_TRUE(freed) << freed.error().ToString();
  EXPECT_GE(*freed, 64u << 20);
  EXPECT_FALSE(std::filesystem::exists(path("arena.new")));
}

TEST_F(ArenaFileTest, FaultInTouchesEveryChunkAndChangesNothing) {
  Result<ArenaFile> file = Open();
  ASSERT_TRUE(file);
  file->arena().slot(100)[7] = std::byte{9};
  {
    FaultIn fault_in(*file, 2);
    while (fault_in.headers_done() < file->arena().geometry().header_count) ::sched_yield();
  }
  EXPECT_EQ(file->arena().slot(100)[7], std::byte{9});
  unsigned char resident[1];
  ASSERT_EQ(::mincore(file->arena().slot(8000), 4096, resident), 0);
  EXPECT_TRUE(resident[0] & 1);
  FaultIn ended_at_once(*file, 2);
}

TEST(HostMemoryTest, TheLimitIsNoLessThanWhatIsAvailable) {
  Result<HostMemory> memory = ReadHostMemory();
  ASSERT_TRUE(memory) << memory.error().ToString();
  EXPECT_GT(memory->available_bytes, 0u);
  EXPECT_LE(memory->available_bytes, memory->limit_bytes);
}

}  // namespace
}  // namespace cistern::memory
