// SPDX-License-Identifier: Apache-2.0
// The log: lines with a level, for people. A Logger is handed to who needs one; there is no global one.
// Writing never blocks the caller on the terminal or disk: lines go through a bounded queue to a thread of
// the logger's own, and when it is full the oldest line is lost, which is counted. One site of the source
// logs few lines at once and then one a second (LogLimiter), so what goes wrong a million times is said a few
// times, with the number.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

#include "base/format.h"
#include "cistern/status.h"

namespace cistern {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off"; anything else is kInvalid and names these.
Result<LogLevel> ParseLogLevel(std::string_view name);

// A level, with where in the source it was said.
struct LogSite {
  LogSite(LogLevel at_level, std::source_location at = std::source_location::current())
      : level(at_level), where(at) {}
  LogLevel level;
  std::source_location where;
};

class Logger {
 public:
  // Lines of at least `level` to standard error: "2025-01-31 12:00:00.000 warning text".
  static std::unique_ptr<Logger> ToStderr(LogLevel level);
  // To a function instead, which is called by the logger's thread, for tests and embedding programs.
  using Sink = std::move_only_function<void(LogLevel, std::string_view line)>;
  static std::unique_ptr<Logger> ToSink(LogLevel level, Sink sink);

  // What was logged before is written when this returns; to standard error what is taken within a second, as
  // nobody may read there.
  ~Logger();

  // From any thread. The text is put together only if it will be written:
  //   logger.Log(LogLevel::kWarning, "session ", id, " ended: ", status.message());
  // Lines for those who look for a fault (kDebug) are not limited.
  template <class... Args>
  void Log(LogSite site, const Args&... args) {
    if (site.level < level()) return;
    const std::optional<std::uint64_t> left_out =
        site.level == LogLevel::kDebug ? std::optional<std::uint64_t>(0) : Admit(site.where);
    if (left_out == 0u)
      Write(site.level, Text(args...));
    else if (left_out)
      Write(site.level, Text(args..., " (and ", *left_out, " like it that were left out)"));
  }
  LogLevel level() const { return level_.load(std::memory_order_relaxed); }
  // From any thread; lines that are logged from now on.
  void SetLevel(LogLevel level) { level_.store(level, std::memory_order_relaxed); }
  // Lines lost because the queue was full.
  std::uint64_t lost() const;

 private:
  class Body;
  Logger(LogLevel level, std::unique_ptr<Body> body);
  void Write(LogLevel level, std::string_view text);
  std::optional<std::uint64_t> Admit(const std::source_location& where);

  std::atomic<LogLevel> level_;
  const std::unique_ptr<Body> body_;
};

}  // namespace cistern
