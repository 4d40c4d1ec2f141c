// SPDX-License-Identifier: Apache-2.0
// An answer as it streams in: what it says, when each piece came, what the server says it counted. Pure:
// times come in as values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "cistern/status.h"
#include "endpoint/sse.h"

namespace cistern {

enum class FailureKind : std::uint8_t {
  kConnection,  // no connection, or it broke before an answer began
  kTimeout,     // silent for too long
  kStatus,      // an HTTP status other than 200
  kServer,      // an error object in the stream
  kEndedEarly,  // the stream ended before the answer did
  kMalformed,   // what came is no stream of completions
};
inline constexpr std::size_t kFailureKinds = 6;
std::string_view FailureName(FailureKind kind);  // "connection", "ended early"

struct Failure {
  FailureKind kind = FailureKind::kConnection;
  std::string reason;
};

// What the server counted; each only where it says so.
struct Usage {
  std::optional<std::uint64_t> prompt_tokens;
  std::optional<std::uint64_t> output_tokens;
  std::optional<std::uint64_t> cached_tokens;
};

// One event of the stream.
struct StreamPiece {
  bool done = false;      // [DONE]
  bool finished = false;  // it has a finish_reason
  std::string text;       // of the answer, or of the thinking before it
  std::string error;      // of an error object
  Usage usage;
};
// kInvalid: not JSON, or not of a completion's form.
Result<StreamPiece> ParsePiece(std::string_view data);

// What an error's body says: its message where it is JSON of a usual form, else its beginning; always
// printable and at most 300 bytes.
std::string ErrorText(std::string_view body);

class AnswerReader {
 public:
  // False when nothing more can come of it; Finish then says why.
  bool Feed(std::string_view bytes, Instant now);
  // After the last byte of an answer with status 200. Nothing when the answer is whole.
  std::optional<Failure> Finish() const;

  // When each piece with text came; an answer without visible text counts as one piece, at its end.
  const std::vector<Instant>& pieces() const { return pieces_; }
  const std::string& text() const { return text_; }
  const Usage& usage() const { return usage_; }
  // When the answer's last event came.
  Instant last() const { return last_; }

 private:
  bool Take(std::string_view data, Instant now);

  SseParser parser_;
  std::vector<Instant> pieces_;
  std::string text_;
  std::string beginning_;  // of what came, for messages
  Usage usage_;
  Instant last_;
  std::uint64_t events_ = 0;
  bool finished_ = false;
  bool done_ = false;
  std::optional<Failure> failure_;
};

}  // namespace cistern
