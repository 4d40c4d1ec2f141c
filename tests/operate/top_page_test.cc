// SPDX-License-Identifier: Apache-2.0
#include "top_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"

namespace cistern {
namespace {

using testing::HasSubstr;
using testing::Not;

TopSample SampleAt(std::int64_t at_us, std::uint64_t published, std::uint64_t pid = 7) {
  const std::string status =
      Text(R"({"node":{"pid":)", pid, R"(,"uptime_us":)", at_us,
           R"(},"memory":{"bytes":1073741824,"used_bytes":536870912},"now":{"blocks":3},)",
           R"("store":{"published":)", published, R"(},"flash":{"devices":[]},"door":{"sessions":2}})");
  Result<TopSample> sample = ParseTopSample(status, at_us);
  EXPECT_TRUE(sample.has_value());
  return sample.value_or(TopSample());
}

std::size_t Published() {
  const std::vector<TopFigure> figures = TopFigures();
  for (std::size_t i = 0; i < figures.size(); ++i)
    if (figures[i].pointer == "/store/published") return i;
  ADD_FAILURE();
  return 0;
}

TEST(TopPage, ARateIsThatOfTheLastTwoLooks) {
  TopPage page;
  page.Add(SampleAt(1'000'000, 100));
  EXPECT_TRUE(page.Rates().empty());
  page.Add(SampleAt(3'000'000, 300));
  EXPECT_EQ(page.Rates()[Published()], 100.0);
  page.Add(SampleAt(3'500'000, 300));
  EXPECT_EQ(page.Rates()[Published()], 0.0);
}

TEST(TopPage, ANodeThatWasStartedAnewBeginsWithNewCurves) {
  TopPage page;
  page.Add(SampleAt(1'000'000, 100));
  page.Add(SampleAt(2'000'000, 200));
  page.Add(SampleAt(3'000'000, 5, 8));
  EXPECT_TRUE(page.Rates().empty());
  EXPECT_THAT(page.Draw(100, 60), HasSubstr("second look"));
}

TEST(TopPage, ACurveHasTheGreatestTallestAndOnlyZeroLowest) {
  EXPECT_EQ(Sparkline({}, 9), "");
  EXPECT_EQ(Sparkline({0, 0}, 9), "▁▁");
  EXPECT_EQ(Sparkline({0, 0.001, 7}, 9), "▁▂█");
  EXPECT_EQ(Sparkline({9, 1, 1}, 2), "██");
}

TEST(TopPage, FitsTheTerminal) {
  TopPage page;
  for (int look = 0; look < 300; ++look)
    page.Add(SampleAt(1'000'000 * (look + 1), static_cast<std::uint64_t>(look) * 10));
  page.SetNamespaces({{.fingerprint = "0123456789abcdef", .names = {std::string(200, 'n')}}});
  const std::string drawn = page.Draw(60, 10);
  EXPECT_EQ(std::ranges::count(drawn, '\n'), 10);
  std::size_t longest = 0, line = 0;
  for (const char c : drawn) {
    if (c == '\n')
      line = 0;
    else if ((static_cast<unsigned char>(c) & 0xc0) != 0x80)
      longest = std::max(longest, ++line);
  }
  EXPECT_LE(longest, 60u);
  EXPECT_EQ(page.Draw(60, 0), "");
}

TEST(TopPage, NamespacesAreThoseWithTheMostBytesFirst) {
  TopPage page;
  page.Add(SampleAt(1, 0));
  page.SetNamespaces({{.fingerprint = "1", .names = {"small"}, .memory_bytes = 5},
                      {.fingerprint = "2", .names = {"large"}, .memory_bytes = 1, .flash_bytes = 9}});
  const std::string drawn = page.Draw(120, 60);
  EXPECT_LT(drawn.find("large"), drawn.find("small"));
}

TEST(TopPage, AnEngineOfWhichSomethingIsOffIsShown) {
  TopPage page;
  page.Add(*ParseTopSample(
      R"({"node":{"pid":7},"by_engine":[{"engine":"a","sessions":2,"reads_on":false,"writes_on":false},)"
      R"({"engine":"b","sessions":1,"reads_on":true,"writes_on":true},)"
      R"({"engine":"c","sessions":0,"reads_on":true,"writes_on":false},{"engine":5},7]})",
      1));
  const std::string drawn = page.Draw(120, 60);
  EXPECT_THAT(drawn, HasSubstr("reads and writes of engine a, 2 sessions"));
  EXPECT_THAT(drawn, HasSubstr("off    writes of engine c, 0 sessions"));
  EXPECT_THAT(drawn, Not(HasSubstr("engine b")));
}

TEST(TopPage, WhatIsNoStatusIsRefused) {
  for (const char* text : {"", "[]", "{", "{\"now\":{}}"})
    EXPECT_FALSE(ParseTopSample(text, 0).has_value()) << text;
}

}  // namespace
}  // namespace cistern
