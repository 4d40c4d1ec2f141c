// SPDX-License-Identifier: Apache-2.0
#include "node/flash_places.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "base/fd.h"
#include "base/format.h"
#include "base/test_directory.h"
#include "flash/format.h"
#include "flash/open.h"
#include "io/files.h"

namespace cistern::node {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class FlashPlacesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "cistern-places-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
    for (const char* name : {"a", "b", "memory", "journal"}) fs::create_directory(root_ / name);
    options_.memory_dir = root_ / "memory";
  }
  void TearDown() override { fs::remove_all(root_); }

  void Add(const char* name, std::uint64_t bytes = 1u << 30) {
    options_.flash.push_back({root_ / name, bytes});
  }
  // Nothing was made.
  void ExpectUntouched() const {
    for (const char* name : {"a", "b", "journal"}) EXPECT_TRUE(fs::is_empty(root_ / name)) << name;
  }
  std::string Refusal() const {
    Result<FlashPlaces> places = FindFlashPlaces(options_);
    return places ? std::string() : std::string(places.error().message());
  }

  fs::path root_;
  NodeOptions options_;
};

TEST_F(FlashPlacesTest, WhatLiesOnATmpfsIsSaidToBeLostAtAReboot) {
  const TestDirectory disk(TestDirectory::On::kDisk), memory(TestDirectory::On::kMemory);
  if (io::LiesInMemory(disk.path()) || !io::LiesInMemory(memory.path())) GTEST_SKIP() << "no such places";
  options_.memory_dir = memory.path();
  const auto lost = [this] {
    const Result<FlashPlaces> places = FindFlashPlaces(options_, FindsFor::kCheck);
    EXPECT_TRUE(places.has_value());
    std::vector<std::string> all;
    for (const Lost& one : LostAtReboot(options_, *places)) all.push_back(one.what);
    return all;
  };
  EXPECT_THAT(lost(), ElementsAre());
  options_.flash = {{disk.path(), 1u << 30}};
  EXPECT_THAT(lost(), ElementsAre());
  const auto journal =
      AllOf(HasSubstr("journal_dir: "), HasSubstr(memory.path()), HasSubstr("flash is not believed without"));
  options_.journal_dir = memory.path();
  EXPECT_THAT(lost(), ElementsAre(journal));
  options_.journal_dir = disk.path();
  options_.flash.push_back({memory.path(), 1u << 30});
  EXPECT_THAT(lost(), ElementsAre(HasSubstr("flash: " + memory.path())));
  options_.journal_dir.clear();
  std::swap(options_.flash[0], options_.flash[1]);
  EXPECT_THAT(lost(), ElementsAre(HasSubstr("flash: "), journal));
}

TEST_F(FlashPlacesTest, DeviceThatCannotBeOpenedIsSaidByItsErrorAndNotByASizeOfNone) {
  const std::string device = root_ / "device";
  if (mknod(device.c_str(), S_IFBLK | 0600, makedev(240, 255)) != 0) GTEST_SKIP() << "may make no device";
  const Fd fd(open(device.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_FALSE(fd.valid());
  const std::string why = ErrnoText(errno);
  options_.flash = {{device, 0}};
  options_.journal_dir = root_ / "journal";
  const Result<FlashPlaces> places = FindFlashPlaces(options_, FindsFor::kCheck);
  ASSERT_TRUE(places.has_value());
  EXPECT_EQ(CheckDevice(*places, 0).ToString(), "io_error: flash: " + device + ": " + why);
}

// Of another store, or of a first start that was cut off: it is formatted anew.
TEST_F(FlashPlacesTest, DeviceIsJudgedByTheRegionsOfFlashThatAJournalIsThereFor) {
  constexpr std::uint64_t kRegion = 64u << 20;
  Add("a", 2 * kRegion);
  const Result<FlashPlaces> places = FindFlashPlaces(options_);
  ASSERT_TRUE(places.has_value());
  ASSERT_LT(flash::RegionBytesFor(2 * kRegion), kRegion);
  std::array<std::byte, flash::kSectorBytes> sector;
  flash::EncodeSuperblock(
      {.device_id = 1, .journal_id = 2, .unit = 4096, .region_bytes = kRegion, .regions = 64}, sector);
  std::ofstream(root_ / "a/default/flash").write(reinterpret_cast<const char*>(sector.data()), sector.size());
  EXPECT_TRUE(CheckDevice(*places, 0).ok()) << CheckDevice(*places, 0).ToString();
  std::ofstream(root_ / "a/default/journal.copy") << "any";
  EXPECT_THAT(std::string(CheckDevice(*places, 0).message()), HasSubstr("must be at least"));
}

TEST_F(FlashPlacesTest, WithoutFlashTheJournalLiesWithMemory) {
  Result<FlashPlaces> places = FindFlashPlaces(options_);
  ASSERT_TRUE(places.has_value());
  EXPECT_TRUE(places->devices.empty());
  EXPECT_EQ(places->journal_directory, "");
}

TEST_F(FlashPlacesTest, WithFlashItLiesInTheFirstDirectory) {
  Add("a");
  Add("b", 2u << 20);
  Result<FlashPlaces> places = FindFlashPlaces(options_);
  ASSERT_TRUE(places.has_value());
  ASSERT_EQ(places->devices.size(), 2u);
  EXPECT_EQ(places->devices[0].path, root_ / "a/default");
  EXPECT_EQ(places->devices[1].size_bytes, 2u << 20);
  EXPECT_EQ(places->bytes, (1u << 30) + (2u << 20));
  EXPECT_EQ(places->journal_directory, root_ / "a/default");
  EXPECT_TRUE(fs::is_directory(root_ / "b/default"));
}

TEST_F(FlashPlacesTest, OrWhereItIsSaidTo) {
  Add("a");
  options_.journal_dir = root_ / "journal";
  EXPECT_EQ(FindFlashPlaces(options_)->journal_directory, root_ / "journal/default");
  options_.journal_dir = root_ / "memory";
  EXPECT_EQ(FindFlashPlaces(options_)->journal_directory, "") << "it is with memory already, under its lock";
}

// A drive that died, or whose file system is not mounted.
TEST_F(FlashPlacesTest, NodeThatHasHadFlashDoesWithoutWhatIsGone) {
  options_.journal_dir = root_ / "journal";
  Add("a");
  Add("none", 2u << 20);
  options_.flash.push_back({"/dev/no-such-drive", 0});
  EXPECT_THAT(Refusal(), HasSubstr("none: No such file or directory (ENOENT); make it, or name another"))
      << "which has misspelt it";
  ExpectUntouched();
  fs::create_directory(root_ / "journal/default");
  fs::permissions(root_ / "journal/default", fs::perms::owner_all);
  std::ofstream(root_ / "journal/default/journal") << "any";
  const Result<FlashPlaces> places = FindFlashPlaces(options_);
  ASSERT_TRUE(places.has_value()) << places.error().ToString();
  ASSERT_EQ(places->devices.size(), 3u);
  EXPECT_TRUE(places->had_flash);
  EXPECT_TRUE(places->devices[0].absent.ok());
  EXPECT_EQ(places->devices[1].path, root_ / "none/default");
  EXPECT_EQ(places->devices[1].size_bytes, 2u << 20);
  EXPECT_THAT(std::string(places->devices[1].absent.message()),
              HasSubstr("No such file or directory (ENOENT)"));
  EXPECT_EQ(places->devices[2].path, "/dev/no-such-drive");
  EXPECT_FALSE(places->devices[2].absent.ok());
  EXPECT_TRUE(CheckDevice(*places, 0).ok());
  EXPECT_THAT(std::string(CheckDevice(*places, 1).message()), HasSubstr("the node starts without it"));
}

// Nothing else tells what was dropped.
TEST_F(FlashPlacesTest, VolumeThatHasTheJournalIsNeeded) {
  Add("none");
  Add("a");
  EXPECT_THAT(Refusal(), HasSubstr("none: No such file"));
  fs::create_directory(root_ / "a/default");
  std::ofstream(root_ / "a/default/journal") << "of another time";
  EXPECT_THAT(Refusal(), HasSubstr("none: No such file"));
}

TEST_F(FlashPlacesTest, WhatIsWrongIsSaidBeforeAnythingIsMade) {
  Add("a");
  Add("none");
  EXPECT_THAT(Refusal(), HasSubstr("none: No such file"));
  options_.flash.back() = {root_ / "b", 0};
  EXPECT_THAT(Refusal(), HasSubstr("is a directory, of which a node takes only what it is given"));
  fs::create_directory_symlink(root_ / "a", root_ / "also-a");
  options_.flash.back() = {root_ / "also-a", 1u << 30};
  EXPECT_THAT(Refusal(), HasSubstr("are the same"));
  std::ofstream(root_ / "file") << "x";
  options_.flash.back() = {root_ / "file", 1u << 30};
  EXPECT_THAT(Refusal(), HasSubstr("neither a directory nor a block device"));
  options_.flash.pop_back();
  options_.journal_dir = root_ / "file";
  EXPECT_THAT(Refusal(), HasSubstr("journal_dir: "));
  EXPECT_THAT(Refusal(), HasSubstr("neither a directory"));
  options_.journal_dir = root_ / "none";
  EXPECT_THAT(Refusal(), HasSubstr("journal_dir: "));
  ExpectUntouched();
}

TEST_F(FlashPlacesTest, ATenantsDirectoryThatLeadsToThatOfAnotherIsNamedOnce) {
  Add("a");
  Add("b");
  fs::create_directory(root_ / "b/default");
  fs::permissions(root_ / "b/default", fs::perms::owner_all);
  fs::create_directory_symlink(root_ / "b/default", root_ / "a/default");
  EXPECT_THAT(Refusal(), HasSubstr("are the same"));
}

TEST_F(FlashPlacesTest, ADeviceIsFoundByEveryNameThatItHas) {
  Add("a");
  Add("b");
  Result<FlashPlaces> places = FindFlashPlaces(options_);
  ASSERT_TRUE(places.has_value());
  for (const fs::path& name : {root_ / "b", root_ / "b/default"})
    EXPECT_EQ(DeviceNamed(options_, *places, name), 1u) << name;
  for (const fs::path& name : {root_ / "b", root_ / "b/default", root_ / "a/../b", root_ / "b/"}) {
    Result<std::size_t> device = FindDevice(options_, *places, name);
    ASSERT_TRUE(device.has_value()) << name;
    EXPECT_EQ(*device, 1u) << name;
  }
  Result<std::size_t> other = FindDevice(options_, *places, root_ / "journal");
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code(), Code::kMiss);
  EXPECT_THAT(std::string(other.error().message()), HasSubstr(root_ / "a"));
}

TEST_F(FlashPlacesTest, TablesHaveRoomForTheSmallestBlocks) {
  EXPECT_EQ(MaxLowerBlocks({}, 4096), 0u);
  FlashPlaces places;
  places.devices.resize(1);
  places.bytes = 64u << 20;
  EXPECT_EQ(MaxLowerBlocks(places, 4096), 8192u);
}

}  // namespace
}  // namespace cistern::node
