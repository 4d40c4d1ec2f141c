// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/async_logger.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <chrono>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log_limiter.h"

namespace cistern {
namespace {

constexpr std::size_t kQueuedLines = 8192;
constexpr std::chrono::seconds kPatience(1);  // with standard error, at the end
constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warning", "error", "off"};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::off;
}

LogLevel FromSpdlog(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
    case spdlog::level::debug: return LogLevel::kDebug;
    case spdlog::level::info: return LogLevel::kInfo;
    case spdlog::level::warn: return LogLevel::kWarning;
    default: return LogLevel::kError;
  }
}

// Only the logger's one thread calls it, so it needs no mutex.
class FunctionSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit FunctionSink(Logger::Sink function) : function_(std::move(function)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    function_(FromSpdlog(message.level), std::string_view(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}
  Logger::Sink function_;
};

}  // namespace

Result<LogLevel> ParseLogLevel(std::string_view name) {
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    if (name == kLevelNames[i]) return static_cast<LogLevel>(i);
  }
  return Error(Code::kInvalid, Text("log level '", name, "' is none of debug, info, warning, error and off"));
}

class Logger::Body {
 public:
  enum class Ends : std::uint8_t { kWhenWritten, kInTime };
  Body(spdlog::sink_ptr sink, Ends ends)
      : ends_(ends),
        pool_(std::make_shared<spdlog::details::thread_pool>(kQueuedLines, 1)),
        logger_(std::make_shared<spdlog::async_logger>("", std::move(sink), pool_,
                                                       spdlog::async_overflow_policy::overrun_oldest)) {
    logger_->set_level(spdlog::level::trace);
    logger_->flush_on(spdlog::level::warn);
  }
  // The pool's destructor writes what is queued and joins its thread. A thread that is inside a write which
  // nobody takes goes with the process.
  ~Body() {
    if (ends_ == Ends::kWhenWritten) return;
    std::promise<void> written;
    const std::future<void> ended = written.get_future();
    try {
      std::thread([pool = std::move(pool_), logger = std::move(logger_),
                   done = std::move(written)]() mutable {
        logger.reset();
        pool.reset();
        done.set_value();
      }).detach();
    } catch (const std::system_error&) {
      return;  // the system has no thread for it: it was written here
    }
    static_cast<void>(ended.wait_for(kPatience));
  }
  void Write(LogLevel level, std::string_view text) {
    logger_->log(ToSpdlog(level), spdlog::string_view_t(text.data(), text.size()));
  }
  std::uint64_t lost() const { return pool_->overrun_counter(); }
  std::optional<std::uint64_t> Admit(const std::source_location& where) {
    return limiter_.Admit(where, SystemClock().Now());
  }

 private:
  // Queued lines keep the logger alive.
  const Ends ends_;
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<spdlog::async_logger> logger_;
  LogLimiter limiter_;
};

Logger::Logger(LogLevel level, std::unique_ptr<Body> body) : level_(level), body_(std::move(body)) {}
Logger::~Logger() = default;

std::unique_ptr<Logger> Logger::ToStderr(LogLevel level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_st>();
  sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  return std::unique_ptr<Logger>(
      new Logger(level, std::make_unique<Body>(std::move(sink), Body::Ends::kInTime)));
}

std::unique_ptr<Logger> Logger::ToSink(LogLevel level, Sink sink) {
  return std::unique_ptr<Logger>(new Logger(
      level,
      std::make_unique<Body>(std::make_shared<FunctionSink>(std::move(sink)), Body::Ends::kWhenWritten)));
}

void Logger::Write(LogLevel level, std::string_view text) { body_->Write(level, text); }
std::optional<std::uint64_t> Logger::Admit(const std::source_location& where) { return body_->Admit(where); }
std::uint64_t Logger::lost() const { return body_->lost(); }

}  // namespace cistern
