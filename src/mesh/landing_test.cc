// SPDX-License-Identifier: Apache-2.0
#include "mesh/landing.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/random.h"
#include "base/random_bytes.h"
#include "mesh/test_cell.h"
#include "record/seal.h"
#include "record/verified_copy.h"

namespace cistern::mesh {
namespace {

class LandingTest : public testing::Test {
 protected:
  LandingTest() {
    std::size_t bytes = 0;
    for (const std::uint32_t part : head_.part_bytes) {
      for (std::size_t at = 0; at < part; at += record::kSegmentBytes)
        lengths_.push_back(std::min<std::size_t>(record::kSegmentBytes, part - at));
      bytes += part;
    }
    sent_.resize(bytes);
    FillRandom(1, sent_);
    std::size_t at = 0;
    for (const std::size_t length : lengths_) {
      head_.segment_crcs.push_back(record::Crc32c(sent_.data() + at, length));
      at += length;
    }
    into_.resize(bytes);
  }
  Status Begin(Landing& landing, const BlockHead& head, std::uint64_t bytes) const {
    return landing.Begin(asked_, parent_, Encode(head), bytes);
  }
  Code Said(const std::function<void(BlockHead&)>& lie) {
    BlockHead head = head_;
    lie(head);
    Landing landing(into_);
    return Begin(landing, head, sent_.size()).code();
  }
  // What becomes of these bytes, which come in pieces of up to `most`.
  Status Land(std::span<const std::byte> bytes, std::uint64_t most) {
    Landing landing(into_);
    EXPECT_TRUE(Begin(landing, head_, sent_.size()).ok());
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t now = std::min<std::size_t>(1 + random_.Below(most), bytes.size() - at);
      landing.Take(bytes.subspan(at, now));
      at += now;
    }
    const Status checked = landing.Checked();
    EXPECT_TRUE(!checked.ok() || std::ranges::equal(bytes, into_)) << "in place";
    return checked;
  }

  Random random_{2};
  const BlockKey parent_ = KeyOf(1);
  const BlockRequest asked_{.history = 9, .name = NamespaceOf(1), .key = KeyOf(2)};
  BlockHead head_{.history = 9, .key = KeyOf(2), .parent = parent_, .part_bytes = {100, 65'536, 200'000, 1}};
  std::vector<std::size_t> lengths_;  // of the segments
  std::vector<std::byte> sent_, into_;
};

TEST_F(LandingTest, WhatIsSaidOfAnotherBlockOrOfNoneIsRefused) {
  EXPECT_EQ(Said([](BlockHead&) {}), Code::kOk);
  EXPECT_EQ(Said([](BlockHead& head) { head.history = 8; }), Code::kMismatch);
  EXPECT_EQ(Said([](BlockHead& head) { head.key = KeyOf(3); }), Code::kInvalid);
  EXPECT_EQ(Said([](BlockHead& head) { head.parent = KeyOf(3); }), Code::kMiss);
  EXPECT_EQ(Said([](BlockHead& head) { head.parent = BlockKey(); }), Code::kMiss);
  EXPECT_EQ(Said([](BlockHead& head) { head.part_bytes.clear(); }), Code::kInvalid);
  EXPECT_EQ(Said([](BlockHead& head) { head.part_bytes.push_back(0); }), Code::kInvalid) << "an empty part";
  EXPECT_EQ(Said([](BlockHead& head) { head.part_bytes.insert(head.part_bytes.begin(), 0); }),
            Code::kInvalid);
  EXPECT_EQ(Said([](BlockHead& head) { ++head.part_bytes[0]; }), Code::kInvalid);
  EXPECT_EQ(Said([](BlockHead& head) { --head.part_bytes[0]; }), Code::kInvalid);
  EXPECT_EQ(Said([](BlockHead& head) { head.segment_crcs.pop_back(); }), Code::kInvalid);
  EXPECT_EQ(Said([](BlockHead& head) { head.segment_crcs.push_back(0); }), Code::kInvalid);
  Landing landing(into_);
  EXPECT_EQ(Begin(landing, head_, sent_.size() + 1).code(), Code::kInvalid);
  Landing other(std::span<std::byte>(into_).first(into_.size() - 1));
  EXPECT_EQ(Begin(other, head_, sent_.size()).code(), Code::kMiss) << "of another length than was looked for";
  const std::vector<std::byte> said = Encode(head_);
  EXPECT_EQ(landing.Begin(asked_, parent_, std::span(said).first(said.size() - 1), sent_.size()).code(),
            Code::kInvalid);
}

TEST_F(LandingTest, P1BytesThatComeInAnyPiecesAreThoseThatWereSummed) {
  for (const std::uint64_t most : {1ull << 20, 70'000ull, 65'536ull, 1'000ull}) {
    EXPECT_TRUE(Land(sent_, most).ok()) << most;
    std::size_t first = 0;
    for (std::size_t segment = 0; segment < lengths_.size(); first += lengths_[segment++]) {
      // Its first byte, its last one, and one between.
      for (const std::size_t at :
           {first, first + lengths_[segment] - 1, first + random_.Below(lengths_[segment])}) {
        std::vector<std::byte> changed = sent_;
        changed[at] ^= std::byte{1};
        const Status status = Land(changed, most);
        EXPECT_EQ(status.code(), Code::kInvalid) << "byte " << at << " in pieces of " << most;
        EXPECT_NE(status.message().find(Text("segment ", segment, " ")), std::string::npos)
            << status.message();
      }
    }
  }
}

TEST_F(LandingTest, ABodyOfWhichSomeIsMissingIsNone) {
  for (const std::size_t missing : {std::size_t{1}, std::size_t{2}, sent_.size() - 100, sent_.size()})
    EXPECT_EQ(Land(std::span(sent_).first(sent_.size() - missing), 70'000).code(), Code::kInvalid) << missing;
}

}  // namespace
}  // namespace cistern::mesh
