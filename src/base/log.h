// SPDX-License-Identifier: Apache-2.0
// The log: lines with a level, for people. A Logger is handed to who needs one; there is no global one.
// Writing never blocks the caller on the terminal or disk: lines go through a bounded queue to a thread of
// the logger's own, and when it is full the oldest line is lost, which is counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/format.h"
#include "cistern/status.h"

namespace cistern {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off"; anything else is kInvalid and names these.
Result<LogLevel> ParseLogLevel(std::string_view name);

class Logger {
 public:
  // Lines of at least `level` to standard error: "2025-01-31 12:00:00.000 warning text".
  static std::unique_ptr<Logger> ToStderr(LogLevel level);
  // To a function instead, which is called by the logger's thread, for tests and embedding programs.
  using Sink = std::move_only_function<void(LogLevel, std::string_view line)>;
  static std::unique_ptr<Logger> ToSink(LogLevel level, Sink sink);

  // What was logged before is written when this returns.
  ~Logger();

  // From any thread. The text is put together only if it will be written:
  //   logger.Log(LogLevel::kWarning, "session ", id, " ended: ", status.message());
  template <class... Args>
  void Log(LogLevel level, const Args&... args) {
    if (level >= this->level()) Write(level, Text(args...));
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

  std::atomic<LogLevel> level_;
  const std::unique_ptr<Body> body_;
};

}  // namespace cistern
