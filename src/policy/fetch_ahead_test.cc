// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_ahead.h"

#include <gtest/gtest.h>

namespace cistern::policy {
namespace {

TEST(FetchAhead, TrueTimesNarrowTheWindowToASecondToBothSides) {
  FetchAhead ahead;
  const auto before = ahead.WindowOf(60'000);
  for (int i = 0; i < 1'000; ++i) ahead.Note(60'000, 60'200);
  EXPECT_EQ(ahead.WindowOf(60'000), (FetchAhead::Window{59'000, 61'000}));
  ASSERT_TRUE(before);
  EXPECT_LT(before->from_ms, 59'000u);
}

TEST(FetchAhead, WindowHasTheTimesThatAreOffAsUsual) {
  FetchAhead ahead;
  for (int i = 0; i < 1'000; ++i) ahead.Note(60'000, i % 2 == 0 ? 54'000 : 66'000);
  const auto window = ahead.WindowOf(60'000);
  ASSERT_TRUE(window);
  EXPECT_LT(window->from_ms, 54'000u);
  EXPECT_GT(window->until_ms, 66'000u);
}

TEST(FetchAhead, TimesThatAreOftenWrongAreNotFetchedForUntilTheyAreTrueAgain) {
  FetchAhead ahead;
  for (int i = 0; i < 200; ++i) ahead.Note(60'000, std::nullopt);
  EXPECT_FALSE(ahead.WindowOf(60'000));
  for (int i = 0; i < 200; ++i) ahead.Note(60'000, 60'000);
  EXPECT_TRUE(ahead.WindowOf(60'000));
}

TEST(FetchAhead, TurnToldForAtOnceIsFetchedForBehindTheOneThatTellsOfIt) {
  EXPECT_EQ(FetchAhead().WindowOf(1), (FetchAhead::Window{1, 1'001}));
}

TEST(FetchAhead, FetchBeginsSoonerByWhatItsBytesTakeAtTheRateOfReadsBefore) {
  FetchAhead ahead;
  const FetchAhead::Window window{50'000, 70'000};
  EXPECT_EQ(ahead.BeginMs(window, 1u << 30), 50'000u) << "nothing was read yet";
  ahead.NoteRead(1'000'000, 2'000);
  EXPECT_EQ(ahead.BeginMs(window, 0), 50'000u);
  EXPECT_EQ(ahead.BeginMs(window, 1'000'000'000), 48'000u);
  EXPECT_EQ(ahead.BeginMs(window, 3'000'000'000), 44'000u);
  ahead.NoteRead(1'000'000, 4'000);
  EXPECT_EQ(ahead.BeginMs(window, 1'000'000'000), 47'000u) << "the first says no more than the second";
  for (int i = 0; i < 1'000; ++i) ahead.NoteRead(1'000'000, 8'000);
  EXPECT_NEAR(static_cast<double>(ahead.BeginMs(window, 1'000'000'000)), 42'000, 1) << "the tier is slower";
}

TEST(FetchAhead, ReadThatWasUnderWayInAPauseSaysLittleOfReads) {
  FetchAhead ahead;
  const FetchAhead::Window window{50'000, 70'000};
  for (int i = 0; i < 64; ++i) ahead.NoteRead(1'000'000, 2'000);
  ahead.NoteRead(1'000'000, 600'000'000);
  EXPECT_NEAR(static_cast<double>(ahead.BeginMs(window, 1'000'000'000)), 48'000, 250);
}

TEST(FetchAhead, FetchBeginsNoSoonerThanHalfWayHoweverMuchThereIs) {
  FetchAhead ahead;
  ahead.NoteRead(1, 1'000'000);
  EXPECT_EQ(ahead.BeginMs({50'000, 70'000}, ~std::uint64_t{0}), 25'000u);
  EXPECT_EQ(ahead.BeginMs({1, 1'001}, ~std::uint64_t{0}), 0u);
}

TEST(FetchAhead, PromptThatIsAskedForAgainAtOnceIsNotItsNextTurn) {
  EXPECT_FALSE(FetchAhead::IsTurn(60'000, 300));
  EXPECT_TRUE(FetchAhead::IsTurn(60'000, 20'000)) << "however early it is";
  EXPECT_TRUE(FetchAhead::IsTurn(1, 0)) << "it was told for at once";
}

}  // namespace
}  // namespace cistern::policy
