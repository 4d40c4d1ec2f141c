// SPDX-License-Identifier: Apache-2.0
// One stranger of each kind (bench/strangers.h) beside four honest clients of a whole node: the node lives,
// and each of their calls gives what it must. `cistern bench --only strangers` has what it costs them.
#include <atomic>
#include <thread>

#include "../real_node.h"
#include "strangers.h"

namespace cistern {
namespace {

constexpr std::size_t kBytes = 64u << 10;
constexpr std::size_t kHonest = 4;
constexpr std::uint64_t kBlocks = 16;
constexpr std::uint64_t kRounds = 24;
constexpr std::int64_t kDeadlineUs = 120'000'000;  // for a host that does much else

class EachKind : public ::testing::TestWithParam<StrangerKind> {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < kHonest; ++i) honest.push_back(node.Connect());
    ns = AttachTest(honest[0]);
    for (std::uint64_t n = 0; n < kBlocks; ++n)
      ASSERT_TRUE(PutBlock(honest[0], ns, n, std::nullopt, kBytes).ok());
  }
  void Served(Store& store, std::uint64_t number) {
    const Status put =
        store.Put(ns, KeyOf(number), std::nullopt, BodyOf(number, kBytes), {.deadline_us = kDeadlineUs});
    ASSERT_TRUE(put.ok()) << put.ToString();
    // A stranger's puts may have evicted it: that is what a cache answers, and never anything else.
    for (const std::uint64_t n : {number % kBlocks, number}) {
      Result<std::vector<std::byte>> got = store.Get(ns, KeyOf(n), {.deadline_us = kDeadlineUs});
      ASSERT_TRUE(got || got.error().code() == Code::kMiss) << n << ": " << got.error().ToString();
      ASSERT_TRUE(!got || *got == BodyOf(n, kBytes)) << n;
    }
    const BlockRef ref{KeyOf(number)};
    Result<Lease> lease =
        store.Acquire(ns, std::span(&ref, 1), {.lease_us = 1'000'000, .deadline_us = kDeadlineUs}).Wait();
    ASSERT_TRUE(lease || lease.error().code() == Code::kMiss) << lease.error().ToString();
  }
  // Who comes now is let in, gets a namespace of its own, staging, and room for a put.
  void ANewOneIsServed(std::uint64_t number) {
    Result<Store> store = Store::Connect(node.options());
    // One that stood still before its hello, while 64 others connected, comes again.
    while (!store && store.error().message().contains("say hello at once"))
      store = Store::Connect(node.options());
    ASSERT_TRUE(store.has_value()) << store.error().ToString();
    NamespaceSpec spec;
    spec.fields = {{"newcomer", std::to_string(number)}};
    spec.groups = {{.name = "all"}};
    Result<Namespace> own = store->Attach(spec, kDeadlineUs);
    ASSERT_TRUE(own.has_value()) << own.error().ToString();
    const Status put =
        store->Put(*own, KeyOf(number), std::nullopt, BodyOf(number, kBytes), {.deadline_us = kDeadlineUs});
    ASSERT_TRUE(put.ok()) << put.ToString();
    Result<std::uint64_t> dropped = store->DropNamespace(*own, kDeadlineUs).Wait();
    ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  }

  RealNode node{112u << 20};  // three chunks of 32 MiB
  std::vector<Store> honest;
  Namespace ns;
};

TEST_P(EachKind, HarmsNoHonestClient) {
  std::atomic<bool> begun = false, stop = false;
  StrangerTask task{.connect = node.options(),
                    .spec = ns.spec(),
                    .keys = {},
                    .go_on = [&] { return !stop; },
                    .begun = [&] { begun = true; }};
  for (std::uint64_t n = 0; n < kBlocks; ++n) task.keys.push_back(KeyOf(n));
  std::thread stranger([&] { GetParam().run(task); });
  Until([&] { return begun.load(); });
  for (std::uint64_t round = 1; round <= kRounds && !HasFatalFailure(); ++round) {
    for (std::size_t i = 0; i < kHonest && !HasFatalFailure(); ++i) Served(honest[i], 1000 * round + i);
    if (round % 8 == 0 && !HasFatalFailure()) ANewOneIsServed(round);
  }
  stop = true;
  stranger.join();
  // What it had went with it.
  if (!HasFatalFailure()) Until([&] { return StatusNumber(honest[0], "sessions") == kHonest; });
}

INSTANTIATE_TEST_SUITE_P(Strangers, EachKind, ::testing::ValuesIn(StrangerKinds()),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace

void PrintTo(const StrangerKind& kind, std::ostream* out) { *out << kind.about; }

}  // namespace cistern
