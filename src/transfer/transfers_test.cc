// SPDX-License-Identifier: Apache-2.0
// Transfers over a real embedded node.
#include "transfer/transfers.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/assert.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/random_bytes.h"
#include "transfer/moves.h"

namespace cistern::transfer {
namespace {

constexpr std::uint64_t kForever = 60'000'000;

BlockKey KeyOf(std::uint64_t number) {
  BlockKey key;
  key.length = 32;
  FillRandom(number, std::as_writable_bytes(std::span(key.bytes)));
  return key;
}

// Pages of `fragments` pieces of `bytes`, one tensor a fragment, with padding between the pages.
struct Pool {
  Pool(std::size_t fragments, std::uint64_t bytes, std::uint64_t pages, std::uint64_t padding = 0)
      : stride(bytes + padding), memory(fragments * stride * pages) {
    std::vector<Fragment> list;
    for (std::size_t i = 0; i < fragments; ++i)
      list.push_back({memory.data() + i * stride * pages, stride, bytes});
    Result<Pages> made = Pages::Make({.fragments = list, .pages = pages, .first_page = 1});
    CISTERN_ASSERT(made.has_value());
    geometry = std::make_shared<const Pages>(std::move(*made));
  }
  std::vector<std::byte> Part(std::uint32_t page) const {
    std::vector<std::span<std::byte>> pieces(geometry->fragments());
    geometry->PiecesOf(page, pieces);
    std::vector<std::byte> part;
    for (std::span<std::byte> piece : pieces) part.insert(part.end(), piece.begin(), piece.end());
    return part;
  }
  void Fill(std::uint64_t seed) { FillRandom(seed, memory); }
  std::uint64_t stride;
  std::vector<std::byte> memory;
  std::shared_ptr<const Pages> geometry;
};

class TransfersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = (std::filesystem::temp_directory_path() / "cistern-transfer-XXXXXX").string();
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    OpenOptions options;
    options.memory_bytes = 128u << 20;
    options.memory_dir = directory_ + "/memory";
    Result<Store> opened = Store::Open(options);
    ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
    store = std::make_shared<Store>(std::move(*opened));
  }
  void TearDown() override {
    transfers.reset();
    store.reset();
    std::filesystem::remove_all(directory_);
  }

  // All that the node has for staging, but for less than so much.
  std::vector<Staging> TakeStaging(std::uint64_t part_bytes) {
    std::vector<Staging> taken;
    for (std::uint64_t bytes = 16u << 20; bytes >= part_bytes; bytes /= 2) {
      while (auto staging = store->AllocateStaging(bytes)) taken.push_back(std::move(*staging));
    }
    return taken;
  }
  // 0: parts of any size.
  void Begin(std::uint64_t part_bytes, TransfersOptions options = {}) {
    NamespaceSpec spec;
    spec.fields = {{"name", "transfers"}};
    spec.groups = {{.name = "all"}};
    if (part_bytes > 0) spec.groups[0].part_bytes = {part_bytes};
    Result<Namespace> attached = store->Attach(spec);
    ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
    ns = *attached;
    Result<std::unique_ptr<Transfers>> made = Transfers::Make(store, options);
    ASSERT_TRUE(made.has_value()) << made.error().ToString();
    transfers = std::move(*made);
  }

  template <class Kind>
  Kind MoveOf(const Pool& pool, std::uint64_t first_key, std::vector<std::uint32_t> ids) const {
    Kind move;
    move.ns = ns;
    auto keys = std::make_shared<std::vector<BlockKey>>();
    for (std::size_t i = 0; i < ids.size(); ++i) keys->push_back(KeyOf(first_key + i));
    move.keys = std::move(keys);
    move.pages = pool.geometry;
    move.page_ids = std::move(ids);
    move.deadline_us = kForever;
    return move;
  }
  PageSave SaveOf(const Pool& pool, std::uint64_t first_key, std::vector<std::uint32_t> ids) const {
    auto save = MoveOf<PageSave>(pool, first_key, std::move(ids));
    for (std::size_t i = 0; i < save.keys->size(); ++i) {
      save.parents.push_back(i == 0 ? std::nullopt : std::optional((*save.keys)[i - 1]));
      save.put_ids.push_back({.high = first_key, .low = i + 1});
    }
    return save;
  }
  TransferDone Finish(Result<std::uint64_t> id) {
    EXPECT_TRUE(id.has_value()) << (id ? "" : id.error().ToString());
    std::vector<TransferDone> done = transfers->Wait(kForever);
    EXPECT_EQ(done.size(), 1u);
    if (done.empty()) return {};
    EXPECT_EQ(done[0].id, *id);
    return std::move(done[0]);
  }
  static void ExpectAll(const TransferDone& done, Code code) {
    for (Code outcome : done.outcomes) EXPECT_EQ(outcome, code) << done.message;
  }

  std::shared_ptr<Store> store;
  Namespace ns;
  std::unique_ptr<Transfers> transfers;

 private:
  std::string directory_;
};

TEST_F(TransfersTest, P1APageComesBackInAnyOtherPageBitExactFragmentByFragment) {
  // Fragments that are, are not, and are far below a segment; odd sizes; padding.
  const std::vector<std::array<std::uint64_t, 3>> layouts = {
      {4, 65536, 0}, {32, 4096, 64}, {1, 300'000, 0}, {3, 100'001, 7}, {64, 100, 28}};
  for (const auto& [fragments, bytes, padding] : layouts) {
    SCOPED_TRACE(bytes);
    Pool from(fragments, bytes, 40, padding), to(fragments, bytes, 40, padding);
    Begin(fragments * bytes);
    from.Fill(bytes);
    const std::vector<std::uint32_t> saved = {7, 3, 39, 1, 12}, loaded = {1, 2, 3, 38, 5};
    ExpectAll(Finish(transfers->Submit(SaveOf(from, bytes * 100, saved))), Code::kOk);
    const TransferDone done = Finish(transfers->Submit(MoveOf<PageLoad>(to, bytes * 100, loaded)));
    ExpectAll(done, Code::kOk);
    EXPECT_EQ(done.moved_bytes, 5 * fragments * bytes);
    std::size_t untouched = 0;
    for (std::uint32_t page = 1; page < 40; ++page) {
      const auto at = std::find(loaded.begin(), loaded.end(), page) - loaded.begin();
      if (at == static_cast<std::ptrdiff_t>(loaded.size())) {
        EXPECT_EQ(to.Part(page), std::vector<std::byte>(fragments * bytes)) << "page " << page;
        untouched++;
      } else {
        EXPECT_EQ(to.Part(page), from.Part(saved[static_cast<std::size_t>(at)])) << "page " << page;
      }
    }
    EXPECT_EQ(untouched, 34u);
    transfers.reset();
  }
}

TEST_F(TransfersTest, AMissIsAnOutcomeOfItsBlockAlone) {
  Pool pool(2, 4096, 10);
  Begin(8192);
  pool.Fill(1);
  ExpectAll(Finish(transfers->Submit(SaveOf(pool, 1, {1, 2}))), Code::kOk);
  PageLoad load = MoveOf<PageLoad>(pool, 1, {3, 4, 5});
  const TransferDone done = Finish(transfers->Submit(load));
  EXPECT_EQ(done.outcomes, (std::vector<Code>{Code::kOk, Code::kOk, Code::kMiss}));
  EXPECT_EQ(pool.Part(3), pool.Part(1));
}

TEST_F(TransfersTest, P2WhatIsHeldIsSeenWhenItIsPublished) {
  Pool pool(2, 4096, 10);
  Begin(8192);
  PageSave save = SaveOf(pool, 1, {1, 2});
  save.held = true;
  const std::vector<PutId> puts = save.put_ids;
  const TransferDone saved = Finish(transfers->Submit(std::move(save)));
  ExpectAll(saved, Code::kOk);
  for (WriteOutcome::State state : saved.states) EXPECT_EQ(state, WriteOutcome::State::kPending);
  ExpectAll(Finish(transfers->Submit(MoveOf<PageLoad>(pool, 1, {3, 4}))), Code::kMiss);
  EXPECT_EQ(*store->Publish(ns, puts).Wait(), 2u);
  ExpectAll(Finish(transfers->Submit(MoveOf<PageLoad>(pool, 1, {3, 4}))), Code::kOk);
}

TEST_F(TransfersTest, PagesThatAreLargerThanAPartMayBeAreRefusedAtOnce) {
  Pool pool(1, kMaxBodyBytes + 4096, 2);
  Begin(0);
  EXPECT_EQ(transfers->Submit(SaveOf(pool, 1, {1})).error().code(), Code::kInvalid);
  EXPECT_EQ(transfers->Submit(MoveOf<PageLoad>(pool, 1, {1})).error().code(), Code::kInvalid);
}

TEST_F(TransfersTest, P3ALoadThatIsNotWorthItAnyMoreIsNotBegun) {
  Pool pool(1, 4096, 10);
  Begin(4096);
  pool.Fill(1);
  ExpectAll(Finish(transfers->Submit(SaveOf(pool, 1, {1}))), Code::kOk);
  const std::vector<std::byte> before = pool.Part(2);
  PageLoad load = MoveOf<PageLoad>(pool, 1, {2});
  load.worth_us = 0;
  ExpectAll(Finish(transfers->Submit(std::move(load))), Code::kTooLate);
  EXPECT_EQ(pool.Part(2), before);
}

TEST_F(TransfersTest, P5PastTheQueuesBoundASubmitIsBusyAndEachIdIsReportedOnce) {
  Pool pool(1, 4096, 100);
  Begin(4096, {.queue = 3, .max_bytes_per_s = 1});  // the second batch would come in an hour
  std::vector<std::uint64_t> ids;
  for (std::uint64_t i = 0; i < 3; ++i) ids.push_back(*transfers->Submit(SaveOf(pool, i * 10, {1, 2})));
  EXPECT_EQ(transfers->Submit(SaveOf(pool, 50, {1})).error().code(), Code::kBusy);
  EXPECT_TRUE(transfers->Submit(MoveOf<PageLoad>(pool, 1, {1})).has_value());  // has a queue of its own
  EXPECT_EQ(transfers->in_flight(), 4u);
  std::map<std::uint64_t, int> reports;
  for (std::uint64_t id : ids) transfers->Cancel(id);
  while (transfers->in_flight() > 0) {
    for (const TransferDone& done : transfers->Wait(kForever)) reports[done.id]++;
  }
  EXPECT_EQ(reports.size(), 4u);
  for (const auto& [id, times] : reports) EXPECT_EQ(times, 1) << id;
  EXPECT_FALSE(transfers->Cancel(ids[0]));
  EXPECT_TRUE(transfers->Poll().empty());
}

TEST_F(TransfersTest, P3WhatHasNotBegunByItsDeadlineIsReportedThen) {
  Pool pool(1, 4096, 100);
  Begin(4096, {.queue = 100, .max_bytes_per_s = 1});
  for (std::uint64_t i = 0; i < 20; ++i) {
    PageSave save = SaveOf(pool, i * 10, {1});
    save.deadline_us = i == 0 ? kForever : 1'000;
    ASSERT_TRUE(transfers->Submit(std::move(save)).has_value());
  }
  std::size_t late = 0, ok = 0;
  while (transfers->in_flight() > 0) {
    for (const TransferDone& done : transfers->Wait(kForever))
      (done.outcomes[0] == Code::kTooLate ? late : ok)++;
  }
  EXPECT_EQ(late + ok, 20u);
  EXPECT_GE(late, 18u);
}

TEST_F(TransfersTest, ASaveLeavesItsPagesWhenItHasItsCopy) {
  Pool pool(1, 4096, 100);
  Begin(4096);
  pool.Fill(3);
  const std::vector<std::byte> content = pool.Part(9);
  const std::uint64_t id = *transfers->Submit(SaveOf(pool, 1, {9}));
  EXPECT_TRUE(transfers->WaitPages(std::span(&id, 1), kForever));
  pool.Fill(4);  // the engine computes on
  ExpectAll(transfers->Wait(kForever).at(0), Code::kOk);
  ExpectAll(Finish(transfers->Submit(MoveOf<PageLoad>(pool, 1, {10}))), Code::kOk);
  EXPECT_EQ(pool.Part(10), content);
  EXPECT_TRUE(transfers->WaitPages(std::nullopt, 0));
}

TEST_F(TransfersTest, WhereThereIsLittleStagingASaveGoesInSmallerBatches) {
  constexpr std::uint64_t kPart = 512u << 10;
  Pool pool(4, kPart / 4, 20);
  // All of the node's but what two parts take.
  std::vector<Staging> taken;
  for (std::uint64_t bytes = 16u << 20; bytes >= 1u << 20; bytes /= 2) {
    while (auto staging = store->AllocateStaging(bytes)) taken.push_back(std::move(*staging));
  }
  Begin(kPart);
  taken.pop_back();
  pool.Fill(5);
  const std::vector<std::uint32_t> ids{1, 2, 3, 4, 5, 6, 7, 8};
  ExpectAll(Finish(transfers->Submit(SaveOf(pool, 1, ids))), Code::kOk);
  ExpectAll(Finish(transfers->Submit(MoveOf<PageLoad>(pool, 1, {11, 12, 13, 14, 15, 16, 17, 18}))),
            Code::kOk);
  for (std::uint32_t id : ids) EXPECT_EQ(pool.Part(id), pool.Part(id + 10)) << id;
}

TEST_F(TransfersTest, SavesBesideEachOtherWaitForTheStagingThatOneOfThemHas) {
  constexpr std::uint64_t kPart = 512u << 10;
  Pool pool(4, kPart / 4, 40);
  // All of the node's but what a part takes.
  std::vector<Staging> taken = TakeStaging(kPart);
  Begin(kPart);
  taken.pop_back();
  pool.Fill(6);
  for (std::uint64_t i = 0; i < 8; ++i)
    ASSERT_TRUE(transfers->Submit(SaveOf(pool, i * 10 + 1, {1, 2, 3})).has_value());
  std::size_t reported = 0;
  while (reported < 8) {
    for (const TransferDone& done : transfers->Wait(kForever)) {
      ExpectAll(done, Code::kOk);
      EXPECT_EQ(done.message, "");
      reported++;
    }
  }
}

TEST_F(TransfersTest, ASaveWaitsForStagingOfOthersUntilItsDeadlineAndThenSaysSo) {
  constexpr std::uint64_t kPart = 512u << 10;
  Pool pool(4, kPart / 4, 20);
  std::vector<Staging> taken = TakeStaging(kPart);
  Begin(kPart);
  pool.Fill(7);
  const std::uint64_t waits = *transfers->Submit(SaveOf(pool, 11, {2, 3}));
  // A busy host may let one end that had not begun: such a one has nothing to say.
  for (std::string said; said.find("staging") == std::string::npos;) {
    PageSave late = SaveOf(pool, 1, {1});
    late.deadline_us = 50'000;
    const TransferDone done = Finish(transfers->Submit(std::move(late)));
    ExpectAll(done, Code::kTooLate);
    if (HasFailure()) return;
    said = done.message;
  }
  taken.clear();
  const std::vector<TransferDone> saved = transfers->Wait(kForever);
  ASSERT_EQ(saved.size(), 1u);
  EXPECT_EQ(saved[0].id, waits);
  ExpectAll(saved[0], Code::kOk);
}

// Else each of them asks the node with every look of the thread, as often as that can.
TEST_F(TransfersTest, ASaveThatIsRefusedStagingIsNoReasonForAnotherToAskAgain) {
  constexpr std::uint64_t kPart = 512u << 10;
  Pool pool(4, kPart / 4, 20);
  std::vector<Staging> taken = TakeStaging(kPart);
  Begin(kPart);
  for (const std::int64_t deadline_us : {1'000'000, 60'000'000}) {
    StagingBudget budget(kPart);
    const PageSave save = SaveOf(pool, 11, {2});
    SaveMove move(*store, budget, save);
    EXPECT_EQ(move.Go({.deadline_us = deadline_us, .worth_us = kNoWorthLimit, .may_begin = true}),
              Step::kWaits);
    EXPECT_EQ(budget.given(), 0u);
  }
}

TEST_F(TransfersTest, CloseLeavesNothingOnThePagesAndEverythingReported) {
  Pool pool(1, 65536, 100);
  Begin(65536);
  for (std::uint64_t i = 0; i < 50; ++i)
    ASSERT_TRUE(transfers->Submit(SaveOf(pool, i * 100, {1, 2, 3})).has_value());
  for (std::uint64_t i = 0; i < 50; ++i)
    ASSERT_TRUE(transfers->Submit(MoveOf<PageLoad>(pool, i * 100, {11, 12, 13})).has_value());
  transfers->Close();
  EXPECT_EQ(transfers->Submit(SaveOf(pool, 7, {1})).error().code(), Code::kGone);
  EXPECT_EQ(store.use_count(), 1) << "closed transfers keep no memory of their node mapped";
  EXPECT_EQ(transfers->Poll().size(), 100u);
  transfers->Close();
}

TEST_F(TransfersTest, WhatIsWrongIsNamedAndNothingIsStarted) {
  Pool pool(1, 4096, 10);
  Begin(4096);
  const auto refused = [&](auto&& change) {
    PageSave save = SaveOf(pool, 1, {1, 2});
    change(save);
    Result<std::uint64_t> id = transfers->Submit(std::move(save));
    return id ? std::string() : id.error().ToString();
  };
  EXPECT_EQ(refused([](PageSave& save) { save.page_ids[1] = 10; }),
            "invalid: page_ids[1] is 10, pages are 1 to 9");
  EXPECT_EQ(refused([](PageSave& save) { save.page_ids.pop_back(); }),
            "invalid: 1 page_ids for 2 keys: one a key is needed");
  EXPECT_EQ(refused([](PageSave& save) { save.group = 1; }), "invalid: group 1, the namespace has 1");
  EXPECT_EQ(refused([](PageSave& save) { save.part = 1; }), "invalid: part 1, its group has 1");
  EXPECT_NE(refused([](PageSave& save) { save.deadline_us = 0; }), "");
  EXPECT_NE(refused([](PageSave& save) {
              save.held = true;
              save.put_ids.clear();
            }),
            "");
  Pool larger(1, 8192, 10);
  EXPECT_EQ(refused([&](PageSave& save) { save.pages = larger.geometry; }),
            "invalid: part 0 of group 0 has 4096 bytes and a page 8192");
  EXPECT_EQ(transfers->in_flight(), 0u);
}

TEST_F(TransfersTest, AForkedChildTouchesNothingOfTheParents) {
  Pool pool(1, 4096, 10);
  Begin(4096);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool denied = transfers->Submit(SaveOf(pool, 1, {1})).error().code() == Code::kDenied;
    transfers.reset();
    _exit(denied ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ExpectAll(Finish(transfers->Submit(SaveOf(pool, 1, {1}))), Code::kOk);
}

TEST(Transfers, WhereThereIsNoDescriptorForThemTheyAreRefusedByThatLimit) {
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const int next = Fd(dup(STDERR_FILENO)).get();
  for (int free = 0; free < 3; ++free) {
    const rlimit few{.rlim_cur = static_cast<rlim_t>(next + free), .rlim_max = usual.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const Result<std::unique_ptr<Transfers>> made = Transfers::Make(nullptr, {});
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
    ASSERT_FALSE(made) << free;
    EXPECT_NE(made.error().message().find(ErrnoText(EMFILE)), std::string_view::npos)
        << free << ": " << made.error().ToString();
  }
}

// A user that may have one thread more and not two: in a child, since a process is that user's for good.
TEST(Transfers, WhereTheSystemHasNoThreadForThemTheyAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "limits another user's threads: run as root";
  constexpr uid_t kUser = 54324;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{.rlim_cur = 2, .rlim_max = 2};
    if (setrlimit(RLIMIT_NPROC, &limit) != 0 || setgid(kUser) != 0 || setuid(kUser) != 0) _exit(2);
    const Result<std::unique_ptr<Transfers>> made = Transfers::Make(nullptr, {});
    _exit(!made && made.error().code() == Code::kBusy ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace cistern::transfer
