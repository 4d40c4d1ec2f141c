// SPDX-License-Identifier: Apache-2.0
#include "transfer/pages.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace cistern::transfer {
namespace {

// A pool of bytes that each say where they are.
struct Pool {
  explicit Pool(std::size_t bytes) : memory(bytes) {}
  std::byte* at(std::size_t offset) { return memory.data() + offset; }
  std::size_t Offset(const std::span<std::byte>& piece) const {
    return static_cast<std::size_t>(piece.data() - memory.data());
  }
  std::vector<std::byte> memory;
};

Pages Make(std::span<const Fragment> fragments, std::uint64_t pages, std::uint64_t first = 0) {
  Result<Pages> made = Pages::Make({.fragments = fragments, .pages = pages, .first_page = first});
  EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().ToString());
  return *made;
}

std::vector<std::span<std::byte>> PiecesOf(const Pages& pages, std::uint32_t page) {
  std::vector<std::span<std::byte>> pieces(pages.fragments());
  pages.PiecesOf(page, pieces);
  return pieces;
}

TEST(PagesTest, ALayerAFragmentIsATensorALayer) {  // LBHNC: [layer][block][64 bytes]
  Pool pool(4 * 10 * 64);
  std::vector<Fragment> layers;
  for (std::size_t layer = 0; layer < 4; ++layer) layers.push_back({pool.at(layer * 10 * 64), 64, 64});
  const Pages pages = Make(layers, 10);
  EXPECT_EQ(pages.part_bytes(), 4u * 64);
  const auto pieces = PiecesOf(pages, 7);
  for (std::size_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(pool.Offset(pieces[layer]), layer * 640 + 7 * 64);
    EXPECT_EQ(pieces[layer].size(), 64u);
  }
}

TEST(PagesTest, OneFragmentIsAContiguousPage) {  // BLHNC
  Pool pool(10 * 256);
  const Fragment whole{pool.at(0), 256, 256};
  const Pages pages = Make(std::span(&whole, 1), 10);
  EXPECT_EQ(pool.Offset(PiecesOf(pages, 9)[0]), 9u * 256);
}

TEST(PagesTest, APageOfKernelBlocksIsAFragmentABlockWithTheStrideOfAll) {
  Pool pool(5 * 2 * 64);  // engine pages of two kernel blocks of 64
  const std::array<Fragment, 2> blocks = {{{pool.at(0), 128, 64}, {pool.at(64), 128, 64}}};
  const auto pieces = PiecesOf(Make(blocks, 5), 3);
  EXPECT_EQ(pool.Offset(pieces[0]), 3u * 128);
  EXPECT_EQ(pool.Offset(pieces[1]), 3u * 128 + 64);
}

TEST(PagesTest, PaddingIsWhatNoFragmentCovers) {
  Pool pool(4 * 80);
  const Fragment padded{pool.at(8), 80, 64};
  const auto piece = PiecesOf(Make(std::span(&padded, 1), 4), 2)[0];
  EXPECT_EQ(pool.Offset(piece), 168u);
  EXPECT_EQ(piece.size(), 64u);
}

TEST(PagesTest, AnIdOutOfBoundsOrTheNullBlockIsRefusedByItsPlace) {
  Pool pool(640);
  const Fragment one{pool.at(0), 64, 64};
  const Pages pages = Make(std::span(&one, 1), 10, 1);
  const std::array<std::uint32_t, 3> good = {1, 9, 5}, zero = {3, 0, 5}, past = {3, 10, 5}, twice = {4, 2, 4};
  EXPECT_TRUE(pages.Check(good, true).ok());
  EXPECT_EQ(pages.Check(zero, false).ToString(), "invalid: page_ids[1] is 0, pages are 1 to 9");
  EXPECT_EQ(pages.Check(past, false).ToString(), "invalid: page_ids[1] is 10, pages are 1 to 9");
  EXPECT_TRUE(pages.Check(twice, false).ok());
  EXPECT_EQ(pages.Check(twice, true).code(), Code::kInvalid);
}

TEST(PagesTest, WhatCannotBeAGeometryIsRefusedByItsFragment) {
  Pool pool(640);
  const auto refused = [](std::vector<Fragment> fragments, std::uint64_t pages, std::uint64_t first = 0) {
    Result<Pages> made = Pages::Make({.fragments = fragments, .pages = pages, .first_page = first});
    return made ? std::string() : std::string(made.error().message());
  };
  EXPECT_NE(refused({}, 1), "");
  EXPECT_NE(refused({{pool.at(0), 64, 64}}, 0), "");
  EXPECT_NE(refused({{pool.at(0), 64, 64}}, 10, 10), "");
  EXPECT_NE(refused({{pool.at(0), 64, 64}, {nullptr, 64, 64}}, 1).find("fragment 1"), std::string::npos);
  EXPECT_NE(refused({{pool.at(0), 64, 0}}, 1), "");
  EXPECT_NE(refused({{pool.at(0), 63, 64}}, 2).find("overlaps"), std::string::npos);
  EXPECT_EQ(refused({{pool.at(0), 0, 64}}, 1), "");  // one page has no next
  EXPECT_NE(refused({{pool.at(0), UINT64_MAX / 2, 64}}, 4).find("past the end"), std::string::npos);
  EXPECT_NE(refused({{pool.at(0), UINT64_MAX - 64, 64}}, 2).find("past the end"), std::string::npos);
}

TEST(PagesTest, EveryPageOfEveryFragmentLiesInTheRegionsGiven) {
  Pool pool(640), other(640);
  const std::array<std::span<std::byte>, 2> regions = {std::span(pool.memory), std::span(other.memory)};
  const auto made = [&](Fragment fragment, std::uint64_t pages) {
    return Pages::Make({.fragments = std::span(&fragment, 1), .pages = pages, .regions = regions})
        .has_value();
  };
  EXPECT_TRUE(made({pool.at(0), 64, 64}, 10));
  EXPECT_TRUE(made({other.at(576), 64, 64}, 1));
  EXPECT_TRUE(made({pool.at(16), 64, 48}, 10));
  EXPECT_FALSE(made({pool.at(0), 64, 64}, 11));
  EXPECT_FALSE(made({pool.at(1), 64, 64}, 10));
}

}  // namespace
}  // namespace cistern::transfer
