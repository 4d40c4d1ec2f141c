// SPDX-License-Identifier: Apache-2.0
#include "catalog/namespace_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_hex.h"

namespace cistern::catalog {
namespace {

using testing::HasSubstr;

NamespaceSpec Spec() {
  NamespaceSpec spec;
  spec.fields = {{"dtype", "bf16"}, {"model", "llama"}};
  spec.groups = {
      {.name = "full", .part_bytes = {65536, 65536}},
      {.name = "local", .reach = Reach::kWindow, .window_tokens = 1000, .part_bytes = {65536, 65536}}};
  spec.block_tokens = 16;
  return spec;
}

std::uint32_t Attach(NamespaceTable& names, const NamespaceSpec& spec, std::uint64_t incarnation) {
  EXPECT_TRUE(NamespaceTable::Validate(spec).ok()) << NamespaceTable::Validate(spec).ToString();
  auto found = names.Find(spec);
  EXPECT_TRUE(found.has_value()) << found.error().ToString();
  NamespaceEntry entry = names.Merged(spec, incarnation);
  if (found->changes) names.Put(entry);
  return entry.slot;
}

std::string Refusal(const NamespaceSpec& spec) {
  const Status status = NamespaceTable::Validate(spec);
  EXPECT_EQ(status.code(), Code::kInvalid);
  return std::string(status.message());
}

TEST(NamesTest, TheSameListIsTheSameNamespaceWhateverItsNameAndOrder) {
  NamespaceTable names;
  const std::uint32_t slot = Attach(names, Spec(), 5);
  NamespaceSpec named = Spec();
  named.name = "production";
  std::swap(named.fields[0], named.fields[1]);
  EXPECT_EQ(Attach(names, named, 6), slot);
  EXPECT_EQ(names.at(slot)->incarnation, 5u);
  named.name = "staging";
  EXPECT_EQ(Attach(names, named, 7), slot);
  EXPECT_EQ(names.size(), 1u);
}

TEST(NamesTest, AnotherListIsAnotherNamespace) {
  NamespaceTable names;
  const std::uint32_t slot = Attach(names, Spec(), 5);
  NamespaceSpec other = Spec();
  other.fields[0].second = "fp8";
  EXPECT_NE(Attach(names, other, 6), slot);
  other = Spec();
  other.groups[0].part_bytes = {131072};
  EXPECT_NE(Attach(names, other, 7), slot);
  other = Spec();
  other.trusted_keys = true;
  EXPECT_NE(Attach(names, other, 8), slot);
}

TEST(NamesTest, ANameWithAnotherListIsAMismatchThatNamesFieldAndBothValues) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  spec.name = "production";
  Attach(names, spec, 5);
  spec.fields[0].second = "fp8";
  auto found = names.Find(spec);
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code(), Code::kMismatch);
  EXPECT_THAT(found.error().message(),
              HasSubstr("field dtype is 'bf16' in the stored list and 'fp8' in this one"));

  spec = Spec();
  spec.name = "production";
  spec.fields.pop_back();
  EXPECT_THAT(names.Find(spec).error().message(),
              HasSubstr("field model is 'llama' in the stored list and missing"));
  spec = Spec();
  spec.name = "production";
  spec.groups[1].part_bytes = {1};
  EXPECT_THAT(names.Find(spec).error().message(), HasSubstr("group local has 2 parts of 65536 65536"));
}

TEST(NamesTest, TheWindowIsNotIdentityAndTheWidestIsKept) {
  NamespaceTable names;
  const std::uint32_t slot = Attach(names, Spec(), 5);
  EXPECT_EQ(names.at(slot)->groups[1].window_blocks, 63u);
  NamespaceSpec wide = Spec();
  wide.groups[1].window_tokens = 4096;
  EXPECT_EQ(Attach(names, wide, 6), slot);
  EXPECT_EQ(names.at(slot)->groups[1].window_blocks, 256u);
  EXPECT_EQ(Attach(names, Spec(), 7), slot);
  EXPECT_EQ(names.at(slot)->groups[1].window_blocks, 256u);
  EXPECT_EQ(names.at(slot)->first_full, 0);
  EXPECT_EQ(names.at(slot)->ParentGroup(1), 0);
}

TEST(NamesTest, AWindowOfMoreTokensThanCanBeSaidIsWiderOnce) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  spec.block_tokens = 32;
  const std::uint32_t slot = Attach(names, spec, 5);
  spec.block_tokens = 16;  // so many of which are more than 2^32 tokens in blocks of 32
  spec.groups[1].window_tokens = 0xffffffff;
  EXPECT_EQ(Attach(names, spec, 6), slot);
  EXPECT_EQ(names.at(slot)->groups[1].window_blocks, 1u << 27);
  EXPECT_FALSE(names.Find(spec)->changes);
  EXPECT_EQ(names.Merged(spec, 7).groups[1].window_blocks, 1u << 27);
}

TEST(NamesTest, WhatIsSaidOfFlashIsNotIdentityAndTheLastWordHolds) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  const std::uint32_t slot = Attach(names, spec, 5);
  spec.flash_write = WriteRule{WritePolicy::kSelective, 3};
  EXPECT_EQ(Attach(names, spec, 6), slot);
  EXPECT_EQ(names.at(slot)->lower, (policy::LowerWish{.write = WriteRule{WritePolicy::kSelective, 3}}));
  spec.flash_write.reset();
  EXPECT_FALSE(names.Find(spec)->changes) << "who says nothing changes nothing";
  spec.flash_admit = Admission::kSecondHit;
  EXPECT_EQ(Attach(names, spec, 7), slot);
  spec.flash_write = WriteRule{WritePolicy::kBack};
  EXPECT_EQ(Attach(names, spec, 8), slot);
  const policy::LowerWish last{.write = WriteRule{WritePolicy::kBack}, .admit = Admission::kSecondHit};
  EXPECT_EQ(names.at(slot)->lower, last);
  const std::vector<std::byte> bytes = NamespaceTable::Encode(*names.at(slot));
  ASSERT_TRUE(NamespaceTable::Decode(bytes).has_value());
  EXPECT_EQ(NamespaceTable::Decode(bytes)->lower, last);
  for (std::uint8_t wrong : {4, 0xff}) {
    std::vector<std::byte> other = bytes;
    other.back() = std::byte{wrong};
    EXPECT_FALSE(NamespaceTable::Decode(other).has_value());
  }
  spec.flash_write = WriteRule{WritePolicy::kSelective, 256};
  EXPECT_THAT(Refusal(spec),
              testing::AllOf(HasSubstr("flash_write"), HasSubstr("256"), HasSubstr("through")));
}

TEST(NamesTest, KeptToItsNodeIsNotIdentityAndTheLastWordHolds) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  const std::uint32_t slot = Attach(names, spec, 5);
  EXPECT_TRUE(names.at(slot)->in_mesh());
  EXPECT_EQ(static_cast<int>(NamespaceTable::Encode(*names.at(slot))[0]), 1) << "as earlier nodes read it";
  const std::string list = NamespaceTable::ListOf(*names.at(slot));
  spec.mesh = false;
  EXPECT_EQ(Attach(names, spec, 6), slot);
  EXPECT_FALSE(names.at(slot)->in_mesh());
  EXPECT_EQ(NamespaceTable::ListOf(*names.at(slot)), list);
  spec.mesh.reset();
  EXPECT_FALSE(names.Find(spec)->changes) << "who says nothing changes nothing";
  const std::vector<std::byte> bytes = NamespaceTable::Encode(*names.at(slot));
  const auto read = NamespaceTable::Decode(bytes);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->mesh, std::optional(false));
  EXPECT_FALSE(read->strict);
  EXPECT_FALSE(NamespaceTable::Decode(std::span(bytes).first(bytes.size() - 1)).has_value());
  std::vector<std::byte> wrong = bytes;
  wrong.back() = std::byte{3};
  EXPECT_FALSE(NamespaceTable::Decode(wrong).has_value());
  spec.mesh = true;
  EXPECT_EQ(Attach(names, spec, 7), slot);
  EXPECT_TRUE(names.at(slot)->in_mesh());
}

TEST(NamesTest, CopiesAreNotIdentityAndTheLastWordHolds) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  const std::uint32_t slot = Attach(names, spec, 5);
  const std::string list = NamespaceTable::ListOf(*names.at(slot));
  spec.copies = 3;
  EXPECT_TRUE(names.Find(spec)->changes);
  EXPECT_EQ(Attach(names, spec, 6), slot);
  EXPECT_EQ(names.at(slot)->copies, std::optional(3u));
  EXPECT_EQ(NamespaceTable::ListOf(*names.at(slot)), list);
  spec.copies.reset();
  EXPECT_FALSE(names.Find(spec)->changes) << "who says nothing changes nothing";
  const std::vector<std::byte> bytes = NamespaceTable::Encode(*names.at(slot));
  EXPECT_EQ(static_cast<int>(bytes[0]), 3);
  const auto read = NamespaceTable::Decode(bytes);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->copies, std::optional(3u));
  EXPECT_FALSE(read->mesh.has_value());
  EXPECT_EQ(NamespaceTable::SpecOf(*read).copies, std::optional(3u));
  EXPECT_FALSE(NamespaceTable::Decode(std::span(bytes).first(bytes.size() - 1)).has_value());
  for (const std::uint8_t copies : {0, 9}) {
    std::vector<std::byte> wrong = bytes;
    wrong.back() = std::byte{copies};
    EXPECT_FALSE(NamespaceTable::Decode(wrong).has_value());
    spec.copies = copies;
    EXPECT_THAT(Refusal(spec), testing::AllOf(HasSubstr("copies"), HasSubstr("1 to 8")));
  }
}

TEST(NamesTest, LabelsAreNotIdentityAndTheLastWordHolds) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  const std::uint32_t slot = Attach(names, spec, 5);
  const std::string list = NamespaceTable::ListOf(*names.at(slot));
  const std::vector<std::byte> bytes = NamespaceTable::Encode(*names.at(slot));
  EXPECT_TRUE(NamespaceTable::EncodeLabels(*names.at(slot)).empty());
  spec.labels = {{"role", "draft"}, {"model", "llama"}};
  EXPECT_TRUE(names.Find(spec)->changes);
  EXPECT_EQ(Attach(names, spec, 6), slot);
  EXPECT_EQ(NamespaceTable::ListOf(*names.at(slot)), list);
  EXPECT_EQ(NamespaceTable::Encode(*names.at(slot)), bytes) << "a node that knows none reads it as ever";
  EXPECT_FALSE(names.Find(spec)->changes);
  spec.labels.clear();
  EXPECT_FALSE(names.Find(spec)->changes) << "who says nothing changes nothing";
  const std::vector<std::byte> labels = NamespaceTable::EncodeLabels(*names.at(slot));
  const auto read = NamespaceTable::DecodeLabels(labels);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->slot, slot);
  EXPECT_EQ(read->labels, names.at(slot)->labels);
  for (std::size_t length = 0; length < labels.size(); ++length)
    EXPECT_FALSE(NamespaceTable::DecodeLabels(std::span(labels).first(length)).has_value()) << length;
  spec.labels = {{"model", "other"}};
  Attach(names, spec, 7);
  ASSERT_EQ(names.at(slot)->labels.size(), 1u) << "all of them are what was said last";
  EXPECT_EQ(NamespaceTable::SpecOf(*names.at(slot)).labels, spec.labels);
}

TEST(NamesTest, WhatAttachesTheSameElsewhereSaysAllButTheName) {
  NamespaceSpec spec = Spec();
  spec.name = "here";
  spec.trusted_keys = spec.strict = true;
  spec.mesh = false;
  spec.copies = 3;
  spec.flash_write = WriteRule{WritePolicy::kSelective, 4};
  spec.flash_admit = Admission::kAll;
  spec.labels = {{"role", "draft"}};
  ASSERT_TRUE(NamespaceTable::Validate(spec).ok());
  NamespaceEntry entry = NamespaceTable().Merged(spec, 5);
  const NamespaceEntry again = NamespaceTable().Merged(NamespaceTable::SpecOf(entry), 5);
  EXPECT_TRUE(again.names.empty());
  entry.names.clear();
  EXPECT_EQ(NamespaceTable::Encode(again), NamespaceTable::Encode(entry));
  EXPECT_EQ(NamespaceTable::EncodeLabels(again), NamespaceTable::EncodeLabels(entry));
}

TEST(NamesTest, WrongLabelsAreNamed) {
  NamespaceSpec spec = Spec();
  const auto refused = [&](std::vector<std::pair<std::string, std::string>> labels) {
    spec.labels = std::move(labels);
    return Refusal(spec);
  };
  EXPECT_THAT(refused({{"", "x"}}), HasSubstr("label"));
  EXPECT_THAT(refused({{"a=b", "x"}}), HasSubstr("'='"));
  EXPECT_THAT(refused({{"a", "x\n"}}), HasSubstr("printed"));
  EXPECT_THAT(refused({{"a", "1"}, {"b", "2"}, {"a", "3"}}), HasSubstr("label a: stands twice"));
  EXPECT_THAT(refused({{"a", std::string(kMaxLabelBytes, 'x')}}), HasSubstr("limit is 127"));
  EXPECT_THAT(refused(std::vector<std::pair<std::string, std::string>>(9, {"a", "x"})),
              HasSubstr("limit is 8"));
  spec.labels = {{"a", std::string(kMaxLabelBytes - 1, 'x')}};
  EXPECT_TRUE(NamespaceTable::Validate(spec).ok());
}

TEST(NamesTest, ListsOfTheSameLabelModelAreKinThoughTheirFieldsDiffer) {
  NamespaceTable names;
  const auto attach = [&](const std::string& digest, const std::string& label) {
    NamespaceSpec spec = Spec();
    spec.fields = {{"model_config", digest}};
    if (!label.empty()) spec.labels = {{"model", label}};
    return Attach(names, spec, 5 + names.size());
  };
  const std::uint32_t one = attach("d1", "llama"), other = attach("d2", "llama"),
                      third = attach("d3", "qwen");
  EXPECT_EQ(names.KinOf(one).size(), 2u);
  EXPECT_EQ(names.KinOf(other).size(), 2u);
  EXPECT_EQ(names.KinOf(third).size(), 1u);
  EXPECT_EQ(attach("d2", "qwen"), other);  // renamed
  EXPECT_EQ(names.KinOf(one).size(), 1u);
  EXPECT_EQ(names.KinOf(other).size(), 2u);
  names.Forget(third);
  EXPECT_EQ(names.KinOf(other).size(), 1u);
}

// So no node has such a namespace and does not know that it is strict.
TEST(NamesTest, StrictIsIdentity) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  spec.name = "one";
  const std::uint32_t slot = Attach(names, spec, 5);
  spec.strict = true;
  ASSERT_FALSE(names.Find(spec).has_value());
  EXPECT_THAT(std::string(names.Find(spec).error().message()), HasSubstr("strict is"));
  spec.name = "another";
  const std::uint32_t strict = Attach(names, spec, 6);
  EXPECT_NE(strict, slot);
  EXPECT_NE(NamespaceTable::ListOf(*names.at(strict)), NamespaceTable::ListOf(*names.at(slot)));
  const auto read = NamespaceTable::Decode(NamespaceTable::Encode(*names.at(strict)));
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(read->strict);
  EXPECT_FALSE(read->mesh.has_value());
  EXPECT_EQ(NamespaceTable::ListOf(*read), NamespaceTable::ListOf(*names.at(strict)));
}

TEST(NamesTest, R5KeysThatMayCollideAreRefusedUnlessTrusted) {
  NamespaceSpec spec = Spec();
  spec.fields.push_back({"hash", "xxh64"});
  EXPECT_THAT(Refusal(spec), HasSubstr("xxh64"));
  spec.trusted_keys = true;
  EXPECT_TRUE(NamespaceTable::Validate(spec).ok());
  spec = Spec();
  spec.fields.push_back({"hash", "sha256_cbor"});
  EXPECT_TRUE(NamespaceTable::Validate(spec).ok());
  spec.fields.push_back({"key_bytes", "8"});
  EXPECT_THAT(Refusal(spec), HasSubstr("key_bytes: 8 is under 16"));
}

TEST(NamesTest, WhatIsWrongIsNamedWithItsValueAndLimit) {
  NamespaceSpec spec = Spec();
  spec.groups[0].reach = Reach::kLastState;
  EXPECT_THAT(Refusal(spec), HasSubstr("group full: reach last_state is not served"));
  spec = Spec();
  spec.groups.clear();
  EXPECT_THAT(Refusal(spec), HasSubstr("groups: there are 0"));
  spec = Spec();
  spec.groups[1].name = "full";
  EXPECT_THAT(Refusal(spec), HasSubstr("group full: stands twice"));
  spec = Spec();
  spec.fields.push_back({"dtype", "x"});
  EXPECT_THAT(Refusal(spec), HasSubstr("field dtype: stands twice"));
  spec = Spec();
  spec.fields.push_back({"long", std::string(70'000, 'x')});
  EXPECT_THAT(Refusal(spec), HasSubstr("limit is 65536"));
  spec = Spec();
  spec.groups[0].part_bytes = {0};
  EXPECT_THAT(Refusal(spec), HasSubstr("a part has at least 1 byte"));
  spec = Spec();
  spec.block_tokens = 0;
  EXPECT_THAT(Refusal(spec), HasSubstr("block_tokens"));
}

TEST(NamesTest, P5AListHasSixteenNamesAndNotOneMore) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  for (std::size_t i = 0; i < kMaxNamesOfList; ++i) {
    spec.name = "name " + std::to_string(i);
    Attach(names, spec, 1);
  }
  EXPECT_TRUE(names.Find(spec).has_value());
  spec.name = "one more";
  auto found = names.Find(spec);
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code(), Code::kBusy);
  EXPECT_THAT(found.error().message(), HasSubstr("its list has 16 names"));
}

TEST(NamesTest, EntryBytesStayThoseOfVersion1) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  spec.name = "production";
  spec.flash_write = WriteRule{WritePolicy::kSelective, 3};
  const std::uint32_t slot = Attach(names, spec, 0x1122334455667788);
  EXPECT_EQ(HexOf(NamespaceTable::Encode(*names.at(slot))),
            "010000000000887766554433221110000000010000000a00000070726f64756374696f6e0200000005000000"
            "64747970650400000062663136050000006d6f64656c050000006c6c616d61020000000400000066756c6c00"
            "00000000020000000000010000000100050000006c6f63616c01e80300000200000000000100000001000303"
            "00");
}

TEST(NamesTest, AnEntryComesBackFromItsBytesAndNothingElseDoes) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  spec.name = "production";
  const std::uint32_t slot = Attach(names, spec, 5);
  const std::vector<std::byte> bytes = NamespaceTable::Encode(*names.at(slot));
  auto entry = NamespaceTable::Decode(bytes);
  ASSERT_TRUE(entry);
  NamespaceTable again;
  again.Put(*entry);
  auto found = again.Find(spec);
  ASSERT_TRUE(found.has_value());
  EXPECT_NE(found->entry, nullptr);
  EXPECT_FALSE(found->changes);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(NamespaceTable::Decode(std::span(bytes).first(n)));
}

// In a journal, or from another node: under a checksum that holds, and said by whom nobody knows.
TEST(NamesTest, AnEntryThatNoAttachMakesIsNotBelieved) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  spec.mesh = true;
  spec.copies = kMaxCopies;
  const NamespaceEntry entry = *names.at(Attach(names, spec, 5));
  const auto read = [&](auto change) {
    NamespaceEntry other = entry;
    change(other);
    return NamespaceTable::Decode(NamespaceTable::Encode(other)).has_value();
  };
  EXPECT_TRUE(read([](NamespaceEntry&) {}));
  EXPECT_TRUE(read([](NamespaceEntry& e) { e.slot = arena::kMaxNamespaces - 1; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.slot = arena::kMaxNamespaces; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.incarnation = 0; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.block_tokens = 0; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.copies = 0; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.copies = kMaxCopies + 1; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.groups.clear(); }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.groups.resize(kMaxGroups + 1, e.groups[0]); }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.groups[0].reach = Reach::kLastState; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.groups[0].reach = static_cast<Reach>(9); }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.groups[1].window_tokens = 0; }));
  EXPECT_TRUE(read([](NamespaceEntry& e) { e.groups[1].part_bytes = {kMaxBodyBytes - 1, 1}; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.groups[1].part_bytes = {kMaxBodyBytes, 1}; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.groups[1].part_bytes = {UINT32_MAX, UINT32_MAX, 2}; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.groups[1].part_bytes = {5, 0}; }));
  EXPECT_FALSE(read([](NamespaceEntry& e) { e.groups[1].part_bytes.assign(kMaxGroupParts + 1, 1); }));
  std::vector<std::byte> bytes = NamespaceTable::Encode(entry);
  for (const std::uint8_t version : {0, 4, 255}) {
    bytes[0] = std::byte{version};
    EXPECT_FALSE(NamespaceTable::Decode(bytes).has_value()) << int{version};
  }
}

TEST(NamesTest, WhatIsAtItsLimitIsTakenAndOneMoreIsNot) {
  const auto code = [](auto change) {
    NamespaceSpec spec = Spec();
    change(spec);
    return NamespaceTable::Validate(spec).code();
  };
  const auto fields = [](std::size_t count, std::size_t bytes) {
    return [=](NamespaceSpec& spec) {
      spec.fields.clear();
      for (std::size_t i = 0; i < count; ++i) spec.fields.emplace_back(std::to_string(100'000 + i), "");
      spec.fields[0].second.assign(bytes - 6 * count, 'x');
    };
  };
  EXPECT_EQ(code(fields(kMaxFields, 6 * kMaxFields)), Code::kOk);
  EXPECT_EQ(code(fields(kMaxFields + 1, 6 * kMaxFields + 6)), Code::kInvalid);
  EXPECT_EQ(code(fields(1, kMaxFieldBytes)), Code::kOk);
  EXPECT_EQ(code(fields(1, kMaxFieldBytes + 1)), Code::kInvalid);
  EXPECT_EQ(code([](NamespaceSpec& spec) { spec.fields[0].first = ""; }), Code::kInvalid);
  EXPECT_EQ(code([](NamespaceSpec& spec) { spec.fields[0].first = "a\x7f"; }), Code::kInvalid);
  EXPECT_EQ(code([](NamespaceSpec& spec) { spec.fields[0].second = "a\n"; }), Code::kInvalid);
  EXPECT_EQ(code([](NamespaceSpec& spec) { spec.name.assign(2 * kMaxNameBytes, 'n'); }), Code::kOk);
  EXPECT_EQ(code([](NamespaceSpec& spec) { spec.name.assign(2 * kMaxNameBytes + 1, 'n'); }), Code::kInvalid);
  EXPECT_EQ(code([](NamespaceSpec& spec) { spec.name = "\x1f"; }), Code::kInvalid);
  const auto groups = [](std::size_t count) {
    return [=](NamespaceSpec& spec) {
      spec.groups.assign(count, spec.groups[0]);
      for (std::size_t i = 0; i < count; ++i) spec.groups[i].name = std::to_string(i);
    };
  };
  EXPECT_EQ(code(groups(kMaxGroups)), Code::kOk);
  EXPECT_EQ(code(groups(kMaxGroups + 1)), Code::kInvalid);
  const auto group = [&](auto change) { return code([&](NamespaceSpec& spec) { change(spec.groups[1]); }); };
  EXPECT_EQ(group([](GroupSpec& g) { g.name.assign(kMaxNameBytes, 'g'); }), Code::kOk);
  EXPECT_EQ(group([](GroupSpec& g) { g.name.assign(kMaxNameBytes + 1, 'g'); }), Code::kInvalid);
  EXPECT_EQ(group([](GroupSpec& g) { g.name.clear(); }), Code::kInvalid);
  EXPECT_EQ(group([](GroupSpec& g) { g.name = "a\tb"; }), Code::kInvalid);
  EXPECT_EQ(group([](GroupSpec& g) { g.reach = static_cast<Reach>(9); }), Code::kInvalid);
  EXPECT_EQ(group([](GroupSpec& g) { g.window_tokens = 0; }), Code::kInvalid);
  EXPECT_EQ(group([](GroupSpec& g) { g.part_bytes.assign(kMaxGroupParts, 1); }), Code::kOk);
  EXPECT_EQ(group([](GroupSpec& g) { g.part_bytes.assign(kMaxGroupParts + 1, 1); }), Code::kInvalid);
  EXPECT_EQ(group([](GroupSpec& g) { g.part_bytes = {kMaxBodyBytes - 1, 1}; }), Code::kOk);
  EXPECT_EQ(group([](GroupSpec& g) { g.part_bytes = {kMaxBodyBytes - 1, 2}; }), Code::kInvalid);
  EXPECT_EQ(group([](GroupSpec& g) { g.part_bytes = {UINT64_MAX, 2}; }), Code::kInvalid);
}

TEST(NamesTest, NamesAndReachesOfGroupsAreIdentity) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  spec.name = "production";
  const std::uint32_t slot = Attach(names, spec, 5);
  NamespaceSpec renamed = Spec(), whole = Spec(), fewer = Spec();
  renamed.groups[1].name = "sliding";
  whole.groups[1].reach = Reach::kFull;
  fewer.groups.pop_back();
  std::uint64_t incarnation = 5;
  for (NamespaceSpec* other : {&renamed, &whole, &fewer}) {
    EXPECT_NE(Attach(names, *other, ++incarnation), slot);
    other->name = "production";
  }
  EXPECT_THAT(names.Find(renamed).error().message(),
              HasSubstr("group 1 is 'local' in the stored list and 'sli"));
  EXPECT_THAT(names.Find(whole).error().message(), HasSubstr("group local has reach window in the stored"));
  EXPECT_THAT(names.Find(fewer).error().message(), HasSubstr("the stored list has 2 groups and this one 1"));
}

TEST(NamesTest, FieldThatOneListLacksIsNamedWhicheverItIs) {
  const auto said = [](std::vector<std::pair<std::string, std::string>> stored,
                       std::vector<std::pair<std::string, std::string>> asked) {
    NamespaceTable names;
    NamespaceSpec spec = Spec();
    spec.name = "production";
    spec.fields = std::move(stored);
    Attach(names, spec, 5);
    spec.fields = std::move(asked);
    return std::string(names.Find(spec).error().message());
  };
  EXPECT_THAT(said({{"a", "1"}, {"c", "3"}}, {{"c", "3"}}),
              HasSubstr("field a is '1' in the stored list and missing"));
  EXPECT_THAT(said({{"a", "1"}, {"c", "3"}}, {{"a", "1"}}),
              HasSubstr("field c is '3' in the stored list and missing"));
  EXPECT_THAT(said({{"c", "3"}}, {{"a", "1"}, {"c", "3"}}),
              HasSubstr("field a is missing in the stored list and '1'"));
  EXPECT_THAT(said({{"a", "1"}}, {{"a", "1"}, {"c", "3"}}),
              HasSubstr("field c is missing in the stored list and '3'"));
}

// Else whoever attaches it again would find what took its slot.
TEST(NamesTest, ListThatIsForgottenIsNotTheOneThatTookItsSlot) {
  NamespaceTable names;
  NamespaceSpec gone = Spec(), next = Spec();
  gone.name = "gone";
  next.fields[0].second = "fp8";
  const std::uint32_t slot = Attach(names, gone, 5);
  names.Forget(slot);
  EXPECT_EQ(names.size(), 0u);
  EXPECT_EQ(names.at(slot), nullptr);
  const std::uint64_t put = names.PutNumberOf(slot);
  ASSERT_EQ(Attach(names, next, 6), slot);
  EXPECT_NE(names.PutNumberOf(slot), put);
  const auto again = names.Find(gone);
  ASSERT_TRUE(again.has_value()) << again.error().ToString();
  EXPECT_EQ(again->entry, nullptr);
  EXPECT_NE(Attach(names, gone, 7), slot);
  EXPECT_EQ(names.size(), 2u);
}

TEST(NamesTest, R5OnlyTheFieldOfKeyBytesIsHeldAgainstTheLeastOfThem) {
  NamespaceSpec spec = Spec();
  spec.fields = {{"key_bytes", "16"}, {"layers", "8"}};
  EXPECT_TRUE(NamespaceTable::Validate(spec).ok());
  spec.fields = {{"key_bytes", "15"}};
  EXPECT_THAT(Refusal(spec), HasSubstr("key_bytes: 15 is under 16"));
}

TEST(NamesTest, PartsAreAddedWithoutOverflowAndLabelsAreAsManyAsMayBe) {
  NamespaceSpec spec = Spec();
  spec.groups[0].part_bytes = {2, UINT64_MAX};
  EXPECT_THAT(Refusal(spec), HasSubstr("part_bytes: a block has more than"));
  spec = Spec();
  for (std::size_t i = 0; i < kMaxLabels; ++i) spec.labels.emplace_back(std::to_string(i), "x");
  EXPECT_TRUE(NamespaceTable::Validate(spec).ok());
  spec.labels = {{"a\n", "x"}};
  EXPECT_THAT(Refusal(spec), HasSubstr("printed"));
}

TEST(NamesTest, LabelsThatNoAttachMakesAreNotBelieved) {
  const auto read = [](std::vector<std::pair<std::string, std::string>> labels) {
    NamespaceEntry entry;
    entry.labels = std::move(labels);
    return NamespaceTable::DecodeLabels(NamespaceTable::EncodeLabels(entry)).has_value();
  };
  EXPECT_TRUE(read({{"a", "1"}, {"b", "2"}}));
  EXPECT_FALSE(read({{"b", "2"}, {"a", "1"}}));
  EXPECT_FALSE(read({{"a", "1"}, {"a", "2"}}));
  EXPECT_FALSE(read({{"a", "\n"}}));
  EXPECT_FALSE(NamespaceTable::DecodeLabels(std::vector<std::byte>(6)).has_value()) << "of none";
}

// Whoever widens a window says nothing of where the blocks may go.
TEST(NamesTest, WhatWasSaidStaysWhereAnotherChangesSomethingElse) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  spec.name = "production";
  spec.mesh = false;
  spec.copies = 2;
  spec.labels = {{"model", "llama"}};
  const std::uint32_t slot = Attach(names, spec, 5);
  NamespaceSpec wide = Spec();
  wide.name = "production";
  wide.groups[1].window_tokens = 4096;
  ASSERT_EQ(Attach(names, wide, 6), slot);
  const NamespaceEntry& entry = *names.at(slot);
  EXPECT_EQ(entry.groups[1].window_blocks, 256u);
  EXPECT_EQ(entry.mesh, std::optional(false));
  EXPECT_EQ(entry.copies, 2u);
  EXPECT_EQ(entry.labels, spec.labels);
  EXPECT_EQ(entry.names, std::vector<std::string>{"production"});
}

TEST(NamesTest, ParentsStandInTheFirstOfTheFullGroups) {
  NamespaceTable names;
  NamespaceSpec spec = Spec();
  std::swap(spec.groups[0], spec.groups[1]);
  spec.groups.push_back({.name = "second", .part_bytes = {1}});
  const NamespaceEntry& entry = *names.at(Attach(names, spec, 5));
  EXPECT_EQ(entry.first_full, 1);
  EXPECT_EQ(entry.groups[0].body_bytes, 131072u);
  spec.groups = {Spec().groups[1]};
  EXPECT_EQ(names.at(Attach(names, spec, 6))->first_full, kNoGroup);
}

}  // namespace
}  // namespace cistern::catalog
