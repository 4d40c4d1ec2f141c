// SPDX-License-Identifier: Apache-2.0
// A journal on a simulated disk, of which tests damage either copy.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "catalog/journal.h"
#include "io/simulated_disk.h"
#include "io/simulated_loop.h"

namespace cistern::catalog {

inline NamespaceEntry Entry(std::uint32_t slot, std::uint64_t incarnation) {
  NamespaceEntry entry;
  entry.slot = slot;
  entry.incarnation = incarnation;
  entry.names = {Text("n", slot)};
  entry.fields = {{"slot", Text(slot)}};
  entry.groups.push_back({.name = "full"});
  return entry;
}

inline Tombstone Stone(std::uint64_t sequence) {
  Tombstone tombstone{sequence, 7, {}};
  tombstone.key.length = 20;
  tombstone.key.bytes[3] = static_cast<std::uint8_t>(sequence);
  return tombstone;
}

inline constexpr const char* kJournal = "node/journal";
inline constexpr const char* kCopy = "node/journal.copy";

class JournalTest : public testing::Test {
 protected:
  JournalTest() { Boot(); }
  ~JournalTest() override {
    journal.reset();
    loop.reset();
  }
  void Boot() {
    journal.reset();
    loop = std::move(*io::SimulatedLoop::Make(clock, disk, ++seed));
    journal.emplace(*loop, "node", ++new_id);
  }
  void PowerFails() {
    loop->Crash();
    Boot();
  }
  Journal::Contents Open() {
    auto contents = loop->BlockOn(journal->Open());
    EXPECT_TRUE(contents.has_value()) << contents.error().ToString();
    return contents ? *contents : Journal::Contents{};
  }
  Status Start(std::vector<NamespaceEntry> entries, std::uint64_t below,
               std::vector<Tombstone> tombstones = {}, std::vector<std::uint64_t> devices = {}) {
    return loop->BlockOn(
        journal->Start(std::move(entries), below, std::move(tombstones), std::move(devices)));
  }
  std::vector<std::byte> Bytes(const char* path) const {
    const auto bytes = disk.Bytes(path);
    return {bytes.begin(), bytes.end()};
  }
  void Write(const char* path, std::span<const std::byte> bytes) {
    (void)loop->Remove(path);
    auto file = loop->Open(path, io::OpenMode::kCreate);
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(Run(file->WriteAll(bytes, 0)).ok());
    ASSERT_TRUE(Run(file->Sync()).ok());
    ASSERT_TRUE(Run(loop->SyncDirectory("node")).ok());
  }
  void BootWithBoth(std::span<const std::byte> bytes) {
    Write(kJournal, bytes);
    Write(kCopy, bytes);
    Boot();
  }
  // Open is refused, and says why.
  void ExpectMismatch(std::string_view why) {
    const auto contents = loop->BlockOn(journal->Open());
    ASSERT_FALSE(contents.has_value());
    EXPECT_EQ(contents.error().code(), Code::kMismatch);
    EXPECT_NE(contents.error().message().find(why), std::string::npos) << contents.error().message();
  }
  template <class T>
  T Run(Task<T> task) {
    return loop->BlockOn(std::move(task));
  }

  SimulatedClock clock;
  io::SimulatedDisk disk{3};
  std::uint64_t seed = 0;
  std::uint64_t new_id = 100;
  std::unique_ptr<io::SimulatedLoop> loop;
  std::optional<Journal> journal;
};

}  // namespace cistern::catalog
