// SPDX-License-Identifier: Apache-2.0
// Real trouble below a real node (promises 1 and 7): a disk without room, one that fills up beside it, a file
// system that becomes read-only, a device that goes, a device that cannot write. The node lives on, says so
// once, serves from memory and what else it has, and takes the device in again without a restart.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "base/fd.h"
#include "base/task.h"
#include "base/test_directory.h"
#include "host.h"
#include "io/loop.h"
#include "load.h"

namespace cistern {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMemory = 128u << 20;
constexpr std::uint64_t kFlash = 256u << 20;
constexpr std::uint64_t kMore = 200;  // puts: with them memory is more than full

std::uint64_t CountOf(const std::string& text, const std::string& what) {
  std::uint64_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// A file system of its own on a loop device, as long as it lives.
class FileSystem {
 public:
  FileSystem(const std::string& directory, std::uint64_t bytes) : device_(directory + "/image", bytes) {
    if (!device_.why().empty()) return;
    RunCommand("mkfs.ext4 -q " + device_.path());
    mount_.emplace(directory + "/mounted", device_.path());
  }
  // Why it is not there; empty: it is.
  const std::string& why() const { return mount_ ? mount_->why() : device_.why(); }
  Mount& mount() { return *mount_; }

 private:
  LoopDevice device_;
  std::optional<Mount> mount_;
};

class FlashTrouble : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override {
    load_.reset();
    node_.reset();
    if (capturing_) (void)Said();
  }

  void StartNode(std::vector<FlashVolume> flash, const std::string& journal_dir = {}) {
    capturing_ = true;
    testing::internal::CaptureStderr();
    node_.emplace(kMemory, [&](node::NodeOptions& options) {
      options.loop = GetParam();
      options.log_level = "warning";
      options.slow_calls_us = 0;  // how long calls take is the disk's and the host's
      options.flash = std::move(flash);
      options.journal_dir = journal_dir;
    });
  }
  // All that the node logged, but for how long its start and its end take, which is the host's; to be asked
  // once.
  std::string Said() {
    capturing_ = false;
    std::string said;
    std::istringstream lines(testing::internal::GetCapturedStderr());
    for (std::string line; std::getline(lines, line);) {
      if (line.find(" s it is still ") == std::string::npos) said += line + "\n";
    }
    return said;
  }
  // A node with flash on `path` and on another device beside it, under load.
  void StartBeside(const std::string& path, std::uint64_t bytes) {
    const std::string other = disk_.path() + "/other";
    fs::create_directory(other);
    StartNode({{path, bytes}, {other, kFlash}}, disk_.path());
    StartLoad();
    load_->Await(kMore);
  }
  void StartLoad() { load_.emplace(*node_, 1'000'000 * ++loads_); }
  void EndLoad() {
    EXPECT_EQ(load_->failure(), "");
    EXPECT_EQ(load_->wrong(), 0u);
    load_.reset();
  }

  std::string Status() {
    Store store = node_->Connect();
    return store.StatusJson().value_or("");
  }
  void AwaitOut() {
    Until([&] { return Status().find("\"in_service\":false") != std::string::npos; });
  }
  // As a person does it.
  Ran Change(const std::string& what, const std::string& path) {
    const std::string program = fs::read_symlink("/proc/self/exe").parent_path() / "cistern";
    return RunCommand(program + " device --socket " + node_->socket() + " " + what + " " + path);
  }
  Ran BringBack(const std::string& path) { return Change("bring-back", path); }
  // What the device had has to be forgotten and its transfers have to end first; it says so.
  void AwaitBack(const std::string& path) {
    Ran ran;
    Until([&] {
      ran = BringBack(path);
      return ran.code == 0 || ran.said.find("try again") == std::string::npos;
    });
    EXPECT_EQ(ran.code, 0) << ran.said;
    EXPECT_EQ(Status().find("\"in_service\":false"), std::string::npos);
  }
  // New blocks go down to flash, more of them than memory has room for, and are read back from there. What
  // the load left is dropped first: then there is room for all of them, and none may be missing.
  void ExpectFlashServes() {
    Store store = node_->Connect();
    Namespace before = AttachTest(store);
    const auto dropped = store.DropNamespace(before).Wait();
    ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
    const Namespace ns = AttachTest(store);
    const std::uint64_t first = 900'000'000, count = kMemory / kLoadBytes + 100;
    const std::uint64_t fetched = StatusNumber(store, "fetched_records");
    for (std::uint64_t number = first; number < first + count; ++number) {
      const std::uint64_t written = StatusNumber(store, "written_down");
      ASSERT_TRUE(PutBlock(store, ns, number, std::nullopt, kLoadBytes).ok()) << number;
      Until([&] { return StatusNumber(store, "written_down") > written; });
    }
    for (std::uint64_t number = first; number < first + count; ++number) {
      const auto body = store.Get(ns, KeyOf(number));
      ASSERT_TRUE(body.has_value()) << number - first << ": " << body.error().ToString();
      EXPECT_EQ(*body, BodyOf(number, kLoadBytes)) << number;
    }
    EXPECT_GT(StatusNumber(store, "fetched_records"), fetched);
  }
  // One put and read while there is no flash.
  void ExpectMemoryServes(std::uint64_t number) {
    Store store = node_->Connect();
    const Namespace ns = AttachTest(store);
    const auto put = PutBlock(store, ns, number, std::nullopt, kLoadBytes);
    EXPECT_TRUE(put.ok()) << put.ToString();
    const auto body = store.Get(ns, KeyOf(number));
    ASSERT_TRUE(body.has_value()) << body.error().ToString();
    EXPECT_EQ(*body, BodyOf(number, kLoadBytes));
  }
  void ExpectSaidOnce(const std::string& path) {
    const std::string said = Said();
    EXPECT_EQ(CountOf(said, "is out of service"), 1u) << said;
    EXPECT_NE(said.find(path), std::string::npos) << said;
    EXPECT_NE(said.find("bring-back " + path), std::string::npos) << said;
    // What is under way when it goes may each say a line: reads, the scrubber, a table. What was on it says
    // none.
    EXPECT_LE(CountOf(said, "\n"), 12u) << said;
  }

  TestDirectory disk_{TestDirectory::On::kDisk};
  std::optional<RealNode> node_;
  std::optional<Load> load_;
  bool capturing_ = false;
  std::uint64_t loads_ = 0;
};

TEST_P(FlashTrouble, NoRoomAtStartIsSaidAndNothingIsLeft) {
  FileSystem files(disk_.path(), 128u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  node::NodeOptions options;
  options.loop = GetParam();
  options.memory_dir = disk_.path() + "/memory";
  options.memory_bytes = kMemory;
  options.log_level = "error";
  options.flash = {{mount.path(), kFlash}};
  const auto node = node::Node::Start(options);
  ASSERT_FALSE(node.has_value());
  EXPECT_NE(node.error().ToString().find(mount.path()), std::string::npos) << node.error().ToString();
  EXPECT_NE(node.error().ToString().find("room"), std::string::npos) << node.error().ToString();
  EXPECT_FALSE(fs::exists(mount.path() + "/default/flash"));
}

// The file is real from the start. What alone takes room is the journal: a drop that cannot be made durable
// is not acknowledged, and works again when there is room.
TEST_P(FlashTrouble, AFileSystemThatFillsUpBesideItChangesNothing) {
  FileSystem files(disk_.path(), 512u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  StartNode({{mount.path(), kFlash}});
  StartLoad();
  load_->Await(kMore);
  EXPECT_GT(FillUp(mount.path() + "/filled"), 10u << 20);
  load_->Await(4 * kMore);  // through all of flash, and around
  Store store = node_->Connect();
  const Namespace ns = AttachTest(store);
  ExpectMemoryServes(500'000'000);
  const BlockKey key = KeyOf(500'000'000);
  const auto full = store.Drop(ns, std::span(&key, 1)).Wait();
  EXPECT_EQ(store.Get(ns, key).has_value(), !full.has_value());
  EXPECT_EQ(Status().find("\"in_service\":false"), std::string::npos);
  EXPECT_EQ(StatusNumber(store, "errors"), 0u);
  EndLoad();
  ExpectFlashServes();
  fs::remove(mount.path() + "/filled");
  const auto roomy = store.Drop(AttachTest(store), std::span(&key, 1)).Wait();
  EXPECT_TRUE(roomy.has_value()) << roomy.error().ToString();
  node_.reset();
  EXPECT_EQ(Said(), "");
}

TEST_P(FlashTrouble, ANodeStartsAgainOnADiskThatIsFull) {
  FileSystem files(disk_.path(), 512u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  StartNode({{mount.path(), kFlash}});
  ExpectMemoryServes(500'000'000);
  EXPECT_GT(FillUp(mount.path() + "/filled"), 10u << 20);
  for (int again = 0; again < 3; ++again) {
    node_->Stop();
    ASSERT_NO_FATAL_FAILURE(node_->Start());
  }
  Store store = node_->Connect();
  EXPECT_TRUE(store.Get(AttachTest(store), KeyOf(500'000'000)).has_value());
  ExpectMemoryServes(500'000'001);
}

TEST_P(FlashTrouble, AReadOnlyFileSystemCostsItsDeviceOnly) {
  FileSystem files(disk_.path(), 512u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  StartNode({{mount.path(), kFlash}}, disk_.path());
  StartLoad();
  load_->Await(kMore);
  // As it does by itself on an error (errors=remount-ro).
  ASSERT_TRUE(mount.Change("abort"));
  AwaitOut();
  load_->Await(kMore);
  ExpectMemoryServes(500'000'000);
  EXPECT_NE(BringBack(mount.path()).code, 0);
  ExpectMemoryServes(500'000'001);
  // The node lets go of it, so that it can be mounted anew.
  Until([&] { return mount.Unmount(); });
  ASSERT_TRUE(mount.Again());
  AwaitBack(mount.path());
  EndLoad();
  ExpectFlashServes();
  node_.reset();
  ExpectSaidOnce(mount.path());
}

// A drop that cannot be made durable is not acknowledged; whether it holds is open until it is sent again.
TEST_P(FlashTrouble, AReadOnlyJournalCostsDropsOnly) {
  FileSystem files(disk_.path(), 512u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  StartNode({{mount.path(), kFlash}});
  StartLoad();
  load_->Await(kMore);
  ASSERT_TRUE(mount.Change("abort"));
  AwaitOut();
  load_->Await(kMore);
  ExpectMemoryServes(500'000'000);
  Store store = node_->Connect();
  const BlockKey key = KeyOf(500'000'000);
  const auto dropped = store.Drop(AttachTest(store), std::span(&key, 1)).Wait();
  ASSERT_FALSE(dropped.has_value());
  EXPECT_EQ(dropped.error().code(), Code::kIoError) << dropped.error().ToString();
  EXPECT_NE(dropped.error().ToString().find(mount.path()), std::string::npos) << dropped.error().ToString();
  load_->Await(kMore);
  EndLoad();
  node_.reset();
  ExpectSaidOnce(mount.path());
}

// The media still hold it all when the node starts again (R10).
TEST_P(FlashTrouble, WhatWasDroppedWhileADeviceWasOutStaysAway) {
  FileSystem files(disk_.path(), 512u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  StartNode({{mount.path(), kFlash}}, disk_.path());
  std::vector<BlockKey> keys;
  {
    Store store = node_->Connect();
    const Namespace ns = AttachTest(store);
    for (std::uint64_t number = 0; number < kLoadChain; ++number) {
      ASSERT_TRUE(PutBlock(store, ns, number, std::nullopt, kLoadBytes).ok());
      keys.push_back(KeyOf(number));
    }
    Until([&] { return StatusNumber(store, "written_down") >= kLoadChain; });
    ASSERT_TRUE(mount.Change("abort"));
    StartLoad();
    AwaitOut();
    EndLoad();
    const auto dropped = store.Drop(ns, keys).Wait();
    ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  }
  node_->Stop();
  // The kernel lets go of a node's files some time after their end.
  Until([&] { return mount.Unmount(); });
  ASSERT_TRUE(mount.Again());
  fs::remove_all(node_->directory() + "/memory");
  ASSERT_NO_FATAL_FAILURE(node_->Start());
  Store store = node_->Connect();
  const Namespace ns = AttachTest(store);
  for (const BlockKey& key : keys) EXPECT_FALSE(store.Get(ns, key).has_value());
  ExpectFlashServes();
}

// A file system that is frozen holds its writes and lets go of them when it thaws.
TEST_P(FlashTrouble, ADeviceThatHangsCostsItselfOnly) {
  FileSystem files(disk_.path(), 512u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  StartBeside(mount.path(), kFlash);
  ASSERT_TRUE(mount.Freeze(true));
  load_->Await(4 * kMore);  // puts do not wait for it
  AwaitOut();
  load_->Await(kMore);
  EXPECT_EQ(CountOf(Status(), "\"in_service\":true"), 1u);
  ExpectMemoryServes(500'000'000);
  const Ran hangs = BringBack(mount.path());
  EXPECT_NE(hangs.code, 0);
  ASSERT_TRUE(mount.Freeze(false));
  AwaitBack(mount.path());
  load_->Await(kMore);
  EndLoad();
  ExpectFlashServes();
  node_.reset();
  ExpectSaidOnce(mount.path());
}

TEST_P(FlashTrouble, WhatWasTakenOutIsLetGoOf) {
  FileSystem files(disk_.path(), 512u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  LoopDevice device(disk_.path() + "/device", kFlash);
  if (!device.why().empty()) GTEST_SKIP() << device.why();
  StartNode({{mount.path(), kFlash}, {device.path(), 0}}, disk_.path());
  StartLoad();
  load_->Await(kMore);
  EXPECT_EQ(Change("take-out", mount.path()).code, 0);
  EXPECT_EQ(Change("take-out", device.path()).code, 0);
  Until([&] { return mount.Unmount(); });
  Until([&] { return Fd(open(device.path().c_str(), O_RDONLY | O_EXCL | O_CLOEXEC)).valid(); });
  load_->Await(kMore);
  ASSERT_TRUE(mount.Again());
  EXPECT_EQ(BringBack(mount.path()).code, 0);
  AwaitBack(device.path());
  EndLoad();
  ExpectFlashServes();
}

// Another disk is in its place, and keeps who makes something there waiting: on a busy host for longer than a
// call of the command line takes by itself.
TEST_P(FlashTrouble, ADeviceThatIsBroughtBackKeepsNobodyWaitingBesideIt) {
  FileSystem files(disk_.path(), 512u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  StartBeside(mount.path(), kFlash);
  EXPECT_EQ(Change("take-out", mount.path()).code, 0);
  Until([&] { return mount.Unmount(); });
  ASSERT_TRUE(mount.Again());
  fs::remove_all(mount.path() + "/default");
  ASSERT_TRUE(mount.Freeze(true));
  std::future<Ran> back =
      std::async(std::launch::async, [&] { return Change("bring-back --deadline 600s", mount.path()); });
  load_->Await(4 * kMore);
  ExpectMemoryServes(500'000'000);
  ASSERT_TRUE(mount.Freeze(false));
  const Ran ran = back.get();
  EXPECT_EQ(ran.code, 0) << ran.said;
  EndLoad();
}

// A node in a process of its own, beside this program.
class KilledNode {
 public:
  explicit KilledNode(std::vector<std::string> flags) {
    flags.insert(flags.begin(), fs::read_symlink("/proc/self/exe").parent_path() / "cisternd");
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~KilledNode() {
    Kill();
    waitpid(pid_, nullptr, 0);  // only when its last request has ended
  }
  void Kill() { kill(pid_, SIGKILL); }

 private:
  pid_t pid_ = -1;
};

// R8: a request of a node that was killed may land in its memory until the device has answered it, so the
// memory's lock is held until then. The successor says which one after ten seconds, and starts when it is
// free.
TEST_P(FlashTrouble, R8TheSuccessorOfAKilledNodeWaitsForTheDeviceThatHangsAndSaysSo) {
  FileSystem files(disk_.path(), 512u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  // Writes to it hang while the file system of its file is frozen.
  LoopDevice device(mount.path() + "/device", kFlash);
  if (!device.why().empty()) GTEST_SKIP() << device.why();
  node::NodeOptions options;
  options.loop = GetParam();
  options.memory_dir = disk_.path() + "/memory";
  options.memory_bytes = kMemory;
  options.socket = disk_.path() + "/socket";
  options.log_level = "error";
  options.journal_dir = disk_.path();
  options.flash = {{device.path(), 0}};
  options.scrub_bytes_per_s = 0;
  ConnectOptions connect;
  connect.socket = options.socket;
  KilledNode killed({"--loop", options.loop, "--memory-dir", options.memory_dir, "--memory", "128MiB",
                     "--socket", options.socket, "--log-level", "error", "--journal-dir", options.journal_dir,
                     "--flash", device.path(), "--scrub", "0"});
  // Before the process is waited for, however this ends.
  const auto thaw = [](Mount* frozen) { (void)frozen->Freeze(false); };
  const std::unique_ptr<Mount, decltype(thaw)> thaws(&mount, thaw);
  Result<Store> store = Error(Code::kGone, "");
  Until([&] {
    store = Store::Connect(connect);
    return store.has_value();
  });
  ASSERT_TRUE(store.has_value());
  Namespace ns = AttachTest(*store);
  const auto put = [&](std::uint64_t number) {
    ASSERT_TRUE(PutBlock(*store, ns, number, std::nullopt, kLoadBytes).ok()) << number;
  };
  // Of the device, which is asked nothing else.
  const auto in_flight = [&] {
    const std::string status = store->StatusJson().value_or("");
    const std::size_t of_device = status.find("\"in_service\"");
    const std::size_t at = status.find("\"in_flight\":", of_device);
    return of_device == std::string::npos ? 0 : std::strtoull(status.c_str() + at + 12, nullptr, 10);
  };
  for (std::uint64_t number = 0; number < kLoadChain; ++number) put(number);
  Until([&] { return StatusNumber(*store, "written_down") >= kLoadChain && in_flight() == 0; });
  ASSERT_TRUE(mount.Freeze(true));
  put(kLoadChain);
  // With the kernel: what waits in the process alone ends with it.
  Until([&] { return device.WritesInFlight() > 0; });
  killed.Kill();
  const auto refused = node::Node::Start(options);
  ASSERT_TRUE(mount.Freeze(false));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kBusy) << refused.error().ToString();
  EXPECT_NE(refused.error().ToString().find(disk_.path()), std::string::npos) << refused.error().ToString();
  Result<std::unique_ptr<node::Node>> started = Error(Code::kBusy, "");
  Until([&] {
    started = node::Node::Start(options);
    return started.has_value() || started.error().code() != Code::kBusy;
  });
  ASSERT_TRUE(started.has_value()) << started.error().ToString();
  store = Store::Connect(connect);
  ASSERT_TRUE(store.has_value()) << store.error().ToString();
  ns = AttachTest(*store);
  for (std::uint64_t number = 0; number <= kLoadChain; ++number) {
    const auto body = store->Get(ns, KeyOf(number));
    ASSERT_TRUE(body.has_value()) << number << ": " << body.error().ToString();
    EXPECT_EQ(*body, BodyOf(number, kLoadBytes)) << number;
  }
}

// Each write that hangs keeps a thread of the kernel or of the loop waiting.
TEST_P(FlashTrouble, WritesThatHangDoNotHoldUpTheSyncsOfAnotherDevice) {
  constexpr std::size_t kWrites = 64, kBytes = 4096;
  FileSystem files(disk_.path(), 512u << 20);
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  Mount& mount = files.mount();
  const SystemClock clock;
  io::LoopOptions options;
  options.kind = GetParam() == "epoll" ? io::LoopKind::kEpoll : io::LoopKind::kUring;
  auto loop = io::MakeLoop(clock, options);
  ASSERT_TRUE(loop.has_value()) << loop.error().ToString();
  io::Loop& turned = **loop;
  auto hangs = turned.Open(mount.path() + "/file", io::OpenMode::kDirectCreateNew);
  auto other = turned.Open(disk_.path() + "/file", io::OpenMode::kCreateNew);
  ASSERT_TRUE(hangs.has_value() && other.has_value());
  ASSERT_TRUE(turned.Preallocate(*hangs, kWrites * kBytes).ok());
  alignas(kBytes) const std::array<std::byte, kBytes> bytes{};
  ASSERT_TRUE(mount.Freeze(true));
  std::vector<Task<cistern::Status>> hung;
  for (std::size_t i = 0; i < kWrites; ++i) hung.push_back(hangs->WriteAll(bytes, i * kBytes));
  bool thawed = false;
  Timer patience(turned.executor(), [&] {  // so that the test ends either way
    thawed = true;
    EXPECT_TRUE(mount.Freeze(false));
  });
  patience.Arm(turned.clock().Now().PlusUs(60'000'000));
  EXPECT_TRUE(turned.BlockOn(other->WriteAll(bytes, 0)).ok());
  EXPECT_TRUE(turned.BlockOn(other->Sync()).ok());
  EXPECT_FALSE(thawed) << "the other device waited for the one that hangs";
  EXPECT_TRUE(std::ranges::none_of(hung, [](const Task<cistern::Status>& write) { return write.done(); }));
  EXPECT_TRUE(mount.Freeze(false));
  for (Task<cistern::Status>& write : hung) EXPECT_TRUE(turned.BlockOn(std::move(write)).ok());
}

TEST_P(FlashTrouble, ADeviceThatIsTakenAwayCostsWhatWasOnItOnly) {
  LoopDevice device(disk_.path() + "/image", kFlash);
  if (!device.why().empty()) GTEST_SKIP() << device.why();
  StartBeside(device.path(), 0);
  ASSERT_TRUE(device.Resize(0));
  AwaitOut();
  load_->Await(kMore);  // to the other, and from there
  const Ran gone = BringBack(device.path());
  EXPECT_NE(gone.code, 0);
  EXPECT_NE(gone.said.find(device.path()), std::string::npos) << gone.said;
  load_->Await(kMore);
  ASSERT_TRUE(device.Resize(kFlash));
  AwaitBack(device.path());
  load_->Await(kMore);
  EXPECT_GT(load_->hits(), 0u);
  EndLoad();
  ExpectFlashServes();
  node_.reset();
  ExpectSaidOnce(device.path());
}

TEST_P(FlashTrouble, ADeviceThatCannotWriteLeavesMemoryAlone) {
  Mount small(disk_.path() + "/small", "-t tmpfs -o size=64m none");
  if (!small.why().empty()) GTEST_SKIP() << small.why();
  LoopDevice device(small.path() + "/image", kFlash);
  if (!device.why().empty()) GTEST_SKIP() << device.why();
  StartNode({{device.path(), 0}}, disk_.path());
  StartLoad();
  AwaitOut();
  load_->Await(2 * kMore);
  ExpectMemoryServes(500'000'000);
  EXPECT_NE(Status().find("\"why\":\""), std::string::npos);
  ASSERT_TRUE(small.Change("size=400m"));
  AwaitBack(device.path());
  load_->Await(kMore);
  EndLoad();
  ExpectFlashServes();
  node_.reset();
  ExpectSaidOnce(device.path());
}

INSTANTIATE_TEST_SUITE_P(Bodies, FlashTrouble, ::testing::Values("io_uring", "epoll"),
                         [](const auto& loop) { return loop.param; });

}  // namespace
}  // namespace cistern
