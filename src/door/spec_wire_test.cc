// SPDX-License-Identifier: Apache-2.0
#include "door/spec_wire.h"

#include <gtest/gtest.h>

namespace cistern::door {
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
  std::string wire = *EncodeSpec(spec);
  Result<NamespaceSpec> read = DecodeSpec(std::as_bytes(std::span(wire)));
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

TEST(SpecWire, BytesThatEndEarlyOrGoOnAreRefused) {
  std::string wire = *EncodeSpec(Example());
  for (std::size_t length = 0; length < wire.size(); ++length) {
    EXPECT_FALSE(DecodeSpec(std::as_bytes(std::span(wire.data(), length))).has_value()) << length;
  }
  wire += 'x';
  EXPECT_FALSE(DecodeSpec(std::as_bytes(std::span(wire))).has_value());
}

TEST(SpecWire, WhatIsSaidOfFlashIsLastAndLeavesNoTraceWhereNothingIs) {
  NamespaceSpec spec = Example();
  const std::string without = *EncodeSpec(spec);
  spec.flash_write = "selective:3";
  std::string wire = *EncodeSpec(spec);
  EXPECT_TRUE(wire.starts_with(without));
  Result<NamespaceSpec> read = DecodeSpec(std::as_bytes(std::span(wire)));
  ASSERT_TRUE(read.has_value()) << read.error().ToString();
  EXPECT_EQ(read->flash_write, "selective:3");
  EXPECT_EQ(read->flash_admit, "");
  for (std::size_t length = without.size() + 1; length < wire.size(); ++length) {
    EXPECT_FALSE(DecodeSpec(std::as_bytes(std::span(wire.data(), length))).has_value()) << length;
  }
  wire += 'x';
  EXPECT_FALSE(DecodeSpec(std::as_bytes(std::span(wire))).has_value());
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
  std::string wire;
  wire::Put32(wire, kSpecWireVersion);
  wire::PutString(wire, "");
  wire::Put32(wire, 1);
  wire::Put32(wire, 0);
  wire::Put32(wire, UINT32_MAX);
  EXPECT_EQ(DecodeSpec(std::as_bytes(std::span(wire))).error().code(), Code::kInvalid);
}

}  // namespace
}  // namespace cistern::door
