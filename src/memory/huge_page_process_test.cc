// SPDX-License-Identifier: Apache-2.0
#include "memory/huge_page_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "arena/geometry.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/huge_pages.h"
#include "base/test_directory.h"
#include "memory/arena_file.h"

namespace cistern::memory {
namespace {

constexpr const char* kSelf = "/proc/self/exe";
constexpr int kLong = 300'000;  // ms

std::string CommandLineOf(const std::string& process) {
  std::ifstream file("/proc/" + process + "/cmdline");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// This program is the process too.
const bool kIsTheTest = [] {
  if (CommandLineOf("self") == Text("cistern-pages", '\0', kHugePageWord, '\0'))
    ::_exit(RunHugePageProcess());
  return true;
}();

Fd Watch(pid_t pid) { return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

bool Ended(const Fd& process, int timeout_ms) {
  pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, timeout_ms) == 1;
}

class HugePageProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.memory_dir = directory_.path();
    options_.memory_bytes = 70u << 20;  // two headers
    options_.huge_page_program = kSelf;
  }

  ArenaFile Open() {
    Result<ArenaFile> file = ArenaFile::Open(options_, clock_);
    if (!file) ADD_FAILURE() << file.error().ToString();
    return std::move(*file);
  }
  static std::span<std::byte> SlotsOf(const ArenaFile& file) {
    return {file.arena().slot(0), file.arena().geometry().slots_bytes()};
  }

  SystemClock clock_;
  const TestDirectory directory_;
  ArenaOptions options_;
};

// Of this process's mapping that begins there.
std::string SmapsOf(const std::byte* at, const std::string& field) {
  std::ifstream smaps("/proc/self/smaps");
  const std::string begin = Hex(reinterpret_cast<std::uintptr_t>(at)).substr(2) + "-";
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with(begin)) here = true;
    if (here && line.starts_with(field)) return line;
  }
  return "";
}

TEST_F(HugePageProcessTest, WhatTheNodeMapsIsMovedAsItWouldMoveItAndNoByteChanges) {
  const auto fill = [](std::span<std::byte> slots) {
    for (std::size_t at = 0; at < slots.size(); at += 512) slots[at] = std::byte(at / 512 * 7 + at / 4096);
  };
  const auto move = [&](const char* program) {
    options_.huge_page_program = program;
    std::filesystem::remove_all(directory_.path());
    std::filesystem::create_directory(directory_.path());
    ArenaFile file = Open();
    fill(SlotsOf(file));
    const std::vector<std::byte> bytes(SlotsOf(file).begin(), SlotsOf(file).end());
    file.MakePresent(0);
    file.MakePresent(1);
    EXPECT_EQ(file.huge_page_process() != nullptr, *program != '\0');
    EXPECT_TRUE(std::ranges::equal(SlotsOf(file), bytes));
    return SmapsOf(reinterpret_cast<const std::byte*>(file.arena().header()), "ShmemPmdMapped");
  };
  // Another program may take the host's huge pages between two runs.
  std::string here, there;
  for (int round = 0; round == 0 || (here != there && round < 10); ++round) {
    here = move("");
    there = move(kSelf);
  }
  EXPECT_NE(here, "");
  EXPECT_EQ(here, there);
  RecordProperty("moved", there);
}

TEST_F(HugePageProcessTest, ANodeThatIsKilledBeforeItTookAnAnswerIsNothingToComplainOf) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  Fd node(ends[0]);
  constexpr int kOrders = 4;
  const pid_t pid = ::fork();
  if (pid == 0) {
    node.Close();
    if (ends[1] != kOrders) ::dup2(ends[1], kOrders);
    if (ends[1] != kOrders) ::close(ends[1]);
    ::_exit(RunHugePageProcess());
  }
  ::close(ends[1]);
  const std::uint64_t order[2] = {0, 0};
  ASSERT_EQ(::send(node.get(), order, sizeof(order), 0), static_cast<ssize_t>(sizeof(order)));
  pollfd answered{.fd = node.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&answered, 1, kLong), 1);
  node.Close();
  int how = -1;
  ASSERT_EQ(::waitpid(pid, &how, 0), pid);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
}

TEST_F(HugePageProcessTest, WhatIsWrittenMeanwhileStays) {
  ArenaFile file = Open();
  const std::span<std::byte> slots = SlotsOf(file);
  std::atomic<bool> done{false};
  std::uint64_t rounds = 0, wrong = 0;
  std::thread writes([&] {
    for (; !done || rounds == 0; ++rounds) {
      for (std::size_t at = 0; at < slots.size(); at += 65'536) {
        const std::uint64_t value = rounds * 1'000'003 + at;
        std::memcpy(&slots[at], &value, sizeof(value));
        std::uint64_t read;
        std::memcpy(&read, &slots[at], sizeof(read));
        wrong += read != value;
      }
    }
  });
  {
    FaultIn fault_in(file, 2);
    while (fault_in.headers_done() < 2) ::sched_yield();
  }
  done = true;
  writes.join();
  for (std::size_t at = 0; at < slots.size(); at += 65'536) {
    const std::uint64_t value = (rounds - 1) * 1'000'003 + at;
    wrong += std::memcmp(&slots[at], &value, sizeof(value)) != 0;
  }
  EXPECT_EQ(wrong, 0u);
}

// It can change no byte, and nothing that outlives the node hangs on it.
TEST_F(HugePageProcessTest, ItHasTheArenaToReadAndNothingElseOfTheNode) {
  ArenaFile file = Open();
  HugePageProcess* process = file.huge_page_process();
  ASSERT_NE(process, nullptr);
  ASSERT_TRUE(process->Move(0, kHugePageBytes));  // so it runs
  const std::string proc = Text("/proc/", process->pid());
  std::set<int> descriptors;
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd"))
    descriptors.insert(std::stoi(entry.path().filename()));
  EXPECT_EQ(descriptors, (std::set<int>{2, 3, 4, 5}));
  EXPECT_EQ(std::filesystem::read_symlink(proc + "/fd/3"), directory_.path() + "/default/arena");
  std::ifstream info(proc + "/fdinfo/3");
  const std::string said(std::istreambuf_iterator<char>(info), {});
  const std::size_t flags = said.find("flags:");
  ASSERT_NE(flags, std::string::npos);
  EXPECT_EQ(std::stoul(said.substr(flags + 6), nullptr, 8) & O_ACCMODE, std::uint64_t{O_RDONLY});
  std::ifstream comm(proc + "/comm");
  std::string name;
  std::getline(comm, name);
  EXPECT_EQ(name, "cistern-pages");
}

TEST_F(HugePageProcessTest, ItEndsWithItsObjectAndIsNoZombie) {
  Fd process;
  pid_t pid;
  {
    const ArenaFile file = Open();
    pid = file.huge_page_process()->pid();
    process = Watch(pid);
    FaultIn fault_in(file, 2);
  }
  EXPECT_TRUE(Ended(process, kLong));
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST_F(HugePageProcessTest, WhoWaitsForItIsReleasedByItsEnd) {
  ArenaFile file = Open();
  Status awaited(Code::kBusy, "");
  std::thread waits([&] { awaited = file.huge_page_process()->Await(); });
  file.huge_page_process()->End();
  waits.join();
  EXPECT_TRUE(awaited.ok()) << awaited.ToString();
  EXPECT_FALSE(file.huge_page_process()->Move(0, kHugePageBytes));
}

// As a terminal or a supervisor does, to all processes of a node at once.
TEST_F(HugePageProcessTest, ASignalThatEndsTheNodeInOrderDoesNotEndIt) {
  ArenaFile file = Open();
  HugePageProcess* process = file.huge_page_process();
  ASSERT_TRUE(process->Move(0, kHugePageBytes));
  for (int signal_number : {SIGTERM, SIGINT, SIGHUP}) {
    ASSERT_EQ(::kill(process->pid(), signal_number), 0);
    EXPECT_TRUE(process->Move(0, kHugePageBytes)) << signal_number;
  }
}

TEST_F(HugePageProcessTest, P5AProcessThatHangsIsWaitedForSoLongAndNoLonger) {
  const ArenaFile file = Open();
  const Fd arena(::open((directory_.path() + "/default/arena").c_str(), O_RDONLY | O_CLOEXEC));
  auto process = HugePageProcess::Start(kSelf, arena.get(), 1);
  ASSERT_TRUE(process.has_value()) << process.error().ToString();
  const pid_t pid = (*process)->pid();
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  ASSERT_EQ(::waitpid(pid, nullptr, WUNTRACED), pid);
  EXPECT_FALSE((*process)->Move(0, kHugePageBytes));
  EXPECT_FALSE((*process)->Move(0, kHugePageBytes)) << "beside an order that it has";
  ASSERT_EQ(::kill(pid, SIGCONT), 0);
  while (!(*process)->Move(0, kHugePageBytes)) ::sched_yield();
}

// However early the node is killed: nobody else has the other end of its socket.
TEST_F(HugePageProcessTest, ItEndsWhenItsNodeIsKilled) {
  for (const bool moves : {false, true}) {
    int told[2];
    ASSERT_EQ(::pipe2(told, O_CLOEXEC), 0);
    const Fd says(told[0]), tells(told[1]);
    const pid_t node = ::fork();
    if (node == 0) {
      const ArenaFile file = Open();
      const pid_t pid = file.huge_page_process()->pid();
      if (moves) file.MakePresent(0);
      static_cast<void>(!::write(tells.get(), &pid, sizeof(pid)));
      for (;;) ::pause();
    }
    pid_t pid = -1;
    ASSERT_EQ(::read(says.get(), &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
    const Fd process = Watch(pid);
    ASSERT_TRUE(process.valid());
    ::kill(node, SIGKILL);
    ::waitpid(node, nullptr, 0);
    EXPECT_TRUE(Ended(process, kLong)) << pid << " lives on";
  }
}

TEST_F(HugePageProcessTest, WithoutTheProgramAnArenaServesAndANoteSaysSo) {
  options_.huge_page_program = directory_.path() + "/nothing";
  const ArenaFile file = Open();
  ASSERT_EQ(file.notes().size(), 1u);
  EXPECT_NE(file.notes()[0].find("/nothing: No such file"), std::string::npos) << file.notes()[0];
  EXPECT_EQ(file.huge_page_process(), nullptr);
  FaultIn fault_in(file, 2);
  while (fault_in.headers_done() < 2) ::sched_yield();
}

TEST_F(HugePageProcessTest, AProcessThatEndsIsSaidOnceAndReapedAndTheRestGoesOnWithoutIt) {
  for (const char* program : {"/bin/false", kSelf}) {
    options_.huge_page_program = program;
    ArenaFile file = Open();
    ASSERT_NE(file.huge_page_process(), nullptr);
    const pid_t pid = file.huge_page_process()->pid();
    std::vector<std::string> said;
    std::atomic<bool> told{false};
    {
      FaultIn fault_in(file, 2, [&](const Status& gone) {
        said.push_back(std::string(gone.message()));
        told = true;
      });
      while (fault_in.headers_done() < 2) ::sched_yield();
      if (program == kSelf) ::kill(pid, SIGKILL);
      while (!told) ::sched_yield();
      EXPECT_EQ(::kill(pid, 0), -1);
    }
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find(program == kSelf ? "by signal 9" : "with status 1"), std::string::npos) << said[0];
    EXPECT_TRUE(file.Reserve(1).ok());
  }
}

}  // namespace
}  // namespace cistern::memory
