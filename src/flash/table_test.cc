// SPDX-License-Identifier: Apache-2.0
// A table of more pages than one write or one read takes: it names every record, and a page that is damaged,
// or of another one, costs what it named.
#include "flash/table.h"

#include <set>

#include "flash/test_flash_tier.h"

namespace cistern::flash {
namespace {

constexpr std::uint64_t kRegionBytes = 12u << 20;
constexpr std::uint64_t kBatch = 100;  // of which 511 is no multiple

// Region 0 is full of the smallest records there are.
struct Full : World {
  explicit Full(std::uint64_t seed_in) : World(seed_in, TestOptions(1, 512, 4, kRegionBytes)) {
    EXPECT_TRUE(Start().ok());
    while (kept.empty() || kept.back().region() == kept.front().region()) {
      std::vector<std::uint64_t> numbers;
      while (numbers.size() < kBatch) numbers.push_back(kept.size() + numbers.size());
      const auto appended = node->Append(numbers, {300});
      kept.insert(kept.end(), appended->begin(), appended->end());
    }
    for (const Kept& each : kept) in_first += each.region() == kept.front().region();
    EXPECT_GT(PagesFor(in_first), 16u);
  }
  // Each record once, where it was put.
  void CheckFound() {
    std::set<std::pair<std::uint64_t, tier::Location>> found, expected;
    for (const Kept& each : node->found) found.insert({each.number, each.location});
    for (const Kept& each : kept) expected.insert({each.number, each.location});
    EXPECT_EQ(node->found.size(), kept.size());
    EXPECT_EQ(found, expected);
    for (std::size_t i = 0; i < kept.size(); i += 97) EXPECT_TRUE(node->Fetch(kept[i]).ok()) << i;
  }

  // Of region 0: it begins behind the last record.
  std::uint64_t TableAt() const {
    const Kept& last = kept[in_first - 1];
    return kSuperBytes + last.unit() * 512ull + last.bytes;
  }

  std::vector<Kept> kept;
  std::uint32_t in_first = 0;
};

TEST(FlashTable, P7OfManyPagesNamesEveryRecordAfterAStopAndAfterAKill) {
  Full world(1);
  world.loop->Kill([](const void*, std::size_t) { return false; }).LandAll();
  world.Ended();
  for (int starts = 0; starts < 2; ++starts) {
    SCOPED_TRACE(starts == 0 ? "regions that were open are scanned" : "tables are read");
    std::uint64_t read = 0;
    world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
      if (request.kind == io::IoRequest::Kind::kRead) read += request.size;
      return io::Fault{};
    });
    ASSERT_TRUE(world.Start().ok());
    world.disk.set_faults({});
    EXPECT_EQ(read < kRegionBytes / 2, starts == 1) << read;
    world.CheckFound();
    world.Stop();
  }
}

TEST(FlashTable, OfManyPagesIsReadWholeWhereItsRegionIsGivenUp) {
  Full world(2);
  world.Stop();
  ASSERT_TRUE(world.Start().ok());
  world.CheckFound();
  world->tier->Reclaim(true);
  world.loop->RunUntilIdle();
  ASSERT_EQ(world->owner.asked.size(), world.in_first);
  for (std::uint32_t i = 0; i < world.in_first; ++i) {
    EXPECT_EQ(world->owner.asked[i].location, world.kept[world.in_first - 1 - i].location);
  }
  EXPECT_EQ(world->owner.losses, 0u);
  world.Stop();
}

TEST(FlashTable, R11APageThatCannotBeReadCostsAReclaimWhatItNamedAlone) {
  Full world(4);
  world.Stop();
  world.disk.Flip("/flash0/flash", world.TableAt() + 17 * kPageBytes, std::byte{1});
  ASSERT_TRUE(world.Start().ok());
  ASSERT_EQ(world->found.size(), world.kept.size() - kPageEntries);
  world->owner.keep = [](const tier::TierEntry&, std::uint64_t, std::uint64_t) { return true; };
  world->tier->Reclaim(true);
  world.loop->RunUntilIdle();
  EXPECT_EQ(world->owner.asked.size(), world.in_first - kPageEntries);
  EXPECT_EQ(world->owner.losses, 0u);
  EXPECT_EQ(world->owner.live.size(), world->found.size());
  EXPECT_EQ(world->tier->counters().released_regions.value(), 1u);
  world.Stop();
}

// What a device lost of a table leaves what lay there before.
TEST(FlashTable, R11APageOfAnotherEpochOrPlaceCostsWhatItNamed) {
  Full world(3);
  world.Stop();
  const std::uint64_t table = world.TableAt();
  const std::uint32_t pages = PagesFor(world.in_first);
  const auto page = [&](std::uint64_t at) {
    const auto from = world.disk.Bytes("/flash0/flash").subspan(table + at * kPageBytes, kPageBytes);
    return std::vector<std::byte>(from.begin(), from.end());
  };
  const auto lose = [&](std::uint64_t at, std::span<const std::byte> for_bytes, std::size_t lost) {
    SCOPED_TRACE(Text(lost, " pages"));
    ASSERT_TRUE(world.Start().ok());
    {
      io::File file = std::move(*world.loop->Open("/flash0/flash", io::OpenMode::kReadWrite));
      ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(for_bytes, table + at * kPageBytes)).ok());
    }
    world.Stop();
    ASSERT_TRUE(world.Start().ok());
    EXPECT_EQ(world->found.size(), world.kept.size() - lost * kPageEntries);
    std::set<tier::Location> found;
    for (const Kept& each : world->found) EXPECT_TRUE(found.insert(each.location).second);
    world->Close();
    EXPECT_TRUE(world->Logged(Text("region 0: ", lost, " of ", pages, " pages of its table cannot be read")));
    world.Ended();
  };
  lose(17, page(16), 1);
  std::vector<std::byte> older = page(2);
  auto head = DecodePageHead(older);
  ASSERT_TRUE(head.has_value());
  --head->epoch;
  EncodePageHead(*head, older);
  lose(2, older, 2);
  older[4] ^= std::byte{1};
  lose(3, older, 3);
}

}  // namespace
}  // namespace cistern::flash
