// SPDX-License-Identifier: Apache-2.0
// What happens to blocks is counted under its own name: hits by who found them, misses by why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../real_node.h"
#include "admin/test_http.h"

namespace cistern {
namespace {

constexpr std::size_t kBytes = 8'000;

// Of /metrics.
double ValueOf(const RealNode& node, const std::string& series) {
  admin::HttpAnswered answered;
  Until([&] { return (answered = admin::Get(node.http(), "/metrics")).status == 200; });
  const std::string& metrics = answered.body;
  const std::size_t at = metrics.find("\n" + series + " ");
  EXPECT_NE(at, std::string::npos) << series << " is not in\n" << metrics;
  return at == std::string::npos ? -1 : std::strtod(metrics.c_str() + at + series.size() + 2, nullptr);
}

double Missed(const RealNode& node, const std::string& reason) {
  return ValueOf(node, "cistern_misses_total{reason=\"" + reason + "\"}");
}

void PutChain(Store& store, const Namespace& ns, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t n = first; n < first + count; ++n) {
    Status put;
    // Where all that could leave is being looked at by the scrubber, there is no room for it just now.
    Until([&] {
      put = PutBlock(store, ns, n, n == first ? std::nullopt : std::optional(n - 1), kBytes);
      return put.code() != Code::kBusy;
    });
    ASSERT_TRUE(put.ok()) << n << ": " << put.ToString();
  }
}

std::uint32_t Match(Store& store, const Namespace& ns, std::uint64_t first, std::uint64_t count) {
  std::vector<BlockKey> keys;
  for (std::uint64_t n = first; n < first + count; ++n) keys.push_back(KeyOf(n));
  return store.Match(ns, keys).Wait()->blocks;
}

TEST(Counted, MissesByTheReasonWhyTheFirstOfAChainIsNotThere) {
  RealNode node(64u << 20, [](node::NodeOptions& options) {
    options.http = "0";
    options.max_blocks = 10;
  });
  Store store = node.Connect();
  const Namespace ns = AttachTest(store);
  PutChain(store, ns, 0, 4);
  EXPECT_EQ(Match(store, ns, 0, 7), 4u);
  EXPECT_EQ(Missed(node, "unknown"), 3);
  ASSERT_EQ(store.Drop(ns, std::vector{KeyOf(2)}).Wait().value_or(0), 2u);
  EXPECT_EQ(Match(store, ns, 0, 4), 2u);
  EXPECT_EQ(Missed(node, "dropped"), 2);
  PutChain(store, ns, 100, 10);  // these take the room
  EXPECT_EQ(Match(store, ns, 0, 2), 0u);
  EXPECT_EQ(Missed(node, "evicted"), 2);
  WriteOptions held;
  held.held = true;
  ASSERT_TRUE(store.Put(ns, KeyOf(500), std::nullopt, BodyOf(500, kBytes), held).ok());
  EXPECT_EQ(Match(store, ns, 500, 1), 0u);
  EXPECT_EQ(Missed(node, "pending"), 1);
  ASSERT_TRUE(store.SwitchReads("", false).has_value());
  EXPECT_EQ(Match(store, ns, 100, 5), 0u);
  EXPECT_EQ(Missed(node, "switched_off"), 5);
  EXPECT_EQ(ValueOf(node, "cistern_switches_reads_on"), 0);
  EXPECT_EQ(Missed(node, "bad") + Missed(node, "expired") + Missed(node, "too_late"), 0);
}

TEST(Counted, AMissOfWhatAnotherNamespaceOfTheSameModelHasIsCountedApart) {
  RealNode node(64u << 20, [](node::NodeOptions& options) { options.http = "0"; });
  Store store = node.Connect();
  const auto attach = [&](const char* model, const char* dtype) {
    NamespaceSpec spec;
    spec.fields = {{"dtype", dtype}, {"model", model}, {"model_impl", "auto"}};
    spec.groups = {{.name = "all"}};
    return *store.Attach(spec);
  };
  Namespace stored = attach("llama", "bf16");
  const Namespace differs = attach("llama", "fp8");
  const Namespace another = attach("qwen", "fp8");
  const Namespace nameless = AttachTest(store);  // none of its fields names a model
  PutChain(store, stored, 0, 4);
  PutChain(store, nameless, 0, 4);
  EXPECT_EQ(Match(store, differs, 0, 5), 0u);
  EXPECT_EQ(Missed(node, "other_namespace"), 5);
  EXPECT_EQ(Match(store, another, 0, 7), 0u);
  EXPECT_EQ(Match(store, differs, 100, 2), 0u);
  EXPECT_EQ(Match(store, stored, 0, 5), 4u);
  EXPECT_EQ(Missed(node, "unknown"), 7 + 2 + 1);
  ASSERT_TRUE(store.DropNamespace(stored).Wait().has_value());
  EXPECT_EQ(Match(store, differs, 0, 5), 0u);
  EXPECT_EQ(Missed(node, "other_namespace"), 5) << "it is not there any more either";
}

TEST(Counted, ReadsThatTheNodeNeverSeesAndWhatEnginesReport) {
  RealNode node(64u << 20, [](node::NodeOptions& options) { options.http = "0"; });
  {
    Store store = node.Connect();
    const Namespace ns = AttachTest(store);
    PutChain(store, ns, 0, 4);
    EXPECT_EQ(Match(store, ns, 0, 4), 4u);
    EXPECT_EQ(Match(store, ns, 0, 6), 4u);
    for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(store.Get(ns, KeyOf(n)).has_value());
    ASSERT_TRUE(
        store
            .Report(
                {.promised_tokens = 512, .delivered_tokens = 500, .saved_us = 3'000'000, .spent_us = 250'000})
            .ok());
    ASSERT_TRUE(store.Report({.promised_tokens = 8}).ok());
    Until([&] { return ValueOf(node, "cistern_engines_promised_tokens_total") == 520; });
  }
  Until([&] { return ValueOf(node, "cistern_door_sessions") == 0; });  // what was said stays
  EXPECT_EQ(ValueOf(node, "cistern_reads_asked_blocks_total"), 10);
  EXPECT_EQ(ValueOf(node, "cistern_reads_indexed_blocks_total"), 8);
  EXPECT_EQ(ValueOf(node, "cistern_reads_read_blocks_total"), 4);
  EXPECT_EQ(ValueOf(node, "cistern_reads_read_bytes_total"), 4 * kBytes);
  EXPECT_EQ(ValueOf(node, "cistern_engines_delivered_tokens_total"), 500);
  EXPECT_EQ(ValueOf(node, "cistern_engines_saved_seconds_total"), 3);
  EXPECT_EQ(ValueOf(node, "cistern_engines_spent_seconds_total"), 0.25);
}

TEST(Counted, ByNamespaceWithBytesThatComeAndGo) {
  RealNode node(64u << 20, [](node::NodeOptions& options) { options.http = "0"; });
  Store store = node.Connect();
  NamespaceSpec spec;
  spec.name = "llama \"70b\"";
  spec.fields = {{"model", "llama"}};
  spec.labels = {{"model", "Llama 3"}, {"role", "draft"}};
  spec.groups = {{.name = "all"}};
  Result<Namespace> ns = store.Attach(spec);
  ASSERT_TRUE(ns.has_value());
  const Namespace other = AttachTest(store);
  PutChain(store, *ns, 0, 5);
  PutChain(store, other, 0, 2);
  const auto of = [&](const std::string& what) {
    return ValueOf(node, "cistern_namespace_" + what + "{namespace=\"llama \\\"70b\\\"\",model=\"Llama 3\"}");
  };
  EXPECT_EQ(of("memory_bytes"), 5 * kBytes);
  EXPECT_EQ(of("memory_records"), 5);
  EXPECT_EQ(of("published_total"), 5);
  EXPECT_EQ(of("reads_on"), 1);
  Match(store, *ns, 0, 8);
  EXPECT_EQ(of("misses_total"), 3);
  ASSERT_TRUE(store.DropNamespace(*ns).Wait().has_value());
  EXPECT_EQ(of("memory_bytes"), 0);
  EXPECT_EQ(of("memory_records"), 0);
  EXPECT_EQ(of("published_total"), 5) << "it is the same list";
  EXPECT_EQ(ValueOf(node, "cistern_now_bytes"), 2 * kBytes);
}

}  // namespace
}  // namespace cistern
