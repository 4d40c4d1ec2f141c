// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
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

TEST(Log, ItsEndWaitsForNobodyWhoDoesNotReadStandardError) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd reads(ends[0]);
  const Fd before(::dup(STDERR_FILENO));
  {
    const Fd writes(ends[1]);
    const int bytes = ::fcntl(writes.get(), F_SETPIPE_SZ, 4096);
    ASSERT_GT(bytes, 0);
    const std::string full(static_cast<std::size_t>(bytes), '.');
    ASSERT_EQ(::write(writes.get(), full.data(), full.size()), bytes);
    ASSERT_GE(::dup2(writes.get(), STDERR_FILENO), 0);
  }
  auto logger = Logger::ToStderr(LogLevel::kInfo);
  logger->Log(LogLevel::kInfo, "nobody takes this");
  logger.reset();
  // Its thread is let go of.
  std::string said;
  std::array<char, 4096> piece{};
  for (ssize_t got = 1; got > 0; said.append(piece.data(), got > 0 ? static_cast<std::size_t>(got) : 0))
    got = ::read(reads.get(), piece.data(), said.ends_with('\n') ? 0 : piece.size());
  EXPECT_GE(::dup2(before.get(), STDERR_FILENO), 0);
  EXPECT_NE(said.find("nobody takes this"), std::string::npos);
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
