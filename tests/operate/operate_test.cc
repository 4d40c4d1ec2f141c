// SPDX-License-Identifier: Apache-2.0
// What a node says of its namespaces, as the command line shows and compares them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../real_node.h"
#include "namespace_list.h"

namespace cistern {
namespace {

NamespaceSpec Engine() {
  NamespaceSpec spec;
  spec.fields = {{"model", "m"}, {"dtype", "bf16"}, {"layout", "nhd"}};
  spec.groups = {{.name = "full", .part_bytes = {4096, 4096}}};
  spec.block_tokens = 16;
  return spec;
}

std::vector<ListedNamespace> ListOf(Store& store) {
  const Result<std::string> text = store.NamespacesJson();
  EXPECT_TRUE(text.has_value()) << text.error().ToString();
  Result<std::vector<ListedNamespace>> all = ParseNamespaces(text.value_or(""));
  EXPECT_TRUE(all.has_value());
  return all.value_or(std::vector<ListedNamespace>());
}

std::vector<std::string> TextOf(const std::vector<NamespaceDifference>& differences) {
  std::vector<std::string> texts;
  for (const NamespaceDifference& d : differences)
    texts.push_back(d.what + ": " + d.a + " | " + d.b + (d.identity ? "" : " *"));
  return texts;
}

TEST(NamespaceDiff, TwoEnginesThatDifferInEverythingAreToldEachPlace) {
  RealNode node;
  Store store = node.Connect();
  ASSERT_TRUE(store.Attach(Engine()).has_value());
  NamespaceSpec other = Engine();
  other.fields = {{"model", "m"}, {"dtype", "fp8"}, {"lora", "x"}};
  other.groups = {{.name = "full", .part_bytes = {8192}},
                  {.name = "local", .reach = Reach::kWindow, .window_tokens = 512}};
  other.block_tokens = 32;
  other.trusted_keys = true;
  ASSERT_TRUE(store.Attach(other).has_value());
  const std::vector<ListedNamespace> all = ListOf(store);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(TextOf(Differences(all[0], all[1])),
              testing::ElementsAre("field dtype: bf16 | fp8", "field layout: nhd | (missing)",
                                   "field lora: (missing) | x", "groups: 1 | 2",
                                   "group full: part_bytes: 2 parts of 4096 | 1 part of 8192",
                                   "trusted_keys: false | true", "block_tokens: 16 | 32 *"));
  EXPECT_TRUE(Differences(all[0], all[0]).empty());
}

TEST(NamespaceDiff, ANamespaceIsFoundByNameFingerprintAndFieldAndNotByWhatSeveralHave) {
  RealNode node;
  Store store = node.Connect();
  NamespaceSpec spec = Engine();
  spec.name = "blue";
  ASSERT_TRUE(store.Attach(spec).has_value());
  spec.name = "red";
  spec.fields[1].second = "fp8";
  ASSERT_TRUE(store.Attach(spec).has_value());
  const std::vector<ListedNamespace> all = ListOf(store);
  for (const std::string& text : {std::string("blue"), std::string("dtype=bf16"), all[0].fingerprint,
                                  all[0].fingerprint.substr(0, 9)}) {
    const auto found = FindNamespace(all, text);
    ASSERT_TRUE(found.has_value()) << text;
    EXPECT_EQ((*found)->title(), "blue") << text;
  }
  const auto several = FindNamespace(all, "model=m");
  ASSERT_FALSE(several.has_value());
  EXPECT_EQ(several.error().code(), Code::kInvalid);
  EXPECT_THAT(std::string(several.error().message()),
              testing::AllOf(testing::HasSubstr("blue ("), testing::HasSubstr("red (")));
  EXPECT_EQ(FindNamespace(all, "green").error().code(), Code::kMiss);
}

TEST(NamespaceDiff, LabelsAreListedFoundAndNoPartOfTheIdentity) {
  RealNode node;
  Store store = node.Connect();
  NamespaceSpec spec = Engine();
  spec.labels = {{"served", "llama"}, {"model", "Llama 3 \"8B\""}};
  ASSERT_TRUE(store.Attach(spec).has_value());
  spec.fields[1].second = "fp8";
  spec.labels = {{"served", "llama"}};
  ASSERT_TRUE(store.Attach(spec).has_value());
  const std::vector<ListedNamespace> all = ListOf(store);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(LabelsText(all[0]), "model=Llama 3 \"8B\" served=llama");
  EXPECT_EQ(all[0].shown(), all[0].fingerprint.substr(0, 4) + " Llama 3 \"8B\"");
  EXPECT_EQ(all[1].shown(), all[1].fingerprint);
  EXPECT_EQ(*FindNamespace(all, "model=Llama 3 \"8B\""), &all[0]);
  EXPECT_EQ(FindNamespace(all, "served=llama").error().code(), Code::kInvalid) << "several";
  EXPECT_EQ(FindNamespaces(all, "served=llama")->size(), 2u);
  EXPECT_EQ(FindNamespaces(all, "served=lla").error().code(), Code::kMiss);
  for (const NamespaceDifference& difference : Differences(all[0], all[1]))
    EXPECT_EQ(difference.identity, difference.what != "labels") << difference.what;
}

TEST(NamespaceDrop, ByNameOrFingerprintAllOfItGoesAndNothingElse) {
  RealNode node;
  Store store = node.Connect();
  NamespaceSpec spec = Engine();
  spec.groups = {{.name = "all"}};
  spec.name = "blue";
  const Namespace blue = *store.Attach(spec);
  spec.name.clear();
  spec.fields[1].second = "fp8";
  const Namespace other = *store.Attach(spec);
  const std::vector<ListedNamespace> all = ListOf(store);
  for (const Namespace& ns : {blue, other}) {
    for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(PutBlock(store, ns, n, std::nullopt, 5000).ok());
  }
  Store operator_ = node.Connect();
  EXPECT_EQ(operator_.DropNamed("red").error().code(), Code::kMiss);
  EXPECT_EQ(operator_.DropNamed("").error().code(), Code::kInvalid);
  EXPECT_EQ(operator_.DropNamed("blue").value_or(0), 5u);
  EXPECT_FALSE(store.Get(blue, KeyOf(0)).has_value());
  EXPECT_TRUE(store.Get(other, KeyOf(0)).has_value());
  EXPECT_EQ(operator_.DropNamed(all[1].fingerprint).value_or(0), 5u);
  EXPECT_FALSE(store.Get(other, KeyOf(0)).has_value());
  EXPECT_EQ(ListOf(store).size(), 2u) << "they stay, empty";
}

TEST(NamespaceDrop, ByItsFingerprintWhateverAnotherIsNamed) {
  NamespaceSpec meant = Engine();
  meant.groups = {{.name = "all"}};
  std::string fingerprint;
  {
    RealNode node;
    Store store = node.Connect();
    ASSERT_TRUE(store.Attach(meant).has_value());
    fingerprint = ListOf(store).at(0).fingerprint;
  }
  RealNode node;
  Store store = node.Connect();
  NamespaceSpec other = meant;
  other.fields[1].second = "fp8";
  other.name = fingerprint;
  const Namespace first = *store.Attach(other), second = *store.Attach(meant);
  for (const Namespace& ns : {first, second}) ASSERT_TRUE(PutBlock(store, ns, 0, std::nullopt, 5000).ok());
  EXPECT_EQ(node.Connect().DropNamed(fingerprint).value_or(0), 1u);
  EXPECT_TRUE(store.Get(first, KeyOf(0)).has_value());
  EXPECT_FALSE(store.Get(second, KeyOf(0)).has_value());
}

TEST(NamespaceList, FieldsOfAnyBytesAreValidJson) {
  RealNode node;
  Store store = node.Connect();
  NamespaceSpec spec = Engine();
  spec.fields.push_back({"odd", "\xff\xc3\xa4\xed\xa0\x80\"\\"});
  ASSERT_TRUE(store.Attach(spec).has_value());
  const std::vector<ListedNamespace> all = ListOf(store);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_THAT(all[0].fields, testing::Contains(testing::Pair("odd", "\u01ff\u00e4\u01ed\u01a0\u0180\"\\")));
}

// A page is 64 KiB; one whose fields alone are more is a page of its own.
TEST(NamespaceList, TheLongestFieldsThatAreAllowedAreListedWithTheOthers) {
  RealNode node;
  Store store = node.Connect();
  for (int i = 0; i < 5; ++i) {
    NamespaceSpec spec = Engine();
    spec.fields.push_back({"long", std::string(60'000, static_cast<char>('a' + i))});
    ASSERT_TRUE(store.Attach(spec).has_value());
    spec.fields.back().second = std::string(1, static_cast<char>('a' + i));
    ASSERT_TRUE(store.Attach(spec).has_value());
  }
  EXPECT_EQ(ListOf(store).size(), 10u);
}

TEST(NamespaceList, UsesAreThoseOfTheNamespaceThatWasUsed) {
  RealNode node;
  Store store = node.Connect();
  const Namespace quiet = AttachTest(store, "quiet"), busy = AttachTest(store, "busy");
  ASSERT_TRUE(PutBlock(store, quiet, 1, std::nullopt, 5000).ok());
  ASSERT_TRUE(PutBlock(store, busy, 1, std::nullopt, 5000).ok());
  const BlockKey key = KeyOf(1);
  ASSERT_EQ(store.Touch(busy, std::span(&key, 1)).Wait().value_or(0), 1u);
  const std::vector<ListedNamespace> all = ListOf(store);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].uses, 0u);
  EXPECT_EQ(all[0].unused_us, std::nullopt);
  EXPECT_EQ(all[1].uses, 1u);
  EXPECT_TRUE(all[1].unused_us.has_value());
  EXPECT_EQ(all[1].owners, 1u);
}

TEST(NamespaceList, OfAnEmbeddedNodeIsTheSame) {
  RealNode node;  // makes the directory alone
  OpenOptions options;
  options.memory_bytes = 64u << 20;
  options.memory_dir = node.directory() + "/embedded";
  Result<Store> store = Store::Open(options);
  ASSERT_TRUE(store.has_value()) << store.error().ToString();
  ASSERT_TRUE(store->Attach(Engine()).has_value());
  EXPECT_EQ(ListOf(*store).size(), 1u);
  EXPECT_TRUE(store->ConfigurationJson().has_value());
}

}  // namespace
}  // namespace cistern
