// SPDX-License-Identifier: Apache-2.0
#include "etcd/gateway.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/format.h"
#include "base/nearest.h"
#include "etcd/curl_loop.h"
#include "etcd/gateway_message.h"

namespace cistern::etcd {
namespace {

constexpr std::size_t kMaxShortAnswer = 64u << 10;
constexpr std::size_t kMaxEndpoints = 16;
constexpr long kHttpOk = 200;

// gRPC's, as far as etcd says them.
constexpr std::int64_t kInvalidArgument = 3, kNotFound = 5, kPermissionDenied = 7, kResourceExhausted = 8,
                       kFailedPrecondition = 9, kOutOfRange = 11, kUnimplemented = 12, kDataLoss = 15,
                       kUnauthenticated = 16;

std::array<int, 3> VersionNumbers(std::string_view version) {
  std::array<int, 3> numbers{};
  for (int& number : numbers) {
    const auto read = std::from_chars(version.data(), version.data() + version.size(), number);
    version.remove_prefix(static_cast<std::size_t>(read.ptr - version.data()));
    if (!version.starts_with('.')) break;
    version.remove_prefix(1);
  }
  return numbers;
}

bool Says(const GatewayError& error, std::string_view part) {
  return error.message.find(part) != std::string::npos;
}

// A login that was good and is no more: etcd was restarted, or its users changed.
bool WantsNewLogin(const GatewayError& error) {
  return error.code == kUnauthenticated || Says(error, "invalid auth token") ||
         Says(error, "auth store is old");
}

// What etcd's own refusal means for who asked.
Status StatusOf(const std::string& endpoint, const GatewayError& error) {
  const auto status = [&](Code code, std::string_view way_out = "") {
    return Status(code, Text("etcd ", endpoint, ": ", Shown(error.message), way_out));
  };
  switch (error.code) {
    case kInvalidArgument:
      if (Says(error, "user name is empty"))
        return status(Code::kDenied,
                      ": it asks for a login, and none is given here: name an etcd without users");
      if (Says(error, "authentication failed"))
        return status(Code::kDenied, ": the user or the password is wrong");
      if (WantsNewLogin(error)) return status(Code::kDenied);
      return status(Code::kInvalid);
    case kNotFound: return status(Says(error, "lease not found") ? Code::kLapsed : Code::kIoError);
    case kPermissionDenied:
      return status(Code::kDenied, ": grant the user's role all keys under the cell's prefix");
    case kUnauthenticated: return status(Code::kDenied);
    case kResourceExhausted:
      if (Says(error, "space exceeded"))
        return status(Code::kBusy,
                      ": compact and defragment it or raise its --quota-backend-bytes, then disarm its alarm "
                      "(etcdctl alarm disarm)");
      return status(Code::kBusy);
    case kOutOfRange:
      if (Says(error, "compacted")) return status(Code::kLapsed);
      if (Says(error, "future revision"))
        return status(Code::kMismatch, ": was it restored from a backup, or is it another etcd?");
      return status(Code::kInvalid);
    case kFailedPrecondition:
    case kDataLoss: return status(Code::kIoError);
    case kUnimplemented: return status(Code::kMismatch);
    default: return status(Code::kTooLate);  // it gave up, or whoever it asked did
  }
}

// A call as the gateway has it.
struct Question {
  std::string path;
  std::string body;
  bool may_repeat = false;  // twice has the same effect as once
};

// What an endpoint said, or why it did not.
struct Reply {
  Status status;
  std::string endpoint, body;
  bool ask_another = false;  // it is this endpoint's fault, and nothing has changed or may be changed twice
  bool login_again = false;
};

struct Endpoint {
  std::string url;
  bool checked = false;  // its version
};

class GatewayClient;

class GatewayWatch final : public Watch {
 public:
  GatewayWatch(GatewayClient& client, KeyRange keys, std::int64_t revision)
      : client_(client), keys_(std::move(keys)), next_revision_(revision) {
    CISTERN_ASSERT(revision >= 1);
  }

  Executor& executor() const;
  Task<Result<std::vector<WatchEvent>>> Next(Instant deadline) override;
  std::int64_t next_revision() const override { return next_revision_; }
  std::int64_t compact_revision() const override { return compact_revision_; }

 private:
  // What a line brings, all revisions that are whole; kOk and nothing: it has none.
  Task<Result<std::vector<WatchEvent>>> Take(std::string line);
  Status Ended();

  GatewayClient& client_;
  const KeyRange keys_;
  std::int64_t next_revision_, compact_revision_ = 0;
  std::string endpoint_;
  std::unique_ptr<CurlTransfer> transfer_;
  std::vector<WatchEvent> part_;  // of a revision that goes on
  std::size_t part_bytes_ = 0;    // of the lines that brought it
  Status end_;
};

class GatewayClient final : public Etcd {
 public:
  GatewayClient(io::Loop& loop, GatewayOptions options, std::unique_ptr<CurlLoop> curl)
      : loop_(loop), options_(std::move(options)), curl_(std::move(curl)) {
    for (std::string url : options_.endpoints) {
      while (url.ends_with('/')) url.pop_back();
      endpoints_.push_back({.url = std::move(url)});
    }
  }
  ~GatewayClient() override { CISTERN_ASSERT(calls_ == 0); }

  Executor& executor() override { return loop_.executor(); }

  Task<Result<RangeAnswer>> Range(RangeRequest request, Instant deadline) override {
    if (Status status = Validate(request); !status.ok()) co_return Error(std::move(status));
    auto asked = AskFor({"/v3/kv/range", RangeQuestion(request), true}, ReadRangeAnswer, deadline);
    co_return co_await asked;
  }

  Task<Result<TransactionAnswer>> Commit(Transaction transaction, Instant deadline) override {
    if (Status status = Validate(transaction); !status.ok()) co_return Error(std::move(status));
    const auto read = [&transaction](Executor& executor, std::string_view body) {
      return ReadAnswerOf(executor, transaction, body);
    };
    auto asked = AskFor({"/v3/kv/txn", CommitQuestion(transaction), false}, read, deadline);
    co_return co_await asked;
  }

  Task<Result<LeaseAnswer>> Grant(std::int64_t ttl_s, Instant deadline) override {
    if (Status status = ValidateLeaseTtl(ttl_s); !status.ok()) co_return Error(std::move(status));
    auto asked = AskFor({"/v3/lease/grant", GrantQuestion(ttl_s), false}, ReadLeaseAnswer, deadline);
    co_return co_await asked;
  }
  Task<Result<LeaseAnswer>> KeepAlive(std::int64_t lease, Instant deadline) override {
    return AskFor({"/v3/lease/keepalive", LeaseQuestion(lease), true}, ReadLeaseAnswer, deadline);
  }
  Task<Status> Revoke(std::int64_t lease, Instant deadline) override {
    auto asked = Ask({"/v3/lease/revoke", LeaseQuestion(lease), true}, deadline);
    Reply reply = co_await asked;
    if (reply.status.code() == Code::kLapsed) co_return Status();  // it has ended
    co_return std::move(reply.status);
  }
  std::unique_ptr<Watch> WatchFrom(KeyRange keys, std::int64_t revision) override {
    return std::make_unique<GatewayWatch>(*this, std::move(keys), revision);
  }
  Task<Status> Compact(std::int64_t revision, Instant deadline) override {
    auto asked = Ask({"/v3/kv/compaction", CompactQuestion(revision), true}, deadline);
    Reply reply = co_await asked;
    if (reply.status.code() == Code::kLapsed) co_return Status();  // it was forgotten before
    co_return std::move(reply.status);
  }

  // A stream at an endpoint that answers; its name is left there.
  Task<Result<std::unique_ptr<CurlTransfer>>> OpenStream(std::string path, std::string body,
                                                         std::string& name, Instant deadline) {
    Status last;
    for (std::size_t tried = 0; tried < endpoints_.size(); ++tried) {
      Endpoint& endpoint = Preferred();
      Reply ready = co_await MakeReady(endpoint, Share(deadline, tried));
      if (ready.status.ok()) {
        name = endpoint.url;
        co_return Start(endpoint, std::move(path), std::move(body), Limits::kUnreadBytes);
      }
      last = std::move(ready.status);
      if (!ready.ask_another) break;
      Avoid(endpoint);
    }
    co_return Error(std::move(last));
  }
  // A stream at it broke, or what it says is no answer, or it wants another login.
  void StreamEnded(const std::string& endpoint, bool login_again) {
    if (login_again) token_.clear();
    for (Endpoint& each : endpoints_) {
      if (each.url == endpoint) Avoid(each);
    }
  }

 private:
  class Counted {
   public:
    explicit Counted(std::size_t& count) : count_(count) { ++count_; }
    ~Counted() { --count_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    std::size_t& count_;
  };

  static Status Named(const Reply& reply, const Status& status) {
    return Status(status.code(), Text("etcd ", reply.endpoint, ": ", status.message()));
  }

  Endpoint& Preferred() { return endpoints_[preferred_]; }
  // Another is asked first from now on; what it is may have changed when it is asked again.
  void Avoid(Endpoint& endpoint) {
    endpoint.checked = false;
    if (&endpoint == &Preferred()) preferred_ = (preferred_ + 1) % endpoints_.size();
  }
  // Until when an endpoint is waited for, if others may be asked behind it.
  Instant Share(Instant deadline, std::size_t tried) const {
    if (deadline.IsNever()) return deadline;
    const Instant now = loop_.clock().Now();
    const auto left = static_cast<std::int64_t>(endpoints_.size() - tried);
    return now.PlusNs(std::max<std::int64_t>(deadline.NsSince(now), 0) / left);
  }

  std::unique_ptr<CurlTransfer> Start(const Endpoint& endpoint, std::string path,
                                      std::optional<std::string> body, std::size_t unread_bytes) {
    return curl_->Start(
        {.url = endpoint.url + path, .body = std::move(body), .token = token_, .unread_bytes = unread_bytes});
  }

  // One request at one endpoint, to its end.
  Task<Reply> Exchange(Endpoint& endpoint, std::string path, std::optional<std::string> body, bool may_repeat,
                       std::size_t max_bytes, Instant deadline) {
    Reply reply{.endpoint = endpoint.url};
    const auto transfer = Start(endpoint, std::move(path), std::move(body), max_bytes);
    while (!transfer->ended()) {
      const Status in_time = co_await transfer->news().Wait(deadline);
      if (in_time.ok()) continue;
      reply.status = Status(Code::kTooLate, Text("etcd ", endpoint.url, ": no answer by the deadline"));
      reply.ask_another = may_repeat || !transfer->sent();
      co_return reply;
    }
    if (!transfer->failure().empty()) {
      reply.status = Status(transfer->sent() ? Code::kTooLate : Code::kGone,
                            Text("etcd ", endpoint.url, ": ", transfer->failure()));
      reply.ask_another = may_repeat || !transfer->sent();
      co_return reply;
    }
    if (transfer->too_long()) {
      reply.status = Status(may_repeat ? Code::kInvalid : Code::kTooLate,
                            Text("etcd ", endpoint.url, ": its answer is longer than ", max_bytes,
                                 " bytes; ask for fewer keys, by a limit"));
      co_return reply;
    }
    reply.body = transfer->TakeAll();
    Judge(reply, transfer->status(), may_repeat);
    co_return reply;
  }

  // What an answer that is there says of its call.
  void Judge(Reply& reply, long status, bool may_repeat) {
    const bool refused = status != kHttpOk || reply.body.starts_with("{\"error\"");
    if (!refused) return;
    const std::optional<GatewayError> error = ReadGatewayError(reply.body);
    if (!error) {
      // A proxy's own words where etcd cannot be reached through it.
      const bool passing = status == 502 || status == 503 || status == 504;
      reply.status = Status(passing ? Code::kTooLate : Code::kIoError,
                            Text("etcd ", reply.endpoint, ": HTTP ", status, " (", Shown(reply.body),
                                 "): this is no gateway of etcd's API, version 3"));
      reply.ask_another = may_repeat;
      return;
    }
    reply.status = StatusOf(reply.endpoint, *error);
    reply.ask_another = reply.status.code() == Code::kTooLate && may_repeat;
    reply.login_again = !options_.user.empty() && WantsNewLogin(*error);
  }

  // The version is known and good, and there is a login where one is needed.
  Task<Reply> MakeReady(Endpoint& endpoint, Instant deadline) {
    Reply reply{.endpoint = endpoint.url};
    if (!endpoint.checked) {
      auto asked = Exchange(endpoint, "/version", std::nullopt, true, kMaxShortAnswer, deadline);
      reply = co_await asked;
      if (!reply.status.ok()) co_return reply;
      const Result<std::string> version = ReadVersion(reply.body);
      reply.ask_another = true;
      if (!version) {
        reply.status = Named(reply, version.error());
        co_return reply;
      }
      if (VersionNumbers(*version) < VersionNumbers(kOldestVersion)) {
        reply.status =
            Status(Code::kMismatch, Text("etcd ", endpoint.url, ": its version is ", Shown(*version), "; ",
                                         kOldestVersion, " or a later one is needed"));
        co_return reply;
      }
      endpoint.checked = true;
      reply.ask_another = false;
    }
    if (!options_.user.empty() && token_.empty() && !needs_no_login_) {
      auto asked = Exchange(endpoint, "/v3/auth/authenticate",
                            LoginQuestion(options_.user, options_.password), true, kMaxShortAnswer, deadline);
      reply = co_await asked;
      if (reply.status.message().find("authentication is not enabled") != std::string_view::npos) {
        needs_no_login_ = true;
        reply.status = Status();
      } else if (reply.status.ok()) {
        Result<std::string> token = ReadToken(reply.body);
        if (token) token_ = std::move(*token);
        if (!token) reply.status = Named(reply, token.error());
      }
    }
    co_return reply;
  }

  // `share`: of the deadline, for what is as good at another endpoint.
  Task<Reply> AskOne(Endpoint& endpoint, const Question& question, Instant share, Instant deadline) {
    if (question.may_repeat) deadline = share;
    for (bool again = false;; again = true) {
      Reply ready = co_await MakeReady(endpoint, share);
      if (!ready.status.ok()) co_return ready;
      auto asked = Exchange(endpoint, question.path, question.body, question.may_repeat, Limits::kAnswerBytes,
                            deadline);
      Reply reply = co_await asked;
      // It was refused, so nothing of it has happened.
      if (!reply.login_again || again) co_return reply;
      token_.clear();
    }
  }

  Task<Reply> Ask(Question question, Instant deadline) {
    Reply reply;
    if (calls_ >= kMaxGatewayCalls) {
      reply.status =
          Status(Code::kBusy, Text("etcd ", Preferred().url, ": ", calls_, " calls are under way"));
      co_return reply;
    }
    const Counted counted(calls_);
    bool open = false;  // whether what was asked has taken effect
    for (std::size_t tried = 0; tried < endpoints_.size(); ++tried) {
      Endpoint& endpoint = Preferred();
      reply = co_await AskOne(endpoint, question, Share(deadline, tried), deadline);
      const Code code = reply.status.code();
      // Nor is a transaction sent anew to what is no etcd, or is one in trouble.
      if (code == Code::kTooLate || code == Code::kIoError || reply.ask_another) Avoid(endpoint);
      if (reply.status.ok() || !reply.ask_another) co_return reply;
      open = open || reply.status.code() == Code::kTooLate;
      if (deadline <= loop_.clock().Now()) break;
    }
    if (open) reply.status = Status(Code::kTooLate, std::string(reply.status.message()));
    co_return reply;
  }

  // Asks, and reads the answer by `read`; an answer that cannot be read names who gave it.
  template <class Read>
  std::invoke_result_t<Read&, Executor&, std::string_view> AskFor(Question question, Read read,
                                                                  Instant deadline) {
    auto asked = Ask(std::move(question), deadline);
    Reply reply = co_await asked;
    if (!reply.status.ok()) co_return Error(std::move(reply.status));
    auto reading = read(executor(), reply.body);
    auto answer = co_await reading;
    if (!answer) {
      StreamEnded(reply.endpoint, false);
      co_return Error(Named(reply, answer.error()));
    }
    co_return std::move(answer);
  }

  static Task<Result<TransactionAnswer>> ReadAnswerOf(Executor& executor, const Transaction& transaction,
                                                      std::string_view body) {
    auto answer = co_await ReadCommitAnswer(executor, body);
    if (!answer) co_return answer;
    const auto ranges = std::ranges::count(answer->succeeded ? transaction.then : transaction.otherwise,
                                           Operation::Kind::kRange, &Operation::kind);
    if (ranges != static_cast<std::ptrdiff_t>(answer->ranges.size()))
      co_return Error(Code::kIoError,
                      Text("it answers ", answer->ranges.size(), " ranges of a transaction with ", ranges));
    co_return answer;
  }

  io::Loop& loop_;
  const GatewayOptions options_;
  std::unique_ptr<CurlLoop> curl_;
  std::vector<Endpoint> endpoints_;
  std::size_t preferred_ = 0;
  std::string token_;
  bool needs_no_login_ = false;  // users are not enabled
  std::size_t calls_ = 0;
};

Executor& GatewayWatch::executor() const { return client_.executor(); }

// Why the stream has ended.
Status GatewayWatch::Ended() {
  if (transfer_->too_long())
    return Status(Code::kBusy, Text("etcd ", endpoint_, ": more than ", Limits::kUnreadBytes,
                                    " bytes of the watch were unread"));
  const std::string rest = transfer_->TakeAll();
  if (transfer_->failure().empty() && transfer_->status() != kHttpOk) {
    const std::optional<GatewayError> error = ReadGatewayError(rest);
    client_.StreamEnded(endpoint_, error && WantsNewLogin(*error));
    if (!error)
      return Status(Code::kIoError, Text("etcd ", endpoint_, ": HTTP ", transfer_->status(), " (",
                                         Shown(rest), ") instead of a watch"));
    const Status status = StatusOf(endpoint_, *error);
    return status.code() == Code::kTooLate ? Status(Code::kGone, std::string(status.message())) : status;
  }
  client_.StreamEnded(endpoint_, false);
  return Status(Code::kGone, Text("etcd ", endpoint_, ": the watch's connection ended",
                                  transfer_->failure().empty() ? "" : ": ", transfer_->failure()));
}

Task<Result<std::vector<WatchEvent>>> GatewayWatch::Take(std::string line) {
  const std::size_t bytes = line.size();
  auto message = co_await ReadWatchMessage(executor(), line);
  if (!message) {
    client_.StreamEnded(endpoint_, false);
    co_return Error(Code::kIoError, Text("etcd ", endpoint_, ": ", message.error().message()));
  }
  if (message->error) {
    client_.StreamEnded(endpoint_, WantsNewLogin(*message->error));
    const Status status = StatusOf(endpoint_, *message->error);
    if (status.code() != Code::kTooLate) co_return Error(status);
    co_return Error(Code::kGone, std::string(status.message()));
  }
  if (message->cancelled) {
    compact_revision_ = message->compact_revision;
    if (compact_revision_ > 0)
      co_return Error(Code::kLapsed, Text("etcd ", endpoint_, ": revision ", next_revision_,
                                          " of the watch is compacted, up to ", compact_revision_));
    const bool denied = message->reason.find("permission denied") != std::string::npos;
    co_return Error(denied ? Code::kDenied : Code::kGone,
                    Text("etcd ", endpoint_, ": it cancelled the watch: ", Shown(message->reason)));
  }
  std::vector<WatchEvent> events = std::exchange(part_, {});
  std::int64_t last = events.empty() ? next_revision_ : events.back().key.mod_revision;
  for (WatchEvent& event : message->events) {
    if (event.key.mod_revision < last || !keys_.Contains(event.key.key))
      co_return Error(Code::kIoError,
                      Text("etcd ", endpoint_, ": the watch from revision ", last, " on says ",
                           Shown(event.key.key), " of revision ", event.key.mod_revision));
    last = event.key.mod_revision;
    events.push_back(std::move(event));
  }
  if (message->goes_on && !events.empty()) {
    const auto part =
        std::ranges::find(events, last, [](const WatchEvent& each) { return each.key.mod_revision; });
    part_.assign(std::move_iterator(part), std::move_iterator(events.end()));
    events.erase(part, events.end());
    part_bytes_ = (events.empty() ? part_bytes_ : 0) + bytes;
    if (part_bytes_ > Limits::kUnreadBytes)
      co_return Error(Code::kBusy, Text("etcd ", endpoint_, ": the changes of revision ", last,
                                        " are more than ", Limits::kUnreadBytes, " bytes"));
  }
  co_return std::move(events);
}

Task<Result<std::vector<WatchEvent>>> GatewayWatch::Next(Instant deadline) {
  for (;;) {
    if (!end_.ok()) co_return Error(end_);
    if (transfer_ == nullptr) {
      auto opening =
          client_.OpenStream("/v3/watch", WatchQuestion(keys_, next_revision_), endpoint_, deadline);
      auto opened = co_await opening;
      if (!opened) {
        if (opened.error().code() != Code::kTooLate) end_ = opened.error();
        co_return Error(std::move(opened.error()));
      }
      transfer_ = std::move(*opened);
    }
    if (transfer_->status() == kHttpOk || transfer_->status() == 0) {
      std::optional<std::string> line = transfer_->TakeLine();
      if (line) {
        auto taken = Take(std::move(*line));
        auto events = co_await taken;
        if (!events) end_ = events.error();
        if (!events || events->empty()) continue;
        next_revision_ = events->back().key.mod_revision + 1;
        co_return std::move(events);
      }
    }
    if (transfer_->ended()) {
      end_ = Ended();
      continue;
    }
    const Status in_time = co_await transfer_->news().Wait(deadline);
    if (!in_time.ok())
      co_return Error(Code::kTooLate, Text("etcd ", endpoint_, ": no change by the deadline"));
  }
}

}  // namespace

Status GatewayOptions::Validate() const {
  const auto invalid = [](std::string message) { return Status(Code::kInvalid, std::move(message)); };
  if (endpoints.empty() || endpoints.size() > kMaxEndpoints)
    return invalid(Text("etcd: ", endpoints.size(), " endpoints; name 1 to ", kMaxEndpoints,
                        ", such as http://10.0.0.7:2379"));
  for (const std::string& endpoint : endpoints) {
    const bool secure = endpoint.starts_with("https://");
    if (!secure && !endpoint.starts_with("http://"))
      return invalid(Text("etcd endpoint ", Shown(endpoint), ": expected such as http://10.0.0.7:2379"));
    const std::string_view rest = std::string_view(endpoint).substr(secure ? 8 : 7);
    if (rest.empty() || rest.find_first_of("@?# \t\r\n") != std::string_view::npos)
      return invalid(Text("etcd endpoint ", Shown(rest.substr(rest.find('@') + 1)),
                          ": only host and port belong into it; user and password are options of their own"));
    if (!secure && !certificate_file.empty())
      return invalid(
          Text("etcd endpoint ", Shown(endpoint), ": a certificate is given, so it must be https://"));
  }
  if (certificate_file.empty() != key_file.empty())
    return invalid("etcd: a certificate and its key are given together");
  if (user.empty() && !password.empty()) return invalid("etcd: a password without a user");
  if (connect_us < 1'000 || connect_us > 60'000'000)
    return invalid(Text("etcd: connect_us is ", connect_us, " and must be from 1,000 to 60,000,000"));
  return Status();
}

Result<std::unique_ptr<Etcd>> OpenGateway(io::Loop& loop, GatewayOptions options) {
  if (Status status = options.Validate(); !status.ok()) return Error(std::move(status));
  auto curl = CurlLoop::Open(loop, {.authorities_file = options.authorities_file,
                                    .certificate_file = options.certificate_file,
                                    .key_file = options.key_file,
                                    .connect_us = options.connect_us});
  if (!curl) return Error(std::move(curl.error()));
  return std::make_unique<GatewayClient>(loop, std::move(options), std::move(*curl));
}

}  // namespace cistern::etcd
