// SPDX-License-Identifier: Apache-2.0
// A client against a whole node: what every call of cistern/store.h gives, and how it ends.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>

#include "../real_node.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/random.h"
#include "memory/arena_file.h"
#include "node_process.h"
#include "wire/protocol.h"

namespace cistern {
namespace {

constexpr std::size_t kBytes = 96u << 10;  // a segment and a half

class Whole : public ::testing::Test {
 protected:
  Code Read(Store& from, std::uint64_t number, std::size_t bytes = kBytes) {
    std::vector<std::byte> got(bytes);
    ReadRange range{.bytes = bytes, .to = got.data()};
    BlockKey key = KeyOf(number);
    BlockRead read{.key = key, .ranges = std::span(&range, 1)};
    Result<ReadResult> result = from.Read(ns, std::span(&read, 1)).Wait();
    if (!result) return result.error().code();
    if (result->outcomes[0] == Code::kOk) {
      EXPECT_EQ(got, BodyOf(number, bytes)) << number;
    }
    return result->outcomes[0];
  }
  // Blocks first to last, a chain of their own.
  std::vector<BlockKey> PutChain(std::uint64_t first, std::uint64_t last) {
    std::vector<BlockKey> chain;
    for (std::uint64_t n = first; n <= last; ++n) {
      EXPECT_TRUE(PutBlock(store, ns, n, n == first ? std::nullopt : std::optional(n - 1), kBytes).ok());
      chain.push_back(KeyOf(n));
    }
    return chain;
  }
  std::uint32_t Match(std::span<const BlockKey> chain) { return store.Match(ns, chain).Wait()->blocks; }

  RealNode node;
  Store store = node.Connect();
  Namespace ns = AttachTest(store);
};

TEST_F(Whole, P1WhatWasPutIsReadBitExactByAnotherProcesssClient) {
  PutChain(1, 3);
  Store other = node.Connect();
  for (std::uint64_t n = 1; n <= 3; ++n) EXPECT_EQ(Read(other, n), Code::kOk);
  EXPECT_EQ(Read(other, 4), Code::kMiss);
}

TEST_F(Whole, RangesAreReadFromOneRecordIntoSeveralPlaces) {
  PutChain(1, 1);
  const std::vector<std::byte> body = BodyOf(1, kBytes);
  std::array<std::array<std::byte, 1000>, 10> to;
  std::vector<ReadRange> ranges;
  for (std::size_t i = 0; i < to.size(); ++i)
    ranges.push_back({.offset = i * 9000, .bytes = to[i].size(), .to = to[i].data()});
  BlockRead read{.key = KeyOf(1), .ranges = ranges};
  EXPECT_EQ(store.Read(ns, std::span(&read, 1)).Wait()->outcomes[0], Code::kOk);
  for (std::size_t i = 0; i < to.size(); ++i)
    EXPECT_EQ(std::memcmp(to[i].data(), body.data() + i * 9000, 1000), 0) << i;
  ranges[3].offset = kBytes - 999;
  EXPECT_EQ(store.Read(ns, std::span(&read, 1)).Wait()->outcomes[0], Code::kInvalid);
  ranges[3].offset = UINT64_MAX - 10;
  EXPECT_EQ(store.Read(ns, std::span(&read, 1)).Wait()->outcomes[0], Code::kInvalid);
}

TEST_F(Whole, MatchGivesTheLongestPrefixAndStopsAtTheFirstGap) {
  std::vector<BlockKey> chain = PutChain(1, 20);
  EXPECT_EQ(Match(chain), 20u);
  chain.push_back(KeyOf(999));
  chain.push_back(chain[0]);
  EXPECT_EQ(Match(chain), 20u);
  EXPECT_EQ(Match({}), 0u);
  chain[0] = KeyOf(998);
  EXPECT_EQ(Match(chain), 0u);
}

TEST_F(Whole, AMatchThatHoldsKeepsWhatMatched) {
  std::vector<BlockKey> chain = PutChain(1, 5);
  chain.push_back(KeyOf(999));
  Result<MatchResult> match = store.Match(ns, chain, {.hold_us = kMaxLeaseUs}).Wait();
  ASSERT_TRUE(match.has_value()) << match.error().ToString();
  EXPECT_EQ(match->blocks, 5u);
  EXPECT_TRUE(match->hold.still_good());
  EXPECT_EQ(StatusNumber(store, "leases"), 1u);
  match->hold.Release();
  Until([&] { return StatusNumber(store, "leases") == 0; });
}

TEST_F(Whole, ViewsAreTheBlocksBytesAndADropEndsThem) {
  PutChain(1, 2);
  const std::array<BlockRef, 3> refs = {{{KeyOf(1)}, {KeyOf(999)}, {KeyOf(2)}}};
  Result<Lease> lease = store.Acquire(ns, refs, {.lease_us = kMaxLeaseUs}).Wait();
  ASSERT_TRUE(lease.has_value()) << lease.error().ToString();
  ASSERT_EQ(lease->views().size(), 3u);
  EXPECT_EQ(lease->views()[1].data, nullptr);
  EXPECT_EQ(lease->views()[1].code, Code::kMiss);
  EXPECT_EQ(lease->views()[0].code, Code::kOk);
  for (std::size_t i : {0, 2}) {
    const View& view = lease->views()[i];
    const std::vector<std::byte> body = BodyOf(i == 0 ? 1 : 2, kBytes);
    ASSERT_EQ(view.bytes, kBytes);
    EXPECT_EQ(std::memcmp(view.data, body.data(), kBytes), 0);
  }
  EXPECT_TRUE(lease->still_good());
  const BlockKey key = KeyOf(1);
  EXPECT_EQ(*store.Drop(ns, std::span(&key, 1)).Wait(), 2u);
  EXPECT_FALSE(lease->still_good());
  EXPECT_EQ(store.Acquire(ns, refs).Wait().error().code(), Code::kMiss);
}

TEST_F(Whole, ATicketGivenUpReleasesTheLeaseThatItBrings) {
  PutChain(1, 1);
  const BlockRef ref{KeyOf(1)};
  for (int i = 0; i < 100; ++i) (void)store.Acquire(ns, std::span(&ref, 1));
  Until([&] { return StatusNumber(store, "leases") == 0; });
  EXPECT_GE(StatusNumber(store, "leases_granted"), 1u);
}

TEST_F(Whole, P4AnAnswerThatNobodyTakesReleasesItsLease) {
  PutChain(1, 1);
  const BlockRef ref{KeyOf(1)};
  {
    Ticket<Lease> answered = store.Acquire(ns, std::span(&ref, 1), {.lease_us = kMaxLeaseUs});
    Until([&] { return answered.ready(); });
    EXPECT_EQ(StatusNumber(store, "leases"), 1u);
  }
  Until([&] { return StatusNumber(store, "leases") == 0; });
}

TEST_F(Whole, AMatchSaysThatAllOfItIsInMemory) {
  std::vector<BlockKey> chain = PutChain(1, 5);
  const auto check = [](const MatchResult& match, std::size_t blocks) {
    ASSERT_EQ(match.runs.size(), 1u);
    EXPECT_EQ(match.runs[0].blocks, blocks);
    EXPECT_EQ(match.runs[0].where, Where::kMemory);
    EXPECT_EQ(match.runs[0].ready_in_us, 0);
  };
  check(*store.Match(ns, chain).Wait(), 5);
  chain.push_back(KeyOf(999));  // the node is asked
  check(*store.Match(ns, chain).Wait(), 5);
  check(*store.Match(ns, chain, {.hold_us = 1'000}).Wait(), 5);
  EXPECT_TRUE(store.Match(ns, std::span(chain).last(1)).Wait()->runs.empty());
}

TEST_F(Whole, APutFromStagingNeedsNoCopyAndStagingGrows) {
  constexpr std::size_t kLarge = 3u << 20;
  Result<Staging> staging = store.AllocateStaging(kLarge);
  ASSERT_TRUE(staging.has_value()) << staging.error().ToString();
  const std::vector<std::byte> body = BodyOf(7, kLarge);
  std::memcpy(staging->data(), body.data(), kLarge);
  BlockWrite write{.key = KeyOf(7), .data = {staging->data(), kLarge}};
  Result<WriteResult> result = store.Write(ns, std::span(&write, 1)).Wait();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->outcomes[0].code, Code::kOk) << result->message;
  EXPECT_EQ(result->outcomes[0].state, WriteOutcome::State::kPublished);
  EXPECT_EQ(Read(store, 7, kLarge), Code::kOk);
  // What is dropped is used again.
  const std::byte* before = staging->data();
  *staging = Staging();
  EXPECT_EQ(store.AllocateStaging(kLarge)->data(), before);
}

TEST_F(Whole, HeldPutsAreSeenWhenTheyArePublished) {
  const std::vector<std::byte> body = BodyOf(1, kBytes);
  BlockWrite write{.key = KeyOf(1), .put_id = {1, 2}, .data = body};
  Result<WriteResult> result = store.Write(ns, std::span(&write, 1), {.held = true}).Wait();
  EXPECT_EQ(result->outcomes[0].state, WriteOutcome::State::kPending);
  EXPECT_EQ(Read(store, 1), Code::kMiss);
  EXPECT_EQ(*store.Publish(ns, std::span(&write.put_id, 1)).Wait(), 1u);
  EXPECT_EQ(Read(store, 1), Code::kOk);
}

TEST_F(Whole, ANamespaceDropMakesTheOldHandleMiss) {
  PutChain(1, 3);
  Namespace old = ns;
  EXPECT_EQ(*store.DropNamespace(ns).Wait(), 3u);
  EXPECT_NE(ns.incarnation(), old.incarnation());
  EXPECT_EQ(Read(store, 1), Code::kMiss);
  PutChain(1, 1);
  EXPECT_EQ(Read(store, 1), Code::kOk);
  ns = old;
  EXPECT_EQ(Read(store, 1), Code::kMiss);
  EXPECT_EQ(PutBlock(store, ns, 9, std::nullopt, kBytes).code(), Code::kMiss);
}

TEST_F(Whole, AttachingOnlyWhatIsKnownMakesAndChangesNothing) {
  NamespaceSpec spec;
  spec.name = "typo";
  spec.fields = {{"name", "typo"}};
  spec.groups = {{.name = "all"}};
  Result<Namespace> none = store.AttachKnown(spec);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), Code::kMiss);
  EXPECT_NE(none.error().message().find("namespace typo"), std::string::npos) << none.error().message();
  EXPECT_EQ(StatusNumber(store, "namespaces"), 1u);
  // The list is known, and the name that it comes with stands for nothing afterwards either.
  NamespaceSpec known = ns.spec();
  known.name = "another name";
  Result<Namespace> same = store.AttachKnown(known);
  ASSERT_TRUE(same.has_value()) << same.error().ToString();
  EXPECT_EQ(same->incarnation(), ns.incarnation());
  spec.name = known.name;
  EXPECT_TRUE(store.Attach(spec).has_value());
}

TEST_F(Whole, BadArgumentsAreNamedWithTheirLimit) {
  auto says = [](const auto& result, std::string_view text) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), Code::kInvalid);
    EXPECT_NE(result.error().message().find(text), std::string::npos) << result.error().message();
  };
  const BlockKey key = KeyOf(1);
  std::span<const BlockKey> one(&key, 1);
  const BlockRef ref{key};
  says(store.Match(ns, one, {.deadline_us = 0}).Wait(), "in the past");
  says(store.Match(ns, one, {.hold_us = kMaxLeaseUs + 1}).Wait(), "hold_us is 60000001");
  says(store.Read(ns, {}, {.worth_us = -1}).Wait(), "worth_us is -1");
  says(store.Acquire(ns, std::span(&ref, 1), {.lease_us = 0}).Wait(), "lease_us is 0");
  says(store.Drop(ns, std::vector<BlockKey>(20'001, key)).Wait(),
       "20001 keys in one call, the limit is 20000");
  says(store.Drop(Namespace(), one).Wait(), "Attach");
  says(store.AllocateStaging(0), "0 bytes");
  for (const std::uint64_t bytes : {UINT64_MAX, UINT64_MAX - 62, UINT64_MAX - 63, std::uint64_t{1} << 63}) {
    const Result<Staging> none = store.AllocateStaging(bytes);
    ASSERT_FALSE(none.has_value()) << bytes;
    EXPECT_EQ(none.error().code(), Code::kInvalid) << none.error().ToString();
  }
  BlockWrite write{.key = key, .group = 1, .data = std::as_bytes(one)};
  says(store.Write(ns, std::span(&write, 1)).Wait(), "group 1 of 1");
  write = {.key = key, .part = 1, .data = std::as_bytes(one)};
  says(store.Write(ns, std::span(&write, 1)).Wait(), "part 1");
  const std::vector<std::byte> piece(1 << 20);
  std::vector<std::span<const std::byte>> pieces(kMaxBodyBytes >> 20, piece);
  pieces.push_back(std::span(piece).first(1));
  write = {.key = key, .pieces = pieces};  // more than the session's staging and the node's memory
  says(store.Write(ns, std::span(&write, 1)).Wait(), "67108865 bytes, a part has 1 to 67108864");
  NamespaceSpec spec;
  spec.groups.resize(9);
  says(store.Attach(spec), "9 groups, the limit is 8");
  ConnectOptions options = node.options();
  options.socket = std::string(200, 'x');
  says(Store::Connect(options), "at most 107");
  options = node.options();
  options.deadline_us = -5;
  says(Store::Connect(options), "deadline_us is -5");
}

TEST_F(Whole, NobodyThereIsGoneAndSaysHowToGoOn) {
  ConnectOptions options = node.options();
  options.socket += "-no";
  Result<Store> none = Store::Connect(options);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), Code::kGone);
  EXPECT_NE(none.error().message().find("cisternd"), std::string::npos) << none.error().message();
}

TEST_F(Whole, AfterTheNodeWentEveryCallIsGoneAndAnotherConnectionIsWarm) {
  PutChain(1, 2);
  const BlockKey key = KeyOf(1);
  const BlockRef ref{key};
  Lease lease = *store.Acquire(ns, std::span(&ref, 1), {.lease_us = kMaxLeaseUs}).Wait();
  const View view = lease.views()[0];
  node.Stop();
  auto all_gone = [&] {
    EXPECT_EQ(Read(store, 1), Code::kGone);
    EXPECT_EQ(store.Match(ns, std::span(&key, 1)).Wait().error().code(), Code::kGone);
    EXPECT_EQ(store.Acquire(ns, std::span(&ref, 1)).Wait().error().code(), Code::kGone);
    EXPECT_EQ(PutBlock(store, ns, 3, 2, kBytes).code(), Code::kGone);
    EXPECT_EQ(store.StatusJson().error().code(), Code::kGone);
    EXPECT_FALSE(lease.still_good());
  };
  all_gone();
  node.Start();
  all_gone();
  // What was mapped stays mapped.
  const std::vector<std::byte> body = BodyOf(1, kBytes);
  EXPECT_EQ(std::memcmp(view.data, body.data(), kBytes), 0);
  Store again = node.Connect();
  ns = AttachTest(again);
  EXPECT_EQ(Read(again, 1), Code::kOk);
  EXPECT_EQ(Read(again, 2), Code::kOk);
}

TEST_F(Whole, TheEventDescriptorIsReadableForAnswersAndForTheEnd) {
  PutChain(1, 1);
  pollfd events{.fd = store.event_fd(), .events = POLLIN, .revents = 0};
  auto readable = [&] { return poll(&events, 1, 300'000) == 1; };
  std::vector<std::uint64_t> ready;
  store.Poll(&ready);
  const BlockKey key = KeyOf(1);
  for (int round = 0; round < 100; ++round) {
    Ticket<std::uint32_t> ticket = store.Touch(ns, std::span(&key, 1));
    ready.clear();
    while (ready.empty()) {
      ASSERT_TRUE(readable());
      store.Poll(&ready);
    }
    EXPECT_EQ(ready, std::vector{ticket.id()});
    EXPECT_TRUE(ticket.ready());
    EXPECT_EQ(*ticket.Wait(), 1u);
    // A call that is waited for elsewhere does not take the signal.
    EXPECT_NE(StatusNumber(store, "leases"), UINT64_MAX);
  }
  Ticket<std::uint32_t> last = store.Touch(ns, std::span(&key, 1));
  EXPECT_EQ(*last.Wait(), 1u);
  store.Poll(nullptr);
  node.Stop();
  ASSERT_TRUE(readable());
  EXPECT_EQ(store.Touch(ns, std::span(&key, 1)).Wait().error().code(), Code::kGone);
}

TEST_F(Whole, AHandleIsUsedByManyThreads) {
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 50; ++i) {
        const std::uint64_t n = 1000 * (t + 1) + i;
        if (!PutBlock(store, ns, n, i == 0 ? std::nullopt : std::optional(n - 1), 4096).ok()) failed++;
        if (Read(store, n, 4096) != Code::kOk) failed++;
        const BlockRef ref{KeyOf(n)};
        Result<Lease> lease = store.Acquire(ns, std::span(&ref, 1), {.lease_us = kMaxLeaseUs}).Wait();
        if (!lease || !lease->still_good()) failed++;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

TEST_F(Whole, TouchesOfReadsReachTheEvictionOrder) {
  PutChain(1, 1);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(Read(store, 1), Code::kOk);
  Until([&] { return StatusNumber(store, "touches_applied") > 0; });
}

// Of a memory of 12 blocks: how many of a prompt of 3 are there after 30 others.
std::uint32_t LeftOfPrompt(const PromptHints& hints) {
  std::atomic<std::uint64_t> now_ms = 0;
  const RealNode small(128u << 20, [&](node::NodeOptions& options) {
    options.max_blocks = 12;
    options.eviction = EvictionPolicy::kReuse;
    options.eviction_time_ms = [&] { return now_ms.load(); };
  });
  Store store = small.Connect();
  const Namespace ns = AttachTest(store);
  const auto ask = [&](std::span<const BlockKey> chain, std::uint64_t first, const PromptHints& said) {
    now_ms += 1'000;
    EXPECT_EQ(store.Match(ns, chain, {.hints = said}).Wait()->blocks, 0u);
    for (std::uint64_t i = 0; i < chain.size(); ++i)
      EXPECT_TRUE(
          PutBlock(store, ns, first + i, i == 0 ? std::nullopt : std::optional(first + i - 1), 4096).ok());
  };
  const std::array<BlockKey, 3> prompt = {KeyOf(1), KeyOf(2), KeyOf(3)};
  ask(prompt, 1, hints);
  for (std::uint64_t n = 100; n < 130; ++n) ask(std::array{KeyOf(n)}, n, {});
  return store.Match(ns, prompt).Wait()->blocks;
}

TEST(Hints, APromptToBeKeptOutlivesOthers) {
  EXPECT_EQ(LeftOfPrompt({}), 0u);
  EXPECT_EQ(LeftOfPrompt({.importance = Importance::kKeep}), 3u);
}

TEST_F(Whole, AHintThatIsWrongIsRefusedBeforeItIsAsked) {
  const std::vector<BlockKey> chain = PutChain(1, 2);
  for (const PromptHints wrong :
       {PromptHints{.outlook = Outlook{9}}, PromptHints{.importance = Importance{4}},
        PromptHints{.next_turn_ms = kMaxNextTurnMs + 1}})
    EXPECT_EQ(store.Match(ns, chain, {.hints = wrong}).Wait().error().code(), Code::kInvalid);
  EXPECT_EQ(store.Match(ns, chain, {.hints = {.next_turn_ms = kMaxNextTurnMs}}).Wait()->blocks, 2u);
}

// The first mapping of this process with that name.
std::byte* FindMapping(std::string_view name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(name) != std::string::npos)
      return reinterpret_cast<std::byte*>(std::strtoull(line.c_str(), nullptr, 16));
  }
  return nullptr;
}

TEST_F(Whole, R5ShortKeysAreForNamespacesThatTrustTheirWriters) {
  NamespaceSpec spec;
  spec.fields = {{"name", "short"}};
  spec.groups = {{.name = "all"}};
  spec.trusted_keys = true;
  Namespace trusted = *store.Attach(spec);
  const std::vector<BlockKey> chain = {*BlockKey::FromHex("01"), *BlockKey::FromHex("0100"),
                                       *BlockKey::FromHex("02")};
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const auto parent = i == 0 ? std::nullopt : std::optional(chain[i - 1]);
    const Status put = store.Put(trusted, chain[i], parent, BodyOf(i, kBytes));
    ASSERT_TRUE(put.ok()) << put.ToString();
  }
  auto all_there = [&] {
    EXPECT_EQ(store.Match(trusted, chain).Wait()->blocks, 3u);
    for (std::size_t i = 0; i < chain.size(); ++i) {
      Result<std::vector<std::byte>> got = store.Get(trusted, chain[i]);
      ASSERT_TRUE(got.has_value()) << got.error().ToString();
      EXPECT_EQ(*got, BodyOf(i, kBytes));
    }
  };
  all_there();
  const Status refused = store.Put(ns, chain[0], std::nullopt, BodyOf(0, kBytes));
  EXPECT_EQ(refused.code(), Code::kInvalid);
  EXPECT_NE(refused.message().find("has 1 bytes, under 16"), std::string::npos) << refused.message();
  EXPECT_EQ(store.Put(ns, KeyOf(5), chain[0], BodyOf(0, kBytes)).code(), Code::kInvalid);
  // Recovery knows them too, and so do drops.
  node.Stop();
  node.Start();
  store = node.Connect();
  trusted = *store.Attach(spec);
  all_there();
  EXPECT_EQ(*store.Drop(trusted, std::span(&chain[1], 1)).Wait(), 2u);
  EXPECT_EQ(store.Match(trusted, chain).Wait()->blocks, 1u);
}

TEST_F(Whole, R1AGetUnderATornIndexEntryIsExactOrAMiss) {
  PutChain(1, 1);
  const std::string path =
      std::filesystem::path(node.options().socket).parent_path().string() + "/memory/default/index";
  Result<Fd> file = io::OpenFile(path, io::OpenMode::kReadWrite);
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  const std::uint64_t bytes = std::filesystem::file_size(path);
  Result<Mapping> map = Mapping::Map(file->get(), path, 0, bytes, Access::kReadWrite);
  ASSERT_TRUE(map.has_value());
  auto* entries = reinterpret_cast<arena::IndexEntry*>(map->data() + arena::kIndexBucketsOffset);
  auto* entry =
      std::find_if(entries, entries + (bytes - arena::kIndexBucketsOffset) / sizeof(arena::IndexEntry),
                   [](const arena::IndexEntry& e) { return e.fingerprint[0] != 0; });
  std::atomic_ref word(entry->place_and_bytes);
  const std::uint64_t right = word.load();
  ASSERT_EQ(static_cast<std::uint32_t>(right), kBytes);
  std::atomic<bool> stop = false;
  std::thread tears([&] {
    for (Random random(1); !stop;) word.store(random.Chance(0.5) ? right : right + random.Below(4096));
  });
  const std::vector<std::byte> body = BodyOf(1, kBytes);
  for (int hits = 0, round = 0; hits < 20 || round < 3000; ++round) {
    Result<std::vector<std::byte>> got = store.Get(ns, KeyOf(1));
    hits += got.has_value();
    if (got ? *got == body : got.error().code() == Code::kMiss) continue;
    ADD_FAILURE() << (got ? Text("wrong bytes, ", got->size(), " of them") : got.error().ToString());
    break;
  }
  stop = true;
  tears.join();
  word.store(right);
}

TEST_F(Whole, P4ALeaseEndsWithASessionThatTheNodeEnded) {
  PutChain(1, 1);
  const BlockKey key = KeyOf(1);
  const BlockRef ref{key};
  Lease lease = *store.Acquire(ns, std::span(&ref, 1), {.lease_us = kMaxLeaseUs}).Wait();
  ASSERT_TRUE(lease.still_good());
  auto* page = reinterpret_cast<wire::SessionMemory*>(FindMapping("cistern-session"));
  ASSERT_NE(page, nullptr);
  std::atomic_ref(page->collected).store(1'000'000);  // forged: the node ends the session
  Result<std::uint32_t> touched = store.Touch(ns, std::span(&key, 1)).Wait();
  ASSERT_FALSE(touched.has_value());
  EXPECT_EQ(touched.error().code(), Code::kGone);
  EXPECT_NE(touched.error().message().find("ended this session"), std::string::npos)
      << touched.error().message();
  EXPECT_FALSE(lease.still_good());
}

using Killed = NodeProcess;

// What another program of the user can do to the files.
class Cut : public Killed {
 protected:
  void CutTo(const char* name, std::uint64_t bytes) {
    const std::string path = options_.memory_dir + "/default/" + name;
    ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(bytes)), 0) << path;
  }
};

TEST_F(Cut, R14ReadersOfAnArenaThatIsCutShortGetAnErrorAndLive) {
  kill(child_, SIGSTOP);  // the client alone finds out
  CutTo("arena", arena::Geometry::Within(options_.memory_bytes, 4096).slots_offset());
  Result<std::vector<std::byte>> got = store_->Get(ns_, KeyOf(1), {.deadline_us = 1'000'000});
  ASSERT_FALSE(got.has_value());
  // The bytes of the view are zeros now, under a generation that has not changed.
  ASSERT_EQ(lease_.views()[0].data[0], std::byte{0});
  EXPECT_FALSE(lease_.still_good());
  got = store_->Get(ns_, KeyOf(1), {.deadline_us = 1'000'000});
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code(), Code::kGone) << got.error().ToString();
}

TEST_F(Cut, R14ANodeWhoseArenaIsCutShortEndsInOrderAndTheNextStartIsWhole) {
  CutTo("arena", 4096);
  CutTo("index", 4096);
  // Whatever the node does with its memory next: a put does.
  Until([&] { return !PutBlock(*store_, ns_, 2, std::nullopt, kBytes).ok(); });
  int status = -1;
  ASSERT_EQ(waitpid(child_, &status, 0), child_);
  child_ = -1;
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  Result<memory::ArenaFile> next = memory::ArenaFile::Open(arena_, clock_);
  ASSERT_TRUE(next.has_value()) << next.error().ToString();
  EXPECT_TRUE(next->fresh());
}

// A container is started anew: its memory is gone, its flash is not, and what a new client drops there no
// word in the old arena tells.
TEST_F(Killed, R10ASurvivorReadsNothingOnceItsNodeIsGoneAndNobodyFollows) {
  EXPECT_EQ(*store_->Get(ns_, KeyOf(1)), BodyOf(1, kBytes));
  Kill();
  std::filesystem::remove_all(options_.memory_dir);
  Code last = Code::kOk;
  Until([&] {
    Result<std::vector<std::byte>> got = store_->Get(ns_, KeyOf(1));
    last = got ? Code::kOk : got.error().code();
    return !got.has_value();
  });
  EXPECT_EQ(last, Code::kGone);
  EXPECT_FALSE(lease_.still_good());
  const BlockKey key = KeyOf(1);
  EXPECT_FALSE(store_->Match(ns_, std::span(&key, 1)).Wait().has_value());
}

// The process has room for `free` descriptors more, while it calls.
template <class Call>
auto WithFewDescriptors(rlim_t free, Call call) {
  const int next = Fd(dup(STDERR_FILENO)).get();
  rlimit usual{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit few{.rlim_cur = static_cast<rlim_t>(next) + free, .rlim_max = usual.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  auto result = call();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  return result;
}

TEST_F(Killed, WhoHasNoRoomForDescriptorsIsToldSoAndKeepsNothingFromOthers) {
  const auto told = [](const auto& result) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), Code::kIoError) << result.error().ToString();
    EXPECT_NE(result.error().message().find("ulimit -n"), std::string::npos) << result.error().message();
  };
  ConnectOptions connect;
  connect.socket = options_.socket;
  // The socket, the node's process and one of six.
  told(WithFewDescriptors(3, [&] { return Store::Connect(connect); }));
  for (int i = 0; i < 8; ++i) told(WithFewDescriptors(0, [&] { return store_->AllocateStaging(2u << 20); }));
  const Result<Staging> much = store_->AllocateStaging(8u << 20);
  EXPECT_TRUE(much.has_value()) << much.error().ToString();
}

TEST_F(Killed, P4NoLeaseIsGoodOnceASuccessorHasTheArena) {
  Kill();
  // As far as a successor comes before it recovers.
  Result<memory::ArenaFile> successor = memory::ArenaFile::Open(arena_, clock_);
  ASSERT_TRUE(successor.has_value()) << successor.error().ToString();
  EXPECT_FALSE(lease_.still_good());
  successor->SetAlive(true);
  EXPECT_FALSE(lease_.still_good());
}

TEST_F(Killed, P4NoLeaseIsGoodOnceTheArenaIsForgotten) {
  Kill();
  Result<std::uint64_t> forgotten = Error(Code::kBusy, "");
  // The kernel lets go of a dead node's lock some time after its end.
  Until([&] {
    forgotten = memory::ForgetArena(arena_.memory_dir, arena_.tenant, clock_);
    return forgotten.has_value() || forgotten.error().code() != Code::kBusy;
  });
  ASSERT_TRUE(forgotten.has_value()) << forgotten.error().ToString();
  EXPECT_FALSE(lease_.still_good());
}

}  // namespace
}  // namespace cistern
