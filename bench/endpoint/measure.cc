// SPDX-License-Identifier: Apache-2.0
#include "endpoint/measure.h"

#include <sys/random.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/clock.h"
#include "base/format.h"
#include "base/nearest.h"

namespace cistern {
namespace {

namespace json = boost::json;

constexpr std::int64_t kQuestionUs = 30'000'000;  // for what is not a completion
constexpr std::int64_t kEmptyUs = 10'000'000;     // how long a server's cache may stay in use
constexpr std::int64_t kEmptyAgainUs = 200'000;
constexpr std::uint32_t kWarmUpTokens = 8;

std::string FreshSalt() {
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) != sizeof(bits)) {
    bits = static_cast<std::uint64_t>(SystemClock().Now().ns);
  }
  return Hex(bits).substr(2);
}

class Measuring {
 public:
  Measuring(const MeasureOptions& options, const Plan& plan, HttpClient& http)
      : options_(options), plan_(plan), http_(http) {}

  Result<Measurement> Run() {
    found_.url = options_.url;
    found_.salt = options_.salt.empty() && options_.compare ? FreshSalt() : options_.salt;
    if (Status status = FindModel(); !status.ok()) return Error(status);
    if (options_.warm_up) {
      if (Status status = WarmUp(); !status.ok()) return Error(status);
    }
    const std::vector<std::string> names =
        options_.compare ? std::vector<std::string>{"off", "cold", "warm"} : std::vector<std::string>{"run"};
    for (const std::string& name : names) {
      if (Status status = RunOnce(name); !status.ok()) return Error(status);
      if (found_.interrupted) break;
    }
    Note();
    return std::move(found_);
  }

 private:
  int WakeFd() const { return options_.interrupt ? options_.interrupt->fd() : -1; }
  std::int64_t QuestionUs() const { return std::min(kQuestionUs, options_.silence_us); }

  Status FindModel() {
    const std::string url = options_.url + "/v1/models";
    const Result<HttpAnswer> answer = http_.Get(url, QuestionUs(), WakeFd());
    if (!answer) {
      if (answer.error().code() == Code::kDenied) return answer.error();  // interrupted
      return Status(answer.error().code(),
                    Text(answer.error().message(), ": is the server up? --url names another"));
    }
    found_.model = options_.model;
    if (answer->status == 401 || answer->status == 403) {
      return Status(Code::kDenied, Text(url, ": HTTP ", answer->status, ": ", ErrorText(answer->body),
                                        ": give a key by --api-key-file or OPENAI_API_KEY"));
    }
    if (answer->status != 200) {
      if (!options_.model.empty()) return Status();  // not all servers have a list; the warm-up will tell
      return Status(Code::kMismatch,
                    Text(url, ": HTTP ", answer->status, ": ", ErrorText(answer->body),
                         ": is this an OpenAI-compatible endpoint? --model names the model"));
    }
    const Result<std::vector<std::string>> names = ModelNames(answer->body);
    if (!names || names->empty()) {
      if (!options_.model.empty()) return Status();
      return Status(Code::kMismatch, Text(url, " names no model: --model names one"));
    }
    if (options_.model.empty()) {
      found_.model = names->front();
    } else if (std::ranges::find(*names, options_.model) == names->end()) {
      const std::vector<std::string_view> known(names->begin(), names->end());
      return Status(Code::kInvalid, Text("--model: ", UnknownName("model", options_.model, known)));
    }
    return Status();
  }

  DriveOptions DriveAs(std::string name, std::string salt) const {
    return {.name = std::move(name),
            .url = options_.url,
            .ask = {.api = options_.api, .model = found_.model, .plain = options_.plain},
            .salt = std::move(salt),
            .silence_us = options_.silence_us,
            .interrupt = options_.interrupt,
            .progress = options_.progress};
  }

  // The first request of a server's life pays for what is none of its work; a wrong setting shows here.
  Status WarmUp() {
    Plan one;
    one.requests.push_back(plan_.requests.front());
    one.requests[0].at_us = 0;
    one.requests[0].answer_tokens = std::min(one.requests[0].answer_tokens, kWarmUpTokens);
    DriveOptions drive = DriveAs("warm-up", "warm-up");
    drive.ask.without_cistern = !options_.plain;
    std::vector<std::string> answers;
    const Result<Driven> driven = Drive(one, drive, http_, answers);
    if (!driven) return driven.error();
    if (driven->interrupted) return Status(Code::kDenied, "interrupted before the first run");
    const RequestRecord& record = driven->records[0];
    if (record.outcome == Outcome::kAnswered) return Status();
    return Status(Code::kIoError, Text(options_.url, PathOf(options_.api), ": the warm-up request failed (",
                                       FailureName(record.failure.kind), "): ", record.failure.reason));
  }

  Status RunOnce(const std::string& name) {
    std::string not_emptied_why;
    if (options_.compare) not_emptied_why = EmptyEngine();
    // Salts that differ by run: what one left in any cache is unknown to another. Warm is cold again.
    const std::string salt =
        options_.compare ? Text(found_.salt, name == "off" ? " off" : " on") : found_.salt;
    DriveOptions drive = DriveAs(name, salt);
    drive.ask.without_cistern = name == "off";
    const CacheCounters before = Counters();
    Result<Driven> driven = Drive(plan_, drive, http_, answers_);
    if (!driven) return driven.error();
    found_.interrupted = driven->interrupted;
    RunReport report = ReportOf(name, std::move(driven->records), before, Counters());
    if (options_.compare) report.engine_emptied = not_emptied_why.empty();
    report.engine_not_emptied_why = std::move(not_emptied_why);
    found_.runs.push_back(std::move(report));
    return Status();
  }

  CacheCounters Counters() {
    const Result<HttpAnswer> answer = http_.Get(options_.url + "/metrics", QuestionUs(), -1);
    return answer && answer->status == 200 ? ReadCounters(answer->body) : CacheCounters();
  }

  // vLLM's way; it says false while a request or a save still holds blocks. Why it is not emptied, or
  // nothing.
  std::string EmptyEngine() {
    const SystemClock clock;
    const Instant until = clock.Now().PlusUs(kEmptyUs);
    while (true) {
      const Result<HttpAnswer> answer =
          http_.Post(options_.url + "/reset_prefix_cache", QuestionUs(), WakeFd());
      if (!answer) return std::string(answer.error().message());
      if (answer->status != 200) {
        return Text("/reset_prefix_cache answers HTTP ", answer->status,
                    "; vLLM offers it with VLLM_SERVER_DEV_MODE=1");
      }
      json::error_code error;
      const json::value said = json::parse(answer->body, error);
      const json::object* object = error ? nullptr : said.if_object();
      const json::value* success = object ? object->if_contains("success") : nullptr;
      if (!success || !success->is_bool() || success->get_bool()) return {};  // older ones say nothing
      if (clock.Now() > until || !http_.Run(kEmptyAgainUs, WakeFd()).ok()) {
        return "/reset_prefix_cache says that blocks are still in use";
      }
    }
  }

  void Note() {
    const RunReport* warm = options_.compare && found_.runs.size() == 3 ? &found_.runs[2] : nullptr;
    if (warm && !warm->engine_emptied.value_or(false)) {
      found_.notes.push_back(Text("warm includes the engine's own prefix cache, which could not be emptied: ",
                                  warm->engine_not_emptied_why));
    }
    if (warm &&
        std::ranges::find(warm->hits.sources, "cistern", &HitSource::name) == warm->hits.sources.end()) {
      found_.notes.push_back(
          "the server's /metrics tells nothing of Cistern's connector: is it on? what warm gains may be "
          "another's");
    }
    const bool told =
        std::ranges::all_of(found_.runs, [](const RunReport& run) { return run.hits.share.has_value(); });
    if (!told) {
      found_.notes.push_back(
          "hit share is not told: vLLM tells it with --enable-prompt-tokens-details, or by /metrics");
    }
    const bool counted = std::ranges::all_of(
        found_.runs, [](const RunReport& run) { return run.answered == 0 || run.output_tokens.has_value(); });
    if (!counted) {
      found_.notes.push_back(
          "the server does not count tokens (no usage): per token means per piece of the stream");
    }
    if (found_.interrupted) {
      found_.notes.push_back("interrupted: the figures are of what was answered by then");
    }
  }

  const MeasureOptions& options_;
  const Plan& plan_;
  HttpClient& http_;
  std::vector<std::string> answers_;  // of the first run: all runs ask the same
  Measurement found_;
};

}  // namespace

Result<Measurement> Measure(const MeasureOptions& options, const Plan& plan, HttpClient& http) {
  return Measuring(options, plan, http).Run();
}

Result<std::vector<std::string>> ModelNames(std::string_view body) {
  json::error_code error;
  const json::value value = json::parse(body, error);
  const json::object* object = error ? nullptr : value.if_object();
  const json::value* data = object ? object->if_contains("data") : nullptr;
  if (!data || !data->is_array()) return Error(Code::kMismatch, "is no list of models");
  std::vector<std::string> names;
  for (const json::value& model : data->get_array()) {
    const json::object* one = model.if_object();
    const json::value* id = one ? one->if_contains("id") : nullptr;
    if (id && id->is_string()) names.emplace_back(id->get_string());
  }
  return names;
}

}  // namespace cistern
