// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "base/log_limiter.h"

namespace cistern {
namespace {

TEST(Log, WritesWhatItsLevelAsksForBeforeItGoes) {
  std::vector<std::string> lines;
  {
    auto logger = Logger::ToSink(LogLevel::kInfo, [&](LogLevel level, std::string_view line) {
      lines.push_back(Text(static_cast<int>(level), " ", line));
    });
    logger->Log(LogLevel::kDebug, "not asked for");
    logger->Log(LogLevel::kInfo, "session ", 7, " attached");
    logger->Log(LogLevel::kError, "100% {} of it");  // no format string, so nothing in it is special
  }
  EXPECT_EQ(lines, (std::vector<std::string>{"1 session 7 attached", "3 100% {} of it"}));
}

TEST(Log, ABlockedSinkLosesLinesAndNeverBlocksTheCaller) {
  std::mutex mutex;
  std::condition_variable released;
  bool release = false;
  auto logger = Logger::ToSink(LogLevel::kDebug, [&](LogLevel, std::string_view) {
    std::unique_lock lock(mutex);
    released.wait(lock, [&] { return release; });
  });
  for (int i = 0; i < 20'000; ++i) logger->Log(LogLevel::kDebug, i);
  EXPECT_GT(logger->lost(), 0u);
  std::lock_guard lock(mutex);
  release = true;
  released.notify_all();
}

TEST(Log, ASiteThatSaysTheSameOverAndOverIsCutShortAndAnotherIsNot) {
  std::vector<std::string> lines;
  {
    auto logger =
        Logger::ToSink(LogLevel::kInfo, [&](LogLevel, std::string_view line) { lines.emplace_back(line); });
    for (int i = 0; i < 2000; ++i) logger->Log(LogLevel::kWarning, "again");
    logger->Log(LogLevel::kWarning, "another");
  }
  EXPECT_GE(lines.size(), LogLimiter::kAtOnce + 1);
  EXPECT_LT(lines.size(), 2000u);
  EXPECT_EQ(lines.back(), "another");
}

TEST(Log, LevelsByName) {
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  Result<LogLevel> bad = ParseLogLevel("loud");
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().message(), "log level 'loud' is none of debug, info, warning, error and off");
}

}  // namespace
}  // namespace cistern
