// SPDX-License-Identifier: Apache-2.0
// Devices that fail, hang or go: what was on them is lost, and nothing else waits for them.
#include "flash/format.h"
#include "test_flash_store.h"

namespace cistern {
namespace {

TEST_F(FlashStoreTest, ADeviceTakenOutTakesOnlyItsBlocksAlong) {
  Make(With(4, 4 * kMiB, 2));
  for (std::uint64_t n = 0; n < 64; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  t->Settle();
  std::uint64_t left = 0;
  for (std::uint64_t n = 0; n < 64; ++n) {
    const auto body = Get(n);
    left += body.has_value();
    if (body) {
      EXPECT_EQ(*body, store::Body(n, 4096)) << n;
    }
    EXPECT_EQ(Match(n, n), body ? 1u : 0u) << n;
  }
  EXPECT_GT(left, 10u);
  EXPECT_LT(left, 60u);
  ASSERT_TRUE(t->Run(FlashOf(*t).BringBack("flash0")).ok());
  t->Settle();
  ASSERT_EQ(Put(100, std::nullopt), store::State::kPublished);
  t->Settle();
  EXPECT_TRUE(Gets(100));
  // What was on it before is not believed at the next start.
  Restart();
  for (std::uint64_t n = 0; n < 64; ++n) {
    const auto body = Get(n);
    if (body) {
      EXPECT_EQ(*body, store::Body(n, 4096)) << n;
    }
  }
}

// Its blocks are in the node's books until the node has come by each of them.
TEST_F(FlashStoreTest, AMatchEndsBeforeWhatADeviceThatIsOutHas) {
  Make(With(4));
  for (std::uint64_t n = 100; n < 600; ++n) ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
  PutChainSlowly(0, 15);
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  ASSERT_EQ(Match(600, 600), 0u);  // the loop has begun to come by
  ASSERT_TRUE(t->store->LookAt(ns.slot, store::Key(0)).has_value());
  ASSERT_EQ(t->store->LookAt(ns.slot, store::Key(0))->here, Where::kFlash);
  EXPECT_EQ(Match(0, 15), 0u);
  t->Settle();
}

TEST_F(FlashStoreTest, R4WhatADeviceThatIsOutHasIsNotPresentToAPut) {
  Make(With(4));
  for (std::uint64_t n = 100; n < 600; ++n) ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
  PutChainSlowly(0, 15);
  PutChainSlowly(20, 30);
  for (std::uint64_t n = 700; n < 710; ++n) PutChainSlowly(n, n);
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  ASSERT_EQ(Match(600, 600), 0u);
  ASSERT_EQ(t->store->LookAt(ns.slot, store::Key(0))->here, Where::kFlash);
  ASSERT_EQ(t->store->LookAt(ns.slot, store::Key(20))->here, Where::kFlash);
  EXPECT_FALSE(t->store->source_puts().Here(ns.slot, store::Key(20), 0)) << "members may be asked for it";
  for (std::uint64_t n = 0; n < 3; ++n)
    EXPECT_EQ(Put(n, n == 0 ? std::nullopt : std::optional(n - 1)), store::State::kPublished) << n;
  auto given = Begin(20, std::nullopt);
  ASSERT_TRUE(given.has_value() && given->wanted());
  store::SourceFacts facts = Land(*given, 20);
  EXPECT_TRUE(Finish(std::move(*given), std::move(facts)).ok());
  EXPECT_EQ(WriteOne(Part(41, 3)).state, store::State::kPending) << "its parent cannot be read";
  t->Settle();
  EXPECT_TRUE(Gets(0) && Gets(1) && Gets(2) && Gets(20));
}

TEST_F(FlashStoreTest, P5WhatADeviceThatIsOutHasKeepsNothingInMemory) {
  Make(With(4));
  for (std::uint64_t n = 100; n < 600; ++n) ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
  for (std::uint64_t n = 0; n < 4; ++n) {
    PutChainSlowly(n, n);
    ASSERT_EQ(Put(10 + n, n), store::State::kPublished);
    t->Settle();
  }
  for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(Gets(n));
  ASSERT_TRUE(Here(0) && Here(1) && Here(2) && Here(3)) << "each has a block below it, on flash alone";
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  ASSERT_EQ(Match(600, 600), 0u);
  ASSERT_EQ(t->store->LookAt(ns.slot, store::Key(10))->here, Where::kFlash);
  ASSERT_EQ(t->store->LookAt(ns.slot, store::Key(13))->here, Where::kFlash);
  EXPECT_EQ(Put(700, std::nullopt), store::State::kPublished);
  t->Settle();
  EXPECT_TRUE(Gets(700));
  EXPECT_EQ(Match(10, 10), 0u);
}

TEST_F(FlashStoreTest, WhatADeviceFailsToReadIsLostAndFailedNoSeal) {
  Make(With(4));
  PutChainSlowly(0, 15);
  t->disk.set_faults([](const io::IoRequest& request, const std::string&) {
    return request.kind == io::IoRequest::Kind::kRead ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  EXPECT_FALSE(Get(10).has_value());
  t->disk.set_faults({});
  EXPECT_EQ(Match(0, 15), 10u);
  EXPECT_EQ(Count(Counters().lost_below), 1u);
  EXPECT_EQ(Count(Counters().cut_bad), 0u);
}

TEST_F(FlashStoreTest, WhatWaitsToBeReadWhenItsDeviceGoesOutFailedNoSeal) {
  Make(With(4, 4 * kMiB, 1, 256u << 10, 1));
  for (std::uint64_t n = 100; n < 600; ++n) ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
  PutChainSlowly(0, 15);
  SlowDevice(20'000);
  std::vector<Task<Result<store::AcquireGrant>>> asked;
  const catalog::BlockName names[] = {{store::Key(3), 0}, {store::Key(4), 0}, {store::Key(5), 0}};
  for (const catalog::BlockName& name : names)
    asked.push_back(t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon()));
  t->Run(Sleep(t->loop->executor(), 10'000));
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  for (auto& each : asked) {
    const auto grant = t->Run(std::move(each));
    ASSERT_TRUE(grant.has_value());
    EXPECT_NE(grant->views[0].code, Code::kOk);
  }
  t->disk.set_faults({});
  t->Settle();
  EXPECT_EQ(Count(Counters().cut_bad), 0u);
  EXPECT_EQ(Match(0, 15), 0u);
  EXPECT_GT(Count(Counters().lost_below), 0u);
}

TEST_F(FlashStoreTest, P7ADeviceThatGoesOutDuringAStartCostsItsBlocksOnly) {
  Make(With(4));
  for (std::uint64_t n = 0; n < 40; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) -> io::Fault {
    const bool hit =
        request.kind == io::IoRequest::Kind::kSync && path.find("flash0/flash") != std::string::npos;
    return hit ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  t->Kill();
  t->disk.set_faults({});
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneGroup());
  ASSERT_EQ(Put(100, std::nullopt), store::State::kPublished);
}

TEST_F(FlashStoreTest, ADeviceThatHangsHoldsUpNoScrubbingOfOthers) {
  store::TestStoreOptions options = With(4, 4 * kMiB, 2);
  Make(options);
  for (std::uint64_t n = 0; n < 32; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kRead && path == kFirstDevice
               ? io::Fault{io::FaultKind::kHang}
               : io::Fault{};
  });
  options.store.scrub_bytes_per_s = 1 * kMiB;
  t->store->SetOptions(options.store);
  TickUntilFirstDeviceIsOut();
  const std::uint64_t rounds = Count(Counters().scrub_rounds);
  for (int i = 0; i < 20; ++i) TickOnceLater();
  EXPECT_GT(Count(Counters().scrub_rounds), rounds);
}

TEST_F(FlashStoreTest, ADeviceThatHangsHoldsUpNoTurnsOfOthers) {
  Make(With(8, 4 * kMiB, 2));
  std::uint64_t n = 0;
  for (; n < 32; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  std::optional<std::uint64_t> on_first, on_second;
  bool first = false;
  t->disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    if (request.kind == io::IoRequest::Kind::kRead) first = path == kFirstDevice;
    return io::Fault{};
  });
  for (std::uint64_t at = 0; !on_first || !on_second; ++at) {
    ASSERT_FALSE(Here(at));
    ASSERT_TRUE(Gets(at));
    (first ? on_first : on_second) = at;
  }
  for (; n < 64; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  ASSERT_FALSE(Here(*on_first) || Here(*on_second));
  for (const std::uint64_t block : {*on_first, *on_second}) {
    const BlockKey key = store::Key(block);
    t->store->NotePrompt(ns.slot, {.keys = {key},
                                   .first_new = 1,
                                   .matched = 1,
                                   .hints = {.next_turn_ms = block == *on_first ? 60'000u : 61'000u}});
    t->Run(t->store->Touch(ns.slot, std::span(&key, 1)));
  }
  ASSERT_EQ(Occupied().awaited_turns, 2u);
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kRead && path == kFirstDevice
               ? io::Fault{io::FaultKind::kHang}
               : io::Fault{};
  });
  for (int i = 0; i < 520; ++i) TickOnceLater();
  TickUntilFirstDeviceIsOut();
  for (int i = 0; i < 10; ++i) TickOnceLater();
  EXPECT_EQ(Count(Counters().fetched_ahead), 1u);
  EXPECT_TRUE(Here(*on_second));
  for (int i = 0; i < 200; ++i) TickOnceLater();
  EXPECT_EQ(Occupied().awaited_turns, 0u);
}

TEST_F(FlashStoreTest, R10ADeviceThatHangsHoldsUpNoMarksOfOthers) {
  Make(With(8, 4 * kMiB, 2));
  ASSERT_EQ(Put(0, std::nullopt), store::State::kPublished);
  t->Settle();
  const auto told = [this] {
    const auto superblock = flash::DecodeSuperblock(t->disk.Bytes("flash1/flash"));
    return superblock ? superblock->journal_mark : tier::JournalMark{};
  };
  ASSERT_EQ(told(), t->journal->mark());
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kWrite && path == kFirstDevice
               ? io::Fault{io::FaultKind::kHang}
               : io::Fault{};
  });
  const BlockKey key = store::Key(0);
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, std::span(&key, 1))).has_value());
  TickUntilFirstDeviceIsOut();
  for (int i = 0; i < 5; ++i) TickOnceLater();
  EXPECT_EQ(told(), t->journal->mark());
}

TEST_F(FlashStoreTest, R10AMarkThatADeviceFailedToWriteIsWrittenAgain) {
  Make(With(8));
  ASSERT_EQ(Put(0, std::nullopt), store::State::kPublished);
  t->Settle();
  const auto told = [this] {
    const auto superblock = flash::DecodeSuperblock(t->disk.Bytes(kFirstDevice));
    return superblock ? superblock->journal_mark : tier::JournalMark{};
  };
  ASSERT_EQ(told(), t->journal->mark());
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    const bool superblock = request.offset == 0 && path == kFirstDevice;
    return superblock ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  const BlockKey key = store::Key(0);
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, std::span(&key, 1))).has_value());
  for (int i = 0; i < 3; ++i) TickOnceLater();
  ASSERT_GT(t->disk.injected(io::FaultKind::kIoError), 0u);
  ASSERT_TRUE(FlashOf(*t).devices()[0].in_service);
  t->disk.set_faults({});
  for (int i = 0; i < 3; ++i) TickOnceLater();
  EXPECT_EQ(told(), t->journal->mark());
}

}  // namespace
}  // namespace cistern
