// SPDX-License-Identifier: Apache-2.0
// Errors are values. A Status says in its code what the caller does next and in its message which thing
// had which value and which limit. Cheap when ok: no allocation, two words.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>

namespace cistern {

enum class Code : std::uint8_t {
  kOk = 0,
  kMiss,      // not here, or no longer: compute it
  kBusy,      // a bound is reached: go without, or try again later
  kTooLate,   // the deadline passed, or it would be ready after `worth_us`: compute it
  kLapsed,    // the lease ended before its use did: discard what was read through it
  kInvalid,   // an argument is wrong: the message names it, its value and its limit; fix the call
  kMismatch,  // two sides disagree (namespace list, protocol or format version): fix the configuration
  kDenied,    // not this session's to do (foreign owner, forked handle): do not retry
  kGone,      // the node or session is gone: reconnect; nothing published is lost
  kIoError,   // the system or a device failed: the message carries its error
  // What the call needs beside the node (its cell's etcd) cannot be reached: nothing has changed; try again
  // later. All that needs the node alone goes on.
  kUnavailable,
};
inline constexpr Code kLastCode = Code::kUnavailable;

// The name of a code without its k, in snake case: "too_late".
std::string_view CodeName(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::make_unique<std::string>(std::move(message))) {}
  explicit Status(Code code) : code_(code) {}
  Status(const Status& other)
      : code_(other.code_),
        message_(other.message_ ? std::make_unique<std::string>(*other.message_) : nullptr) {}
  Status& operator=(const Status& other) { return *this = Status(other); }
  Status(Status&&) = default;
  Status& operator=(Status&&) = default;

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  std::string_view message() const { return message_ ? std::string_view(*message_) : std::string_view(); }
  // "busy: 1,000 sessions are open and the limit is 1,000" or "ok".
  std::string ToString() const;

  friend bool operator==(const Status& a, const Status& b) { return a.code_ == b.code_; }

 private:
  Code code_ = Code::kOk;
  std::unique_ptr<std::string> message_;
};

template <class T>
using Result = std::expected<T, Status>;

// `return Error(Code::kBusy, std::format-like text)` from a function that returns a Result.
inline std::unexpected<Status> Error(Code code, std::string message) {
  return std::unexpected<Status>(Status(code, std::move(message)));
}
inline std::unexpected<Status> Error(Status status) { return std::unexpected<Status>(std::move(status)); }

}  // namespace cistern
