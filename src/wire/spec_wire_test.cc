// SPDX-License-Identifier: Apache-2.0
#include "wire/spec_wire.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_hex.h"

namespace cistern::wire {
namespace {

NamespaceSpec Example() {
  NamespaceSpec spec;
  spec.name = "llama";
  spec.fields = {{"weights", "sha256:00"}, {"dtype", ""}};
  spec.groups.push_back({.name = "full", .part_bytes = {1, std::uint64_t{1} << 40}});
  spec.groups.push_back({.name = "window", .reach = Reach::kWindow, .window_tokens = 4096});
  spec.block_tokens = 16;
  spec.trusted_keys = true;
  return spec;
}

TEST(SpecWire, WhatWasWrittenIsRead) {
  const NamespaceSpec spec = Example();
  std::vector<std::byte> wire = *EncodeSpec(spec);
  Result<NamespaceSpec> read = DecodeSpec(wire);
  ASSERT_TRUE(read.has_value()) << read.error().ToString();
  EXPECT_EQ(read->name, spec.name);
  EXPECT_EQ(read->fields, spec.fields);
  EXPECT_EQ(read->block_tokens, spec.block_tokens);
  EXPECT_EQ(read->trusted_keys, spec.trusted_keys);
  ASSERT_EQ(read->groups.size(), 2u);
  EXPECT_EQ(read->groups[0].part_bytes, spec.groups[0].part_bytes);
  EXPECT_EQ(read->groups[1].reach, Reach::kWindow);
  EXPECT_EQ(read->groups[1].window_tokens, 4096u);
}

TEST(SpecWire, BytesStayThoseOfVersion1) {
  NamespaceSpec spec = Example();
  spec.flash_write = WriteRule{WritePolicy::kBack};
  EXPECT_EQ(HexOf(*EncodeSpec(spec)),
            "01000000050000006c6c616d6110000000010000000200000007000000776569676874730900000073686132"
            "35363a303005000000647479706500000000020000000400000066756c6c0000000000000000020000000100"
            "00000000000000000000000100000600000077696e646f77010000000010000000000000040000006261636b"
            "00000000");
}

TEST(SpecWire, ALabelPastItsLimitIsNamedWithIt) {
  NamespaceSpec spec = Example();
  spec.labels = {{"a", std::string(5000, 'x')}};
  const auto refused = EncodeSpec(spec);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("5001 bytes of a label, the limit is 127"), std::string::npos)
      << refused.error().ToString();
  spec.labels = {{"a", std::string(126, 'x')}};
  EXPECT_TRUE(EncodeSpec(spec).has_value());
}

TEST(SpecWire, BytesThatEndEarlyOrGoOnAreRefused) {
  std::vector<std::byte> wire = *EncodeSpec(Example());
  for (std::size_t length = 0; length < wire.size(); ++length) {
    EXPECT_FALSE(DecodeSpec(std::span(wire).first(length)).has_value()) << length;
  }
  wire.push_back(std::byte{'x'});
  EXPECT_FALSE(DecodeSpec(wire).has_value());
}

TEST(SpecWire, WhatIsSaidOfFlashIsLastAndLeavesNoTraceWhereNothingIs) {
  NamespaceSpec spec = Example();
  const std::vector<std::byte> without = *EncodeSpec(spec);
  spec.flash_write = WriteRule{WritePolicy::kSelective, 3};
  std::vector<std::byte> wire = *EncodeSpec(spec);
  EXPECT_TRUE(std::ranges::equal(std::span(wire).first(without.size()), without));
  Result<NamespaceSpec> read = DecodeSpec(wire);
  ASSERT_TRUE(read.has_value()) << read.error().ToString();
  EXPECT_EQ(read->flash_write, spec.flash_write);
  EXPECT_FALSE(read->flash_admit.has_value());
  for (std::size_t length = without.size() + 1; length < wire.size(); ++length) {
    EXPECT_FALSE(DecodeSpec(std::span(wire).first(length)).has_value()) << length;
  }
  wire.push_back(std::byte{'x'});
  EXPECT_FALSE(DecodeSpec(wire).has_value());
}

// A node of version 1 would share what is to stay, and serve what is not to be served: it refuses instead.
TEST(SpecWire, WhatIsSaidOfTheCellIsOfVersion2AndWithoutItNothingChanges) {
  const auto version = [](const std::vector<std::byte>& wire) { return Decoder(wire).U32(); };
  EXPECT_EQ(version(*EncodeSpec(Example())), 1u);
  for (const auto& [mesh, strict] :
       {std::pair(std::optional<bool>(false), false), std::pair(std::optional<bool>(true), true),
        std::pair(std::optional<bool>(), true)}) {
    NamespaceSpec spec = Example();
    spec.mesh = mesh;
    spec.strict = strict;
    std::vector<std::byte> wire = *EncodeSpec(spec);
    EXPECT_EQ(version(wire), 2u);
    const Result<NamespaceSpec> read = DecodeSpec(wire);
    ASSERT_TRUE(read.has_value()) << read.error().ToString();
    EXPECT_EQ(read->mesh, mesh);
    EXPECT_EQ(read->strict, strict);
    for (std::size_t length = 0; length < wire.size(); ++length)
      EXPECT_FALSE(DecodeSpec(std::span(wire).first(length)).has_value()) << length;
    wire[wire.size() - 4] = std::byte{2};
    EXPECT_EQ(DecodeSpec(wire).error().code(), Code::kInvalid);
  }
  NamespaceSpec copied = Example();
  copied.copies = 3;
  const std::vector<std::byte> wire = *EncodeSpec(copied);
  EXPECT_EQ(version(wire), 3u);
  const Result<NamespaceSpec> read = DecodeSpec(wire);
  ASSERT_TRUE(read.has_value()) << read.error().ToString();
  EXPECT_EQ(read->copies, std::optional(3u));
  EXPECT_FALSE(read->mesh || read->strict);
  for (std::size_t length = 0; length < wire.size(); ++length)
    EXPECT_FALSE(DecodeSpec(std::span(wire).first(length)).has_value()) << length;
  std::vector<std::byte> later = *EncodeSpec(Example());
  later[0] = std::byte{5};
  EXPECT_EQ(DecodeSpec(later).error().code(), Code::kMismatch);
}

TEST(SpecWire, LabelsAreOfVersion4AndWithoutThemNothingChanges) {
  for (const std::optional<std::uint32_t> copies : {std::optional<std::uint32_t>(), std::optional(3u)}) {
    NamespaceSpec spec = Example();
    spec.copies = copies;
    spec.labels = {{"model", "llama"}, {"role", ""}};
    const std::vector<std::byte> wire = *EncodeSpec(spec);
    EXPECT_EQ(Decoder(wire).U32(), 4u);
    const Result<NamespaceSpec> read = DecodeSpec(wire);
    ASSERT_TRUE(read.has_value()) << read.error().ToString();
    EXPECT_EQ(read->labels, spec.labels);
    EXPECT_EQ(read->copies, copies);
    for (std::size_t length = 0; length < wire.size(); ++length)
      EXPECT_FALSE(DecodeSpec(std::span(wire).first(length)).has_value()) << length;
    spec.labels.clear();
    EXPECT_LT(Decoder(*EncodeSpec(spec)).U32(), 4u);
  }
  NamespaceSpec many = Example();
  many.labels.assign(kMaxLabels + 1, {"a", "b"});
  EXPECT_EQ(EncodeSpec(many).error().code(), Code::kInvalid);
  many.labels.resize(kMaxLabels);
  std::vector<std::byte> lies = *EncodeSpec(many);
  many.labels.clear();
  many.copies = 1;
  StoreAt(lies.data(), EncodeSpec(many)->size(), std::uint32_t{1} << 30);
  EXPECT_EQ(DecodeSpec(lies).error().code(), Code::kInvalid) << "a count that lies allocates nothing";
}

TEST(SpecWire, APolicyThatIsNotKnownIsNamedWithThoseThatAre) {
  NamespaceSpec spec = Example();
  std::vector<std::byte> wire = *EncodeSpec(spec);
  Encoder out(wire);
  out.String("of");
  out.String("");
  const Status refused = DecodeSpec(wire).error();
  EXPECT_EQ(refused.code(), Code::kInvalid);
  for (std::string_view said : {"flash_write: ", "'of'", "through, back"})
    EXPECT_NE(refused.message().find(said), std::string::npos) << refused.message();
  spec.flash_admit = Admission{9};
  EXPECT_EQ(DecodeSpec(*EncodeSpec(spec)).error().code(), Code::kInvalid);
}

TEST(SpecWire, EveryLimitIsNamed) {
  NamespaceSpec spec = Example();
  for (int i = 0; i < 256; ++i) spec.fields.emplace_back("f", "v");
  EXPECT_NE(EncodeSpec(spec).error().message().find("258 fields, the limit is 256"), std::string::npos);
  spec = Example();
  spec.fields[0].second.assign(65537, 'x');
  EXPECT_NE(EncodeSpec(spec).error().message().find("the limit is 65536"), std::string::npos);
  spec = Example();
  spec.groups.resize(9);
  EXPECT_NE(EncodeSpec(spec).error().message().find("9 groups, the limit is 8"), std::string::npos);
  spec = Example();
  spec.groups[0].part_bytes.resize(65);
  EXPECT_NE(EncodeSpec(spec).error().message().find("65 parts in a group, the limit is 64"),
            std::string::npos);
}

TEST(SpecWire, CountsThatLieDoNotAllocate) {
  std::vector<std::byte> wire;
  Encoder out(wire);
  out.U32(kSpecWireVersion);
  out.String("");
  out.U32(1);
  out.U32(0);
  out.U32(UINT32_MAX);
  EXPECT_EQ(DecodeSpec(wire).error().code(), Code::kInvalid);
}

}  // namespace
}  // namespace cistern::wire
