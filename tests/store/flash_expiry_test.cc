// SPDX-License-Identifier: Apache-2.0
// What has expired stays away whatever the media and the clock say (R10).
#include "test_flash_store.h"

namespace cistern {
namespace {

TEST_F(FlashStoreTest, WhatExpiresWhileItsNamespaceIsDroppedIsForgottenOnFlashAsWell) {
  Make(With(2000, 64 * kMiB));
  PutChain(0, 39);
  store::PartWrite mortal = Part(40, 39);
  mortal.ttl_s = 20;
  ASSERT_TRUE(WriteOne(mortal).status.ok());
  for (std::uint64_t n = 41; n < 2000; ++n) ASSERT_EQ(Put(n, n - 1), store::State::kPublished);
  while (Count(Counters().written_down) < 2000) t->Advance(1000);
  ASSERT_GT(FlashOf(*t).live_bytes(), 0u);
  auto dropped = t->store->DropNamespace(ns.slot);
  t->Run(TickLaterOnceDropped(t->loop->executor()));
  ASSERT_TRUE(t->Run(std::move(dropped)).has_value());
  t->Settle();
  EXPECT_EQ(Occupied().records, 0u);
  EXPECT_EQ(FlashOf(*t).live_bytes(), 0u);
}

TEST_F(FlashStoreTest, R10WhatExpiredStaysAwayThoughTheClockGoesBack) {
  Make(With(4));
  store::PartWrite part = Part(0, {});
  part.ttl_s = 10;
  WriteOne(part);
  t->Settle();
  t->clock.StepWall(100);
  t->Settle();
  EXPECT_FALSE(Get(0).has_value());
  Reboot(-100);
  EXPECT_FALSE(Get(0).has_value());
}

// It expired below memory, and a reader met it there.
TEST_F(FlashStoreTest, R10WhatExpiredBelowMemoryStaysAwayWithWhatDescendsFromIt) {
  Make(With(4));
  store::PartWrite part = Part(0, {});
  part.ttl_s = 10;
  WriteOne(part);
  ASSERT_EQ(Put(1, 0), store::State::kPublished);
  t->Settle();
  PutChainSlowly(11, 18);
  ASSERT_FALSE(Here(0) || Here(1));
  ASSERT_EQ(Match(0, 1), 2u);
  t->Advance(11'000'000);
  t->Settle();
  EXPECT_EQ(Match(0, 1), 0u);
  EXPECT_FALSE(Get(1).has_value());
  t->Settle();
  Reboot(-3600);
  EXPECT_FALSE(Get(0).has_value());
  EXPECT_FALSE(Get(1).has_value());
}

TEST_F(FlashStoreTest, R10WhatAReaderMetExpiredBelowMemoryStaysAway) {
  Make(With(4));
  store::PartWrite part = Part(0, {});
  part.ttl_s = 10;
  WriteOne(part);
  t->Settle();
  PutChainSlowly(11, 18);
  ASSERT_FALSE(Here(0));
  t->Advance(11'000'000);
  t->Settle();
  EXPECT_FALSE(Get(0).has_value());
  t->Settle();
  Reboot(-3600);
  EXPECT_FALSE(Get(0).has_value());
}

// The tick that follows tells it, not the one a minute later.
TEST_F(FlashStoreTest, R10WhatExpiredStaysAwayThoughTheJournalFailedOnceThen) {
  Make(With(4));
  store::PartWrite part = Part(0, {});
  part.ttl_s = 10;
  WriteOne(part);
  t->Settle();
  int left = 2;  // of both copies
  t->disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    const bool journal =
        request.kind == io::IoRequest::Kind::kWrite && path.find("journal") != std::string::npos;
    return journal && left-- > 0 ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  t->clock.StepWall(20);
  t->Settle();
  ASSERT_LE(left, 0);
  EXPECT_FALSE(Get(0).has_value());
  for (int i = 0; i < 5; ++i) {
    t->clock.AdvanceUs(1'000'000);
    t->Settle();
  }
  Reboot(-60);
  EXPECT_FALSE(Get(0).has_value());
}

TEST_F(FlashStoreTest, R10WhatExpiredUnderAClockThatWentBackStaysAwayAfterAReboot) {
  Make(With(4));
  store::PartWrite part = Part(0, {});
  part.ttl_s = 2;
  WriteOne(part);
  t->Settle();
  t->clock.StepWall(-3600);
  for (int i = 0; i < 20; ++i) {
    t->clock.AdvanceUs(1'000'000);
    t->Settle();
  }
  EXPECT_FALSE(Get(0).has_value());
  Reboot();
  EXPECT_FALSE(Get(0).has_value());
}

}  // namespace
}  // namespace cistern
