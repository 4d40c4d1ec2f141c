// SPDX-License-Identifier: Apache-2.0
#include "endpoint/answer.h"

#include <algorithm>
#include <boost/json.hpp>

#include "base/format.h"

namespace cistern {
namespace {

namespace json = boost::json;

constexpr std::size_t kShownBytes = 300;

const json::value* Member(const json::value* value, std::string_view name) {
  const json::object* object = value ? value->if_object() : nullptr;
  return object ? object->if_contains(name) : nullptr;
}

std::string_view String(const json::value* value) {
  const json::string* string = value ? value->if_string() : nullptr;
  return string ? std::string_view(*string) : std::string_view();
}

std::optional<std::uint64_t> Count(const json::value* value) {
  if (!value) return std::nullopt;
  if (const std::uint64_t* count = value->if_uint64()) return *count;
  if (const std::int64_t* count = value->if_int64(); count && *count >= 0) {
    return static_cast<std::uint64_t>(*count);
  }
  return std::nullopt;
}

std::string Printable(std::string_view text) {
  std::string shown(text.substr(0, kShownBytes));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = ' ';
  }
  if (text.size() > kShownBytes) shown.replace(kShownBytes - 3, 3, "...");
  return shown;
}

// The message of {"error": {"message": ..}}, {"error": ".."}, {"message": ..} or {"detail": ..}; or nothing.
std::string MessageOf(const json::value& value) {
  const json::value* error = Member(&value, "error");
  for (const json::value* said :
       {Member(error, "message"), error, Member(&value, "message"), Member(&value, "detail")}) {
    if (!String(said).empty()) return Printable(String(said));
  }
  const bool other = error && !error->is_null();
  return other ? Printable(json::serialize(*error)) : std::string();
}

// Text of one choice, of either API; several forms of thinking are in use.
std::string_view TextOf(const json::value& choice) {
  const json::value* delta = Member(&choice, "delta");
  for (const json::value* said : {Member(delta, "content"), Member(delta, "reasoning_content"),
                                  Member(delta, "reasoning"), Member(&choice, "text")}) {
    if (!String(said).empty()) return String(said);
  }
  return {};
}

}  // namespace

std::string_view FailureName(FailureKind kind) {
  switch (kind) {
    case FailureKind::kConnection: return "connection";
    case FailureKind::kTimeout: return "timeout";
    case FailureKind::kStatus: return "status";
    case FailureKind::kServer: return "server error";
    case FailureKind::kEndedEarly: return "ended early";
    case FailureKind::kMalformed: return "malformed";
  }
  return "";
}

Result<StreamPiece> ParsePiece(std::string_view data) {
  StreamPiece piece;
  if (data == "[DONE]") {
    piece.done = true;
    return piece;
  }
  json::error_code error;
  const json::value value = json::parse(data, error);
  if (error) return Error(Code::kInvalid, Text("is not JSON (", error.message(), "): ", Printable(data)));
  const json::value* choices = Member(&value, "choices");
  const json::value* usage = Member(&value, "usage");
  const bool of_completion = choices && choices->is_array();
  if (!of_completion) piece.error = MessageOf(value);
  if (!of_completion && !usage && piece.error.empty()) {
    return Error(Code::kInvalid, Text("is no completion (it has no choices): ", Printable(data)));
  }
  if (of_completion) {
    for (const json::value& choice : choices->get_array()) {
      piece.text.append(TextOf(choice));
      const json::value* reason = Member(&choice, "finish_reason");
      piece.finished |= reason && !reason->is_null();
    }
  }
  piece.usage.prompt_tokens = Count(Member(usage, "prompt_tokens"));
  piece.usage.output_tokens = Count(Member(usage, "completion_tokens"));
  piece.usage.cached_tokens = Count(Member(Member(usage, "prompt_tokens_details"), "cached_tokens"));
  return piece;
}

std::string ErrorText(std::string_view body) {
  json::error_code error;
  const json::value value = json::parse(body, error);
  if (!error) {
    if (std::string message = MessageOf(value); !message.empty()) return message;
  }
  return body.empty() ? "no reason is given" : Printable(body);
}

bool AnswerReader::Feed(std::string_view bytes, Instant now) {
  if (failure_) return false;
  if (events_ == 0 && beginning_.size() < kShownBytes) {
    beginning_.append(bytes.substr(0, kShownBytes - beginning_.size()));
  }
  const bool good = parser_.Feed(bytes, [&](std::string_view data) { return Take(data, now); });
  if (!good && !failure_) {
    failure_ = {FailureKind::kMalformed,
                Text("an event of the stream is larger than ", SseParser::kMaxEventBytes, " bytes")};
  }
  return good;
}

bool AnswerReader::Take(std::string_view data, Instant now) {
  ++events_;
  if (done_ || data.empty()) return true;
  Result<StreamPiece> piece = ParsePiece(data);
  if (!piece) {
    failure_ = {FailureKind::kMalformed, Text("event ", events_, " of the stream ", piece.error().message())};
    return false;
  }
  if (!piece->error.empty()) {
    failure_ = {FailureKind::kServer, std::move(piece->error)};
    return false;
  }
  last_ = now;
  done_ = piece->done;
  if (!piece->text.empty() || (piece->finished && pieces_.empty())) pieces_.push_back(now);
  finished_ |= piece->finished;
  text_.append(piece->text);
  const auto keep = [](auto& kept, const auto& said) {
    if (said) kept = said;
  };
  keep(usage_.prompt_tokens, piece->usage.prompt_tokens);
  keep(usage_.output_tokens, piece->usage.output_tokens);
  keep(usage_.cached_tokens, piece->usage.cached_tokens);
  return true;
}

std::optional<Failure> AnswerReader::Finish() const {
  if (failure_) return failure_;
  if (events_ == 0) {
    return Failure{FailureKind::kMalformed,
                   beginning_.empty() ? std::string("the answer is empty")
                                      : Text("the answer is no event stream: ", Printable(beginning_))};
  }
  // A stream without [DONE] is whole where the answer itself says that it is finished.
  if (!finished_ && (!done_ || pieces_.empty())) {
    return Failure{FailureKind::kEndedEarly, Text("the stream ended after ", pieces_.size(),
                                                  " pieces, before the answer was finished")};
  }
  return std::nullopt;
}

}  // namespace cistern
