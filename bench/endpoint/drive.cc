// SPDX-License-Identifier: Apache-2.0
#include "endpoint/drive.h"

#include <algorithm>
#include <map>
#include <memory>
#include <queue>
#include <utility>

#include "base/clock.h"
#include "base/format.h"
#include "base/units.h"

namespace cistern {
namespace {

constexpr std::size_t kMaxErrorBytes = 64u << 10;
constexpr std::int64_t kProgressUs = 200'000;  // between two reports of it

// One request on its way. It only notes; the driver looks at it after each turn of the loop.
class Asking final : public HttpListener {
 public:
  explicit Asking(const Clock& clock) : clock_(clock), heard_(clock.Now()) {}

  bool OnBytes(long status, std::string_view bytes) override {
    heard_ = clock_.Now();
    if (status == 200) return answer_.Feed(bytes, heard_);
    error_.append(bytes.substr(0, kMaxErrorBytes - std::min(error_.size(), kMaxErrorBytes)));
    return true;
  }
  void OnEnd(const HttpEnd& end) override {
    end_ = end;
    ended_ = true;
    heard_ = clock_.Now();
  }

  bool ended() const { return ended_; }
  Instant heard() const { return heard_; }
  const AnswerReader& answer() const { return answer_; }

  // After the end: what went wrong, or nothing.
  std::optional<Failure> Judge() {
    if (end_.status == 200) {
      std::optional<Failure> failure = answer_.Finish();
      if (failure && end_.broken) failure = {FailureKind::kEndedEarly, end_.reason};
      return failure;
    }
    if (end_.broken) return Failure{FailureKind::kConnection, end_.reason};
    return Failure{FailureKind::kStatus, Text("HTTP ", end_.status, ": ", ErrorText(error_))};
  }

 private:
  const Clock& clock_;
  Instant heard_;
  AnswerReader answer_;
  std::string error_;
  HttpEnd end_;
  bool ended_ = false;
};

class Driver {
 public:
  Driver(const Plan& plan, const DriveOptions& options, HttpClient& http, std::vector<std::string>& answers)
      : plan_(plan),
        options_(options),
        http_(http),
        answers_(answers),
        follower_(plan.requests.size(), kNone) {
    answers_.resize(plan.requests.size());
    driven_.records.resize(plan.requests.size());
    for (std::uint32_t i = 0; i < plan.requests.size(); ++i) {
      if (plan.requests[i].after) {
        follower_[*plan.requests[i].after] = i;
      } else {
        ready_.push({plan.requests[i].at_us, i});
      }
    }
  }

  Result<Driven> Run() {
    begin_ = clock_.Now();
    while (!ready_.empty() || !asking_.empty()) {
      const std::int64_t wait_us = StartWhatIsDue();
      Tell();
      if (Status status = http_.Run(wait_us, options_.interrupt ? options_.interrupt->fd() : -1);
          !status.ok()) {
        Abandon();
        return Error(status);
      }
      CollectEnds();
      if (options_.interrupt && options_.interrupt->Seen()) {
        driven_.interrupted = true;
        Abandon();
        break;
      }
    }
    return std::move(driven_);
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct InFlight {
    std::unique_ptr<Asking> listener;
    HttpClient::Id transfer = 0;
  };

  std::int64_t SinceBegin(Instant when) const { return when.UsSince(begin_); }

  // Starts at most one request, so that it leaves before the next one's text is made. Returns how long the
  // loop may wait.
  std::int64_t StartWhatIsDue() {
    if (ready_.empty() || asking_.size() >= plan_.in_flight) return kProgressUs;
    const auto [at_us, index] = ready_.top();
    const std::int64_t early_us = static_cast<std::int64_t>(at_us) - SinceBegin(clock_.Now());
    if (early_us > 0) return std::min(early_us, kProgressUs);
    ready_.pop();
    Start(index);
    return 0;
  }

  void Start(std::uint32_t index) {
    const PlannedRequest& request = plan_.requests[index];
    RequestRecord& record = driven_.records[index];
    const std::vector<Message> messages = Conversation(plan_, index, options_.salt, answers_);
    std::string body = BodyOf(options_.ask, messages, request.answer_tokens);
    InFlight& asking = asking_[index];
    asking.listener = std::make_unique<Asking>(clock_);
    record.outcome = Outcome::kUnfinished;
    record.sent_us = SinceBegin(clock_.Now());
    // Without a rate nothing is due at a time, so nothing is late.
    record.held |= request.at_us > 0 && static_cast<std::int64_t>(request.at_us) <= full_us_;
    asking.transfer =
        http_.Post(options_.url + std::string(PathOf(options_.ask.api)), std::move(body), *asking.listener);
  }

  void CollectEnds() {
    const Instant now = clock_.Now();
    if (asking_.size() >= plan_.in_flight) full_us_ = SinceBegin(now);
    for (auto at = asking_.begin(); at != asking_.end();) {
      Asking& asking = *at->second.listener;
      std::optional<Failure> failure;
      if (asking.ended()) {
        failure = asking.Judge();
      } else if (now.UsSince(asking.heard()) >= options_.silence_us) {
        http_.Cancel(at->second.transfer);
        failure = {FailureKind::kTimeout,
                   Text("nothing came for ", DurationText(static_cast<std::uint64_t>(options_.silence_us)),
                        ": --timeout gives a request longer")};
      } else {
        ++at;
        continue;
      }
      End(at->first, asking, std::move(failure));
      at = asking_.erase(at);
    }
  }

  void End(std::uint32_t index, const Asking& asking, std::optional<Failure> failure) {
    RequestRecord& record = driven_.records[index];
    Keep(record, asking);
    record.outcome = failure ? Outcome::kFailed : Outcome::kAnswered;
    if (failure) {
      record.failure = std::move(*failure);
      ++failed_;
    }
    if (std::string& answer = answers_[index]; answer.empty()) {
      const bool said = record.outcome == Outcome::kAnswered && !asking.answer().text().empty();
      answer = said ? asking.answer().text() : MadeUpAnswer(plan_, index);
    }
    ++done_;
    if (const std::uint32_t next = follower_[index]; next != kNone) {
      const std::uint64_t at_us = plan_.requests[next].at_us;
      driven_.records[next].held = at_us > 0 && static_cast<std::int64_t>(at_us) < SinceBegin(clock_.Now());
      ready_.push({at_us, next});
    }
  }

  void Keep(RequestRecord& record, const Asking& asking) {
    const AnswerReader& answer = asking.answer();
    for (const Instant piece : answer.pieces()) record.pieces_us.push_back(SinceBegin(piece));
    record.usage = answer.usage();
    record.end_us = SinceBegin(answer.pieces().empty() ? asking.heard() : answer.last());
  }

  void Abandon() {
    for (auto& [index, asking] : asking_) {
      http_.Cancel(asking.transfer);
      Keep(driven_.records[index], *asking.listener);
    }
    asking_.clear();
  }

  void Tell() {
    const Instant now = clock_.Now();
    if (!options_.progress || now < tell_next_) return;
    tell_next_ = now.PlusUs(kProgressUs);
    options_.progress({options_.name, done_, failed_, asking_.size(), plan_.requests.size()});
  }

  const Plan& plan_;
  const DriveOptions& options_;
  HttpClient& http_;
  std::vector<std::string>& answers_;
  const SystemClock clock_;
  Instant begin_;
  Instant tell_next_;
  using DeadlineHeap = std::pair<std::uint64_t, std::uint32_t>;  // when, in us, and which
  std::priority_queue<DeadlineHeap, std::vector<DeadlineHeap>, std::greater<>> ready_;
  std::vector<std::uint32_t> follower_;
  std::map<std::uint32_t, InFlight> asking_;
  std::int64_t full_us_ = -1;  // when the limit in flight was last reached
  std::uint64_t done_ = 0, failed_ = 0;
  Driven driven_;
};

}  // namespace

Result<Driven> Drive(const Plan& plan, const DriveOptions& options, HttpClient& http,
                     std::vector<std::string>& answers) {
  return Driver(plan, options, http, answers).Run();
}

}  // namespace cistern
