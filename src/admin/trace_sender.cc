// SPDX-License-Identifier: Apache-2.0
#include "admin/trace_sender.h"

#include <curl/curl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/format.h"
#include "base/metric_registry.h"
#include "base/nearest.h"

namespace cistern::admin {
namespace {

constexpr long kConnectMs = 2'000, kAnswerMs = 10'000;
constexpr std::int64_t kFirstPauseMs = 1'000, kLongestPauseMs = 60'000;
constexpr int kPollMs = 1'000;

std::size_t Discard(char*, std::size_t size, std::size_t count, void*) { return size * count; }

}  // namespace

Result<std::string> ParseTraceEndpoint(std::string_view field, std::string_view text) {
  const auto wrong = [&] {
    return Error(Code::kInvalid,
                 Text(field, ": \"", Shown(text),
                      "\" is no endpoint of OTLP over HTTP; give one as http://127.0.0.1:4318, or none"));
  };
  std::string_view rest = text;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else {
    return wrong();
  }
  const bool printable = std::ranges::all_of(rest, [](char c) { return c > ' ' && c < 0x7f; });
  const std::size_t slash = rest.find('/');
  if (!printable || rest.empty() || slash == 0 || rest.front() == ':' ||
      rest.find_first_of("@?#\"") != rest.npos)
    return wrong();
  const bool no_path = slash == rest.npos || slash == rest.size() - 1;
  if (!no_path) return std::string(text);
  return Text(text.substr(0, text.size() - (slash == rest.npos ? 0 : 1)), "/v1/traces");
}

class TraceSender::Body final {
 public:
  Body(std::string endpoint, TraceResource resource, Logger& log)
      : endpoint_(std::move(endpoint)), resource_(std::move(resource)), log_(log) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    multi_ = curl_multi_init();
    thread_ = std::thread([this] { Run(); });
  }
  ~Body() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    curl_multi_wakeup(multi_);
    thread_.join();
    curl_multi_cleanup(multi_);
    curl_global_cleanup();
  }

  void Add(const SlowCall& call) {
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.size() == kMaxWaiting) {
        waiting_.pop_front();
        lost_.fetch_add(1, std::memory_order_relaxed);
      }
      // The same ids however often it is sent: a collector may have taken what it did not answer.
      waiting_.push_back({.call = call, .trace_high = random_(), .trace_low = Id(), .span = Id()});
    }
    changed_.notify_one();
  }

  std::uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
  std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  void Run() {
    std::int64_t pause_ms = 0;
    for (;;) {
      std::vector<TracedCall> calls;
      {
        std::unique_lock lock(mutex_);
        if (pause_ms > 0) changed_.wait_for(lock, std::chrono::milliseconds(pause_ms), [&] { return stop_; });
        changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
        if (stop_) return;
        for (; calls.size() < kMostAtOnce && !waiting_.empty(); waiting_.pop_front())
          calls.push_back(std::move(waiting_.front()));
      }
      const Status told = Tell(TracesText(resource_, calls, UnixAtZero()));
      Say(told);
      if (told.ok()) {
        sent_.fetch_add(calls.size(), std::memory_order_relaxed);
        pause_ms = 0;
      } else if (told.code() == Code::kInvalid) {  // it will not have them at another time either
        lost_.fetch_add(calls.size(), std::memory_order_relaxed);
        pause_ms = 0;
      } else {
        PutBack(std::move(calls));
        pause_ms = std::clamp(2 * pause_ms, kFirstPauseMs, kLongestPauseMs);
      }
    }
  }

  // The latest of them, as many as there is room for before what has come meanwhile.
  void PutBack(std::vector<TracedCall> calls) {
    const std::lock_guard lock(mutex_);
    for (; !calls.empty() && waiting_.size() < kMaxWaiting; calls.pop_back())
      waiting_.push_front(std::move(calls.back()));
    lost_.fetch_add(calls.size(), std::memory_order_relaxed);
  }

  // Once when it begins to fail, and once when it ends.
  void Say(const Status& told) {
    if (told.ok() == !failing_) return;
    failing_ = !told.ok();
    if (failing_) {
      log_.Log(LogLevel::kWarning, "otlp: ", endpoint_, " does not take traces (", told.message(),
               "); the last ", kMaxWaiting, " wait for it, and this is not said again before it does");
    } else {
      log_.Log(LogLevel::kInfo, "otlp: ", endpoint_, " takes traces again; ", lost(), " were lost");
    }
  }

  // kInvalid: it will not have them. kUnavailable: not now.
  Status Tell(const std::string& text) {
    CURL* easy = curl_easy_init();
    if (easy == nullptr) return Status(Code::kUnavailable, "libcurl cannot be set up");
    curl_slist* headers = curl_slist_append(nullptr, "Content-Type: application/json");
    headers = curl_slist_append(headers, "Expect:");
    curl_easy_setopt(easy, CURLOPT_URL, endpoint_.c_str());
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_PROXY, "");  // whatever the environment says
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, text.data());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(text.size()));
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, Discard);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, kAnswerMs);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // the node's end does not wait for a name to be found
    curl_multi_add_handle(multi_, easy);
    const CURLcode code = Perform();
    long answer = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &answer);
    curl_multi_remove_handle(multi_, easy);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    if (code != CURLE_OK) return Status(Code::kUnavailable, curl_easy_strerror(code));
    if (answer >= 200 && answer < 300) return Status();
    // As OTLP says: these are to be tried again, and no others.
    const bool again = answer == 429 || answer == 502 || answer == 503 || answer == 504;
    return Status(again ? Code::kUnavailable : Code::kInvalid, Text("it answered ", answer));
  }

  CURLcode Perform() {
    for (int running = 1; running > 0;) {
      if (curl_multi_perform(multi_, &running) != CURLM_OK) return CURLE_FAILED_INIT;
      {
        const std::lock_guard lock(mutex_);
        if (stop_) return CURLE_ABORTED_BY_CALLBACK;
      }
      if (running > 0) curl_multi_poll(multi_, nullptr, 0, kPollMs, nullptr);
    }
    int left = 0;
    const CURLMsg* message = curl_multi_info_read(multi_, &left);
    return message == nullptr ? CURLE_FAILED_INIT : message->data.result;
  }

  std::uint64_t Id() { return std::max<std::uint64_t>(random_(), 1); }

  std::int64_t UnixAtZero() const {
    const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(unix_now).count() - clock_.Now().ns;
  }

  const std::string endpoint_;
  const TraceResource resource_;
  Logger& log_;
  const SystemClock clock_;
  CURLM* multi_ = nullptr;
  bool failing_ = false;
  std::atomic<std::uint64_t> sent_{0}, lost_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_{std::random_device()()};
  std::deque<TracedCall> waiting_;
  bool stop_ = false;
  std::thread thread_;
};

TraceSender::TraceSender(std::string endpoint, TraceResource resource, Logger& log)
    : body_(std::make_unique<Body>(std::move(endpoint), std::move(resource), log)) {}
TraceSender::~TraceSender() = default;
void TraceSender::Add(const SlowCall& call) { body_->Add(call); }
std::uint64_t TraceSender::sent() const { return body_->sent(); }
std::uint64_t TraceSender::lost() const { return body_->lost(); }

void TraceSender::AddMetrics(MetricRegistry& registry, const TraceSender* sender) {
  registry.Add("traces", {"sent", MetricKind::kCounter, "slow calls that the collector of traces took"},
               [sender] { return sender == nullptr ? MetricValue() : MetricValue(sender->sent()); });
  registry.Add("traces",
               {"lost", MetricKind::kCounter, "slow calls that it did not take in time, or refused"},
               [sender] { return sender == nullptr ? MetricValue() : MetricValue(sender->lost()); });
}

}  // namespace cistern::admin
