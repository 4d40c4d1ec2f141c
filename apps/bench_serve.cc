// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <optional>

#include "base/fd.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "command_line.h"
#include "commands.h"
#include "endpoint/figures.h"
#include "endpoint/measure.h"
#include "endpoint/page.h"
#include "workload/request.h"

namespace cistern {
namespace {

constexpr std::string_view kName = "cistern bench serve";
constexpr double kMaxRate = 100'000;
constexpr std::string_view kExamples =
    "  cistern bench serve --compare --html pays.html\n"
    "  cistern bench serve --shape chat --users 16 --rounds 6 --rate 2 --system-tokens 2000\n"
    "  cistern bench serve --shape long --context-tokens 32000 --requests 4 --repeat 3 --json\n"
    "  cistern bench serve --trace mooncake.jsonl --requests 500 --speed 10 --url https://host/v1";

// What the flags say, before it is one shape or another.
struct Flags {
  std::string shape = "chat", trace, api = "chat", url = "http://127.0.0.1:8000", key_file, html;
  ChatShape chat;
  LongShape long_context;
  TraceShape replayed;
  std::uint64_t requests = 0, answer_tokens = 0, in_flight = 0, timeout_us = 300'000'000;
  std::optional<double> rate;
  bool json = false, no_warm_up = false;
  std::uint64_t seed = 1;
  MeasureOptions measure;
  // The flags of one shape or the other that were given, each with the shapes that know it.
  std::vector<std::pair<std::string, std::string_view>> of_shapes;
};

// A number with a fraction, from `least` to `most`.
Result<double> ParseNumber(std::string_view name, std::string_view text, double least, double most) {
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || !(value >= least && value <= most)) {
    return Error(Code::kInvalid, Text(name, ": ", Shown(text), " is not a number from ", least, " to ", most,
                                      ", such as 2.5"));
  }
  return value;
}

void AddShapes(CommandLine& line, Flags& flags) {
  // A flag of `shapes` only ("chat long"): given for another shape it is a mistake that Check names.
  const auto count = [&](std::string flag, std::string_view shapes, std::string_view help, std::uint64_t* to,
                         std::uint64_t least, std::uint64_t most) {
    line.Flag(flag, "N", help, [&flags, flag, shapes, to, least, most](std::string_view text) {
      Result<std::uint64_t> value = ParseCount(flag, text, least, most);
      if (value) *to = *value;
      flags.of_shapes.emplace_back(flag, shapes);
      return value ? Status() : value.error();
    });
  };
  line.Text("--shape", "NAME", "chat (users in rounds) or long (single-shot long context); default: chat",
            &flags.shape);
  line.Text("--trace", "FILE", "instead of a shape: JSON lines, or generated:sessions=200", &flags.trace);
  count("--users", "chat", "chat: users at a time; default: 8", &flags.chat.users, 1, kMaxInFlight);
  count("--rounds", "chat", "chat: questions of a user before another comes; default: 5", &flags.chat.rounds,
        1, 10'000);
  count("--system-tokens", "chat", "chat: system prompt that all share; default: 1000",
        &flags.chat.system_tokens, 0, kMaxPlannedTokens);
  count("--history-tokens", "chat", "chat: what a user brings along; default: 2000",
        &flags.chat.history_tokens, 0, kMaxPlannedTokens);
  count("--question-tokens", "chat", "chat: each question; default: 32", &flags.chat.question_tokens, 1,
        kMaxPlannedTokens);
  count("--context-tokens", "long", "long: each prompt; default: 8000", &flags.long_context.context_tokens, 1,
        kMaxPlannedTokens);
  count("--repeat", "long", "long: how often each is asked, one round after another; default: 2",
        &flags.long_context.repeat, 1, kMaxPlannedRequests);
  count("--answer-tokens", "chat long", "length of each answer; default: 64, long: 16", &flags.answer_tokens,
        1, kMaxPlannedTokens);
  count("--requests", "chat long trace",
        "chat: in all; default: users x rounds. long: different ones; default: 8. trace: the first N",
        &flags.requests, 1, kMaxPlannedRequests);
  count("--in-flight", "long trace", "requests at a time, at most; default: 1, trace: 256", &flags.in_flight,
        1, kMaxInFlight);
  line.Flag("--rate", "R",
            "chat, long: requests a second, at random times; 0: as answers come; default: 1, long: 0",
            [&flags](std::string_view text) {
              const Result<double> value = ParseNumber("--rate", text, 0, kMaxRate);
              if (value) flags.rate = *value;
              flags.of_shapes.emplace_back("--rate", "chat long");
              return value ? Status() : value.error();
            });
  line.Flag("--speed", "X", "trace: so many times as fast; default: 1", [&flags](std::string_view text) {
    const Result<double> value = ParseNumber("--speed", text, 0.001, 1e6);
    if (value) flags.replayed.speed = *value;
    flags.of_shapes.emplace_back("--speed", "trace");
    return value ? Status() : value.error();
  });
}

void AddRest(CommandLine& line, Flags& flags) {
  line.Text("--url", "URL", "of the server, http or https; default: http://127.0.0.1:8000", &flags.url);
  line.Text("--model", "NAME", "default: the first that the server names", &flags.measure.model);
  line.Text("--api", "NAME", "chat or completions; default: chat", &flags.api);
  line.Text("--api-key-file", "FILE", "its first line is the key; default: $OPENAI_API_KEY", &flags.key_file);
  line.Switch("--compare", "the same work three times: Cistern off, cold, warm", &flags.measure.compare);
  line.Text("--salt", "TEXT", "makes all prompts new to every cache; default: none, --compare: a fresh one",
            &flags.measure.salt);
  line.Count("--seed", "of texts and times; default: 1", &flags.seed, 0, ~std::uint64_t{0});
  line.Switch("--plain", "send what OpenAI's own API knows only (answers may then end before their length)",
              &flags.measure.plain);
  line.Switch("--no-warm-up", "without the unmeasured request before the first run", &flags.no_warm_up);
  line.Duration("--timeout", "give a request up that hears nothing for so long; default: 5min",
                &flags.timeout_us);
  line.Text("--html", "FILE", "write a page with plots", &flags.html);
  line.Switch("--json", "one JSON object on stdout", &flags.json);
}

// One of two names, or the message.
Status CheckName(std::string_view flag, std::string_view given, std::string_view one,
                 std::string_view other) {
  if (given == one || given == other) return Status();
  const std::string_view known[] = {one, other};
  return Status(Code::kInvalid, Text(flag, ": ", UnknownName("name", given, known)));
}

Status Check(const CommandLine& line, Flags& flags) {
  if (!flags.trace.empty() && line.Given("--shape"))
    return Status(Code::kInvalid, "--trace stands instead of --shape: give one of them");
  if (Status status = CheckName("--shape", flags.shape, "chat", "long"); !status.ok()) return status;
  if (Status status = CheckName("--api", flags.api, "chat", "completions"); !status.ok()) return status;
  const std::string_view shape = flags.trace.empty() ? std::string_view(flags.shape) : "trace";
  for (const auto& [flag, shapes] : flags.of_shapes) {
    if (shapes.find(shape) == shapes.npos) {
      return Status(Code::kInvalid, Text(flag, " means nothing for ", shape, ": it is for ", shapes));
    }
  }
  if (flags.measure.compare && flags.measure.plain) {
    return Status(Code::kInvalid,
                  "--compare turns Cistern off by a field that --plain forbids to send: give one of them");
  }
  if (flags.timeout_us < 1'000 || flags.timeout_us > 86'400'000'000) {
    return Status(Code::kInvalid,
                  Text("--timeout: ", DurationText(flags.timeout_us), " is out of range: from 1ms to 24h"));
  }
  Result<std::string> base = BaseUrl(flags.url);
  if (!base) return base.error();
  flags.measure.url = *base;
  flags.measure.api = flags.api == "chat" ? Api::kChat : Api::kCompletions;
  flags.measure.silence_us = static_cast<std::int64_t>(flags.timeout_us);
  flags.measure.warm_up = !flags.no_warm_up;
  return Status();
}

Result<Plan> MakePlan(const Flags& flags, std::string& about) {
  const std::uint64_t seed = flags.seed;
  const auto rate_text = [](double rate) {
    return rate > 0 ? Text(rate, " requests/s") : std::string("as answers come");
  };
  if (!flags.trace.empty()) {
    TraceShape shape = flags.replayed;
    shape.requests = flags.requests;
    if (flags.in_flight) shape.in_flight = flags.in_flight;
    Result<std::unique_ptr<workload::RequestSource>> source =
        workload::OpenRequests(flags.trace, workload::Ids::kTexts);
    if (!source) return Error(source.error());
    Result<Plan> plan = PlanTrace(shape, **source, seed);
    if (plan) {
      about = Text("trace ", flags.trace, ": ", plan->requests.size(), " requests at ", shape.speed,
                   " times its speed, at most ", shape.in_flight, " in flight");
    }
    return plan;
  }
  if (flags.shape == "long") {
    LongShape shape = flags.long_context;
    if (flags.requests) shape.requests = flags.requests;
    if (flags.answer_tokens) shape.answer_tokens = flags.answer_tokens;
    if (flags.in_flight) shape.in_flight = flags.in_flight;
    shape.rate = flags.rate.value_or(shape.rate);
    about =
        Text("long: ", shape.requests, " prompts of ", shape.context_tokens, " tokens, each asked ",
             shape.repeat == 1 ? std::string("once") : Text(shape.repeat, " times"), ", answers of ",
             shape.answer_tokens, ", ", rate_text(shape.rate), ", at most ", shape.in_flight, " in flight");
    return PlanLong(shape, seed);
  }
  ChatShape shape = flags.chat;
  shape.requests = flags.requests;
  if (flags.answer_tokens) shape.answer_tokens = flags.answer_tokens;
  shape.rate = flags.rate.value_or(shape.rate);
  Result<Plan> plan = PlanChat(shape, seed);
  if (plan) {
    about = Text("chat: ", plan->requests.size(), " requests of ", shape.users, " users at a time in ",
                 shape.rounds, " rounds, ", shape.system_tokens, " tokens shared, ", shape.history_tokens,
                 " of each user, questions of ", shape.question_tokens, ", answers of ", shape.answer_tokens,
                 ", ", rate_text(shape.rate));
  }
  return plan;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The key's text is never part of a message.
Result<std::string> ApiKey(const std::string& file) {
  std::string key;
  if (file.empty()) {
    key = Environment("OPENAI_API_KEY");
  } else {
    errno = 0;
    std::ifstream in(file);
    if (!std::getline(in, key)) {
      return Error(Code::kInvalid, Text("--api-key-file: ", ShownPath(file), ": ",
                                        errno == 0 ? std::string("has no line") : ErrnoText(errno)));
    }
  }
  while (key.ends_with('\r') || key.ends_with(' ') || key.ends_with('\n')) key.pop_back();
  return key;
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

// Found out before the measurement, not after it.
Status TryToWrite(const std::string& path) {
  if (path == "-") return Status(Code::kInvalid, "--html: standard output has the report; name a file");
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (!file) return Status(Code::kIoError, Text("--html: ", ShownPath(path), ": ", ErrnoText(errno)));
  std::fclose(file);
  return Status();
}

Status WritePage(const std::string& path, const std::string& html) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  const bool written = file && std::fwrite(html.data(), 1, html.size(), file) == html.size();
  if ((file && std::fclose(file) != 0) || !written) {
    return Status(Code::kIoError, Text("--html: ", ShownPath(path), ": ", ErrnoText(errno)));
  }
  return Status();
}

void ShowProgress(const Progress& progress) {
  std::fprintf(
      stderr, "\r\033[K%.*s: %llu of %llu done, %llu failed, %llu in flight",
      static_cast<int>(progress.run.size()), progress.run.data(),
      static_cast<unsigned long long>(progress.done), static_cast<unsigned long long>(progress.planned),
      static_cast<unsigned long long>(progress.failed), static_cast<unsigned long long>(progress.in_flight));
}

Status MeasureAndShow(Flags& flags, const Plan& plan, const std::string& about, int& exit) {
  const Result<std::string> key = ApiKey(flags.key_file);
  if (!key) return key.error();
  Result<std::unique_ptr<HttpClient>> http =
      HttpClient::Open({.authorities_file = Environment("SSL_CERT_FILE"), .api_key = *key});
  if (!http) return http.error();
  Result<Interrupt> interrupt = Interrupt::Open();
  if (!interrupt) return interrupt.error();
  flags.measure.interrupt = &*interrupt;
  const bool live = isatty(STDERR_FILENO) != 0;
  if (live) flags.measure.progress = ShowProgress;
  const Result<Measurement> found = Measure(flags.measure, plan, **http);
  if (live) std::fputs("\r\033[K", stderr);
  if (!found) return found.error();
  const Heading heading{.shape = about, .api = flags.api, .when = Now(), .seed = flags.seed};
  const std::string text = flags.json ? JsonText(heading, *found) + "\n" : TableText(heading, *found);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  if (!flags.html.empty()) {
    if (Status status = WritePage(flags.html, PageHtml(heading, *found)); !status.ok()) return status;
  }
  for (const std::string& failure : flags.json ? FailureLines(found->runs) : std::vector<std::string>()) {
    std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(kName.size()), kName.data(), failure.c_str());
  }
  const bool answered =
      std::ranges::all_of(found->runs, [](const RunReport& run) { return run.answered > 0; });
  exit = answered && !found->interrupted ? kExitOk : kExitFailed;
  return Status();
}

}  // namespace

int RunBenchServe(int argc, const char* const* argv) {
  Flags flags;
  CommandLine line(kName,
                   "Measure an OpenAI-compatible endpoint as its users meet it: first token, time per token, "
                   "throughput, hit share. The same flags ask the same texts.",
                   kExamples);
  AddShapes(line, flags);
  AddRest(line, flags);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (Status status = Check(line, flags); !status.ok()) return Complain(kName, status);
  std::string about;
  const Result<Plan> plan = MakePlan(flags, about);
  if (!plan) return Complain(kName, plan.error());
  if (!flags.html.empty()) {
    if (Status status = TryToWrite(flags.html); !status.ok()) return Complain(kName, status);
  }
  int exit = kExitFailed;
  if (Status status = MeasureAndShow(flags, *plan, about, exit); !status.ok()) return Complain(kName, status);
  return exit;
}

}  // namespace cistern
