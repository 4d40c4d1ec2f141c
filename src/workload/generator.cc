// SPDX-License-Identifier: Apache-2.0
#include "workload/generator.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/assert.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"

namespace cistern::workload {
namespace {

constexpr std::uint64_t kMaxRequests = 10'000'000;
constexpr std::uint64_t kMaxTokens = 4u << 20;
constexpr std::uint64_t kDayUs = 86'400'000'000;
constexpr std::uint64_t kAnswerTokenUs = 20'000;  // an engine that says 50 tokens a second

enum class Kind { kCount, kDuration, kThousandths };

struct Key {
  std::string_view name;
  std::uint64_t GeneratorOptions::* field;
  Kind kind;
  std::uint64_t least;
  std::uint64_t most;
};

constexpr std::array<Key, 16> kKeys = {{
    {"sessions", &GeneratorOptions::sessions, Kind::kCount, 1, Zipf::kMaxRanks},
    {"turns", &GeneratorOptions::turns, Kind::kCount, 1, 10'000},
    {"system", &GeneratorOptions::system, Kind::kCount, 1, 100'000},
    {"system_tokens", &GeneratorOptions::system_tokens, Kind::kCount, 0, kMaxTokens - 1},
    {"user_tokens", &GeneratorOptions::user_tokens, Kind::kCount, 1, kMaxTokens},
    {"output_tokens", &GeneratorOptions::output_tokens, Kind::kCount, 1, kMaxTokens},
    {"context", &GeneratorOptions::context, Kind::kCount, 1, kMaxTokens},
    {"think", &GeneratorOptions::think_us, Kind::kDuration, 0, kDayUs},
    {"span", &GeneratorOptions::span_us, Kind::kDuration, 0, 365 * kDayUs},
    {"system_zipf", &GeneratorOptions::system_milli_zipf, Kind::kThousandths, 0, Zipf::kMaxMilliExponent},
    {"session_zipf", &GeneratorOptions::session_milli_zipf, Kind::kThousandths, 0, Zipf::kMaxMilliExponent},
    {"documents", &GeneratorOptions::documents, Kind::kCount, 0, 100'000},
    {"document_tokens", &GeneratorOptions::document_tokens, Kind::kCount, kTraceBlockTokens, kMaxTokens - 1},
    {"document_zipf", &GeneratorOptions::document_milli_zipf, Kind::kThousandths, 0, Zipf::kMaxMilliExponent},
    {"in_turn", &GeneratorOptions::documents_in_turn, Kind::kCount, 0, 1},
    {"seed", &GeneratorOptions::seed, Kind::kCount, 0, ~std::uint64_t{0}},
}};

// "0.75" is 750.
Result<std::uint64_t> ParseThousandths(std::string_view name, std::string_view text, std::uint64_t most) {
  const std::size_t point = text.find('.');
  std::string digits(text.substr(0, point));
  std::string_view decimals = point == text.npos ? std::string_view() : text.substr(point + 1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool whole_ok = !digits.empty() && digits.size() <= 3 && std::ranges::all_of(digits, is_digit);
  const bool decimals_ok = decimals.size() <= 3 && std::ranges::all_of(decimals, is_digit) &&
                           (point == text.npos || !decimals.empty());
  if (whole_ok && decimals_ok) {
    digits.append(decimals).append(3 - decimals.size(), '0');
    const Result<std::uint64_t> value = ParseCount(name, digits, 0, most);
    if (value) return value;
  }
  return Error(Code::kInvalid, Text(name, ": ", Shown(text), " is not a number from 0 to ", most / 1'000,
                                    " with at most three decimals, such as 0.75"));
}

Result<std::uint64_t> ParseValue(const Key& key, std::string_view text) {
  const std::string name = Text("generated: ", key.name);
  switch (key.kind) {
    case Kind::kCount: return ParseCount(name, text, key.least, key.most);
    case Kind::kThousandths: return ParseThousandths(name, text, key.most);
    case Kind::kDuration: break;
  }
  const Result<std::uint64_t> value = ParseDurationUs(name, text);
  if (value && (*value < key.least || *value > key.most)) {
    return Error(Code::kInvalid, Text(name, ": ", Shown(text), " is out of range: it must be from ",
                                      DurationText(key.least), " to ", DurationText(key.most)));
  }
  return value;
}

// A document begins at a block of its own, and is whole blocks.
std::uint64_t HeadTokens(const GeneratorOptions& options) {
  if (options.documents == 0) return options.system_tokens;
  return (options.system_tokens / kTraceBlockTokens + options.document_tokens / kTraceBlockTokens) *
         kTraceBlockTokens;
}

Status ValidateTogether(const GeneratorOptions& options) {
  if (options.sessions * options.turns > kMaxRequests) {
    return Status(Code::kInvalid,
                  Text("generated: sessions=", options.sessions, " times turns=", options.turns, " is ",
                       options.sessions * options.turns, " requests and the limit is ", kMaxRequests));
  }
  if (options.system_tokens >= options.context) {
    return Status(Code::kInvalid, Text("generated: system_tokens=", options.system_tokens,
                                       " leaves no room for a question in context=", options.context,
                                       ": make context larger or system_tokens smaller"));
  }
  if (HeadTokens(options) >= options.context) {
    return Status(Code::kInvalid, Text("generated: system_tokens=", options.system_tokens,
                                       " and document_tokens=", options.document_tokens,
                                       " leave no room for a question in context=", options.context,
                                       ": make context larger or document_tokens smaller"));
  }
  return Status();
}

}  // namespace

Result<GeneratorOptions> ParseGeneratorOptions(std::string_view text) {
  GeneratorOptions options;
  std::array<bool, kKeys.size()> given{};
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    const std::string_view name = pair.substr(0, equals);
    if (equals == pair.npos) {
      return Error(Code::kInvalid, Text("generated: ", Shown(pair), " is not of the form key=value, such as ",
                                        "sessions=200"));
    }
    const auto key = std::ranges::find(kKeys, name, &Key::name);
    if (key == kKeys.end()) {
      std::array<std::string_view, kKeys.size()> names;
      std::ranges::transform(kKeys, names.begin(), &Key::name);
      return Error(Code::kInvalid, Text("generated: ", UnknownName("key", name, names)));
    }
    if (std::exchange(given[static_cast<std::size_t>(key - kKeys.begin())], true)) {
      return Error(Code::kInvalid, Text("generated: ", name, " is given twice: give it once"));
    }
    const Result<std::uint64_t> value = ParseValue(*key, pair.substr(equals + 1));
    if (!value) return Error(value.error());
    options.*(key->field) = *value;
  }
  if (Status status = ValidateTogether(options); !status.ok()) return Error(std::move(status));
  return options;
}

Generator::Generator(const GeneratorOptions& options)
    : options_(options),
      system_blocks_(options.system_tokens / kTraceBlockTokens),
      document_blocks_(options.documents == 0 ? 0 : options.document_tokens / kTraceBlockTokens),
      head_tokens_(HeadTokens(options)),
      random_(options.seed),
      sessions_(options.sessions),
      next_hash_id_(options.system * (system_blocks_ + options.documents * document_blocks_)) {
  CISTERN_ASSERT(ValidateTogether(options).ok());
  const Zipf busy(options_.sessions, options_.session_milli_zipf);
  const Zipf popular(options_.system, options_.system_milli_zipf);
  for (std::uint64_t turn = options_.sessions; turn < options_.sessions * options_.turns; ++turn) {
    ++sessions_[busy.Draw(random_)].turns;
  }
  for (std::uint64_t i = 0; i < options_.sessions; ++i) {
    sessions_[i].system = popular.Draw(random_);
    sessions_[i].tokens = head_tokens_;
    turns_.emplace(random_.Below(options_.span_us + 1), i);
  }
  if (options_.documents > 0) ChooseDocuments();
}

// The same document behind another system prompt is other blocks.
void Generator::ChooseDocuments() {
  const Zipf popular(options_.documents, options_.document_milli_zipf);
  std::vector<Turn> begins;
  for (auto turns = turns_; !turns.empty(); turns.pop()) begins.push_back(turns.top());
  for (std::uint64_t i = 0; i < begins.size(); ++i) {
    Session& session = sessions_[begins[i].second];
    const std::uint64_t document =
        options_.documents_in_turn != 0 ? i % options_.documents : popular.Draw(random_);
    session.head = options_.system * system_blocks_ +
                   (session.system * options_.documents + document) * document_blocks_;
  }
}

std::uint64_t Generator::Length(std::uint64_t mean) {
  return std::clamp<std::uint64_t>(random_.Exponential(mean), 1, 8 * mean);
}

Result<bool> Generator::Next(Request& request) {
  if (turns_.empty()) return false;
  const auto [now_us, who] = turns_.top();
  turns_.pop();
  Session& session = sessions_[who];
  const std::uint64_t question = Length(options_.user_tokens);
  const std::uint64_t answer = Length(options_.output_tokens);
  if (session.tokens + question > options_.context) {
    session.tokens = head_tokens_;
    session.hash_ids.clear();
  }
  session.tokens = std::min(session.tokens + question, options_.context);

  request.timestamp_ms = now_us / 1'000;
  request.input_tokens = static_cast<std::uint32_t>(session.tokens);
  request.output_tokens = static_cast<std::uint32_t>(answer);
  request.session = who;
  request.hash_ids.clear();
  for (std::uint64_t block = 0; block < system_blocks_; ++block) {
    request.hash_ids.push_back(session.system * system_blocks_ + block);
  }
  for (std::uint64_t block = 0; block < document_blocks_; ++block) {
    request.hash_ids.push_back(session.head + block);
  }
  const std::uint64_t own_blocks = session.tokens / kTraceBlockTokens - system_blocks_ - document_blocks_;
  while (session.hash_ids.size() < own_blocks) session.hash_ids.push_back(next_hash_id_++);
  request.hash_ids.insert(request.hash_ids.end(), session.hash_ids.begin(), session.hash_ids.end());
  // A partial block is another block once it is full: its id is used this one time.
  if (session.tokens % kTraceBlockTokens != 0) request.hash_ids.push_back(next_hash_id_++);

  session.tokens += answer;
  if (--session.turns > 0) {
    turns_.emplace(now_us + answer * kAnswerTokenUs + random_.Exponential(options_.think_us), who);
  } else {
    session.hash_ids = {};
  }
  return true;
}

}  // namespace cistern::workload
