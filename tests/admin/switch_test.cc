// SPDX-License-Identifier: Apache-2.0
// Reads and writes that an operator switches off under clients that go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "../real_node.h"

namespace cistern {
namespace {

using testing::HasSubstr;

constexpr std::size_t kBytes = 100'000;
constexpr std::uint64_t kBlocks = 8;

void PutChain(Store& store, const Namespace& ns) {
  for (std::uint64_t n = 0; n < kBlocks; ++n)
    ASSERT_TRUE(PutBlock(store, ns, n, n == 0 ? std::nullopt : std::optional(n - 1), kBytes).ok());
}

std::vector<BlockKey> Chain() {
  std::vector<BlockKey> keys;
  for (std::uint64_t n = 0; n < kBlocks; ++n) keys.push_back(KeyOf(n));
  return keys;
}

// How many blocks each way of asking for them gives.
struct Had {
  std::uint32_t matched = 0, held = 0, read = 0, leased = 0;
  friend bool operator==(const Had&, const Had&) = default;
};

void PrintTo(const Had& had, std::ostream* out) {
  *out << "matched " << had.matched << ", held " << had.held << ", read " << had.read << ", leased "
       << had.leased;
}

constexpr Had kAll{kBlocks, kBlocks, kBlocks, kBlocks};

Had Ask(Store& store, const Namespace& ns) {
  const std::vector<BlockKey> keys = Chain();
  Had had;
  had.matched = store.Match(ns, keys).Wait()->blocks;
  had.held = store.Match(ns, keys, {.hold_us = 1'000'000}).Wait()->blocks;
  std::vector<std::byte> bytes(kBytes);
  std::vector<BlockRef> refs;
  for (std::uint64_t n = 0; n < kBlocks; ++n) {
    const ReadRange range{.bytes = kBytes, .to = bytes.data()};
    const BlockRead read{.key = keys[n], .ranges = std::span(&range, 1)};
    had.read += store.Read(ns, std::span(&read, 1)).Wait()->leading_hits;
    refs.push_back({keys[n]});
  }
  if (const Result<Lease> lease = store.Acquire(ns, refs).Wait(); lease.has_value()) had.leased = kBlocks;
  return had;
}

TEST(Switch, WithReadsOffNothingIsHadByAnyoneAndBackOnEverythingIs) {
  RealNode node(64u << 20);
  Store operator_ = node.Connect(), store = node.Connect();
  const Namespace ns = AttachTest(store, "one"), other = AttachTest(store, "two");
  PutChain(store, ns);
  PutChain(store, other);
  ASSERT_EQ(Ask(store, ns), kAll);

  ASSERT_EQ(operator_.SwitchReads("", false).value_or(0), 2u);
  EXPECT_EQ(Ask(store, ns), Had());
  EXPECT_EQ(Ask(store, other), Had());
  EXPECT_FALSE(store.Get(ns, KeyOf(0)).has_value());
  Store late = node.Connect();  // and what comes only now
  const Namespace attached_late = AttachTest(late, "three");
  EXPECT_TRUE(PutBlock(late, attached_late, 0, std::nullopt, kBytes).ok()) << "writes are on";
  EXPECT_FALSE(late.Get(attached_late, KeyOf(0)).has_value());
  EXPECT_EQ(StatusNumber(operator_, "records"), 2 * kBlocks + 1) << "what is there stays";

  ASSERT_EQ(operator_.SwitchReads("", true).value_or(0), 3u);
  EXPECT_EQ(Ask(store, ns), kAll);
  EXPECT_EQ(Ask(store, other), kAll);
  EXPECT_TRUE(late.Get(attached_late, KeyOf(0)).has_value());
}

TEST(Switch, OneNamespaceByNameOrFingerprintLeavesTheOthers) {
  RealNode node(64u << 20);
  Store store = node.Connect();
  NamespaceSpec spec;
  spec.name = "llama";
  spec.fields = {{"model", "llama"}};
  spec.groups = {{.name = "all"}};
  const Result<Namespace> named = store.Attach(spec);
  ASSERT_TRUE(named.has_value());
  const Namespace other = AttachTest(store, "other");
  PutChain(store, *named);
  PutChain(store, other);
  ASSERT_EQ(store.SwitchReads("llama", false).value_or(0), 1u);
  EXPECT_EQ(Ask(store, *named), Had());
  EXPECT_EQ(Ask(store, other), kAll);
  // All off and on again: the one that was off by itself is on, too.
  ASSERT_TRUE(store.SwitchReads("", false).has_value());
  ASSERT_TRUE(store.SwitchReads("", true).has_value());
  EXPECT_EQ(Ask(store, *named), kAll);
  // The one without a name is called by its fingerprint in status.
  const std::string json = *store.StatusJson();
  const std::size_t second = json.find("\"namespace\":\"", json.find("\"namespace\":\"llama\"") + 1);
  ASSERT_NE(second, std::string::npos) << json;
  const std::string fingerprint = json.substr(second + 13, 16);
  ASSERT_EQ(store.SwitchReads(fingerprint, false).value_or(0), 1u) << fingerprint;
  EXPECT_EQ(Ask(store, other), Had());
  EXPECT_EQ(Ask(store, *named), kAll);

  const Result<std::uint32_t> unknown = store.SwitchReads("lama", false);
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code(), Code::kMiss);
  EXPECT_THAT(std::string(unknown.error().message()), HasSubstr("lama"));
  EXPECT_EQ(store.SwitchReads(std::string(300, 'x'), false).error().code(), Code::kInvalid);
}

TEST(Switch, ThoseOfAFieldOrALabelByPatternLeaveTheOthers) {
  RealNode node(64u << 20);
  Store store = node.Connect();
  const auto attach = [&](const std::string& digest, const std::string& model) {
    NamespaceSpec spec;
    spec.fields = {{"model_config", digest}};
    spec.groups = {{.name = "all"}};
    spec.labels = {{"model", model}};
    const Result<Namespace> ns = store.Attach(spec);
    EXPECT_TRUE(ns.has_value());
    PutChain(store, *ns);
    return *ns;
  };
  const Namespace one = attach("d1", "llama-8b"), two = attach("d2", "llama-70b"),
                  other = attach("d3", "qwen");
  ASSERT_EQ(store.SwitchReads("model=llama*", false).value_or(0), 2u);
  EXPECT_EQ(Ask(store, one), Had());
  EXPECT_EQ(Ask(store, two), Had());
  EXPECT_EQ(Ask(store, other), kAll);
  ASSERT_EQ(store.SwitchReads("model_config=d2", true).value_or(0), 1u);
  EXPECT_EQ(Ask(store, one), Had());
  EXPECT_EQ(Ask(store, two), kAll);
  EXPECT_EQ(store.SwitchReads("model=gpt", false).error().code(), Code::kMiss);
  EXPECT_EQ(store.SwitchReads("config=d1", false).error().code(), Code::kMiss);
}

TEST(Switch, OneEngineIsOffAlsoWhenItComesAgainAndTheOthersGoOn) {
  RealNode node(64u << 20);
  const auto named = [&](const std::string& name) {
    ConnectOptions options = node.options();
    options.engine_name = name;
    Result<Store> store = Store::Connect(options);
    EXPECT_TRUE(store.has_value());
    return std::move(*store);
  };
  Store operator_ = node.Connect(), other = named("decode-2");
  auto engine = std::make_unique<Store>(named("decode-1"));
  const Namespace ns = AttachTest(*engine);
  const Namespace others = AttachTest(other);
  PutChain(*engine, ns);
  ASSERT_EQ(operator_.SwitchEngineReads("decode-1", false).value_or(0), 1u);
  EXPECT_EQ(Ask(*engine, ns), Had());
  EXPECT_EQ(Ask(other, others), kAll);
  EXPECT_TRUE(PutBlock(*engine, ns, kBlocks, kBlocks - 1, kBytes).ok()) << "writes are on";
  EXPECT_THAT(*operator_.StatusJson(), HasSubstr("\"reads_off_engines\":1"));

  engine.reset();
  ASSERT_TRUE(node.Reload(node.Options()).has_value());
  engine = std::make_unique<Store>(named("decode-1"));
  const Namespace again = AttachTest(*engine);
  EXPECT_EQ(Ask(*engine, again), Had()) << "it was started anew, and the node read its settings again";
  ASSERT_EQ(operator_.SwitchEngineWrites("decode-1", false).value_or(0), 1u);
  const Status refused = PutBlock(*engine, again, kBlocks + 1, kBlocks, kBytes);
  EXPECT_EQ(refused.code(), Code::kBusy);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("decode-1"));
  EXPECT_TRUE(PutBlock(other, others, kBlocks + 1, kBlocks, kBytes).ok());

  ASSERT_TRUE(operator_.SwitchEngineReads("decode-1", true).has_value());
  EXPECT_EQ(Ask(*engine, again), kAll);
  ASSERT_TRUE(operator_.SwitchEngineWrites("decode-1", true).has_value());
  EXPECT_TRUE(PutBlock(*engine, again, kBlocks + 2, kBlocks + 1, kBytes).ok());

  EXPECT_EQ(operator_.SwitchEngineReads("decode-3", false).error().code(), Code::kMiss);
  EXPECT_EQ(operator_.SwitchEngineReads("", false).error().code(), Code::kInvalid);
  ConnectOptions odd = node.options();
  odd.engine_name = "decode 1";
  const Result<Store> none = Store::Connect(odd);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), Code::kInvalid);
  EXPECT_THAT(std::string(none.error().message()), HasSubstr("visible ASCII"));
}

TEST(Switch, ADropWhileReadsAreOffShowsNothingOldWhenTheyAreOn) {
  RealNode node(64u << 20);
  Store store = node.Connect();
  Namespace ns = AttachTest(store, "one");
  PutChain(store, ns);
  ASSERT_TRUE(store.SwitchReads("", false).has_value());
  ASSERT_TRUE(store.DropNamespace(ns).Wait().has_value());
  EXPECT_EQ(Ask(store, ns), Had());
  ASSERT_TRUE(store.SwitchReads("", true).has_value());
  EXPECT_EQ(Ask(store, ns), Had());
  PutChain(store, ns);
  EXPECT_EQ(Ask(store, ns), kAll);
}

TEST(Switch, WithWritesOffEachPartIsBusyAndWhatIsThereIsRead) {
  RealNode node(64u << 20);
  Store store = node.Connect();
  const Namespace ns = AttachTest(store);
  PutChain(store, ns);
  ASSERT_EQ(store.SwitchWrites("", false).value_or(0), 1u);
  const Status refused = PutBlock(store, ns, kBlocks, kBlocks - 1, kBytes);
  EXPECT_EQ(refused.code(), Code::kBusy);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cistern admin writes on"));
  EXPECT_EQ(Ask(store, ns), kAll);
  EXPECT_EQ(StatusNumber(store, "records"), kBlocks);
  ASSERT_TRUE(store.SwitchWrites("", true).has_value());
  EXPECT_TRUE(PutBlock(store, ns, kBlocks, kBlocks - 1, kBytes).ok());
}

// The acknowledgement means it: while reads go on all the time, none hits that lies between the answer to
// `off` and the call of `on`.
void NoneHitsWhileOff(RealNode& node, Store& store, const std::function<bool(Store&, bool)>& turn) {
  Store operator_ = node.Connect();
  const Namespace ns = AttachTest(store);
  PutChain(store, ns);
  std::atomic<std::uint64_t> times{0};  // that it was turned: odd while it is off
  std::atomic<std::uint64_t> hits_on{0}, reads_off{0}, hits_off{0};
  std::atomic<bool> ends{false};
  std::jthread reader([&] {
    std::vector<std::byte> bytes(kBytes);
    const ReadRange range{.bytes = kBytes, .to = bytes.data()};
    const BlockRead read{.key = KeyOf(3), .ranges = std::span(&range, 1)};
    while (!ends) {
      const std::uint64_t began = times;
      const std::uint32_t hits = store.Read(ns, std::span(&read, 1)).Wait()->leading_hits;
      if (times != began) continue;
      (began % 2 == 0 ? hits_on : hits_off) += hits;
      reads_off += began % 2;
    }
  });
  for (int round = 0; round < 20; ++round) {
    const std::uint64_t hits = hits_on, reads = reads_off;
    Until([&] { return hits_on > hits; });
    ASSERT_TRUE(turn(operator_, false));
    ++times;
    Until([&] { return reads_off > reads + 10; });
    ++times;
    ASSERT_TRUE(turn(operator_, true));
  }
  ends = true;
  reader.join();
  EXPECT_EQ(hits_off, 0u);
}

TEST(Switch, NoReadThatBeginsAfterTheAnswerHits) {
  RealNode node(64u << 20);
  Store store = node.Connect();
  NoneHitsWhileOff(node, store, [](Store& op, bool on) { return op.SwitchReads("", on).has_value(); });
}

TEST(Switch, NoReadOfAnEngineThatBeginsAfterTheAnswerHits) {
  RealNode node(64u << 20);
  ConnectOptions options = node.options();
  options.engine_name = "decode";
  Result<Store> store = Store::Connect(options);
  ASSERT_TRUE(store.has_value());
  NoneHitsWhileOff(node, *store,
                   [](Store& op, bool on) { return op.SwitchEngineReads("decode", on).has_value(); });
}

}  // namespace
}  // namespace cistern
