// SPDX-License-Identifier: Apache-2.0
#include "admin/pages.h"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "admin/data.h"
#include "admin/metrics_text.h"
#include "admin/status_text.h"

namespace cistern::admin {
namespace {

constexpr int kUnavailable = 503;

HttpAnswer Said(const Status& status, std::string_view good) {
  if (status.ok()) return {.body = std::string(good) + "\n"};
  return {.status = kUnavailable, .body = std::string(status.message()) + "\n"};
}

void Answer(const HttpServer::Reply& reply, HttpAnswer answer) {
  reply([answer = std::move(answer)]() mutable { return std::move(answer); });
}

// Has the core read the registry once at a time, for all who asked before that reading began. As many wait as
// there are connections: the oldest of more has none any longer.
class Readings final : public std::enable_shared_from_this<Readings> {
 public:
  struct Asker {
    HttpServer::Reply reply;
    std::function<HttpAnswer(const MetricSnapshot&)> show;
  };

  explicit Readings(const PagesParts& parts) : parts_(parts) {}

  void Ask(Asker asker) {
    {
      std::lock_guard lock(mutex_);
      if (waiting_.size() >= HttpServer::kMaxConnections) waiting_.erase(waiting_.begin());
      waiting_.push_back(std::move(asker));
      if (reads_) return;
      reads_ = true;
    }
    Next();
  }

 private:
  // What the core has not given when it lets go of this, it will not give.
  class Reading final {
   public:
    Reading(std::shared_ptr<Readings> all, std::vector<Asker> askers)
        : all_(std::move(all)), askers_(std::move(askers)) {}
    ~Reading() {
      if (!askers_.empty()) Refuse(Status(Code::kGone, "the node ends"));
    }
    void Give(MetricSnapshot snapshot) {
      const auto read = std::make_shared<const MetricSnapshot>(std::move(snapshot));
      for (Asker& asker : askers_) asker.reply([show = std::move(asker.show), read] { return show(*read); });
      askers_.clear();
      all_->Next();
    }
    void Refuse(const Status& status) {
      for (const Asker& asker : askers_) Answer(asker.reply, Said(status, ""));
      for (const Asker& asker : all_->TakeWaiting(true)) Answer(asker.reply, Said(status, ""));
      askers_.clear();
    }

   private:
    const std::shared_ptr<Readings> all_;
    std::vector<Asker> askers_;
  };

  void Next() {
    std::vector<Asker> askers = TakeWaiting(false);
    if (askers.empty()) return;
    const auto reading = std::make_shared<Reading>(shared_from_this(), std::move(askers));
    if (parts_.read([reading](MetricSnapshot snapshot) { reading->Give(std::move(snapshot)); })) return;
    const Result<std::string> ready = parts_.ready();
    reading->Refuse(ready ? Status(Code::kGone, "the node ends") : ready.error());
  }

  // Without any, or at the `end` of a reading, the next who asks begins one.
  std::vector<Asker> TakeWaiting(bool end) {
    std::lock_guard lock(mutex_);
    if (end || waiting_.empty()) reads_ = false;
    return std::exchange(waiting_, {});
  }

  const PagesParts parts_;
  std::mutex mutex_;
  std::vector<Asker> waiting_;
  bool reads_ = false;
};

class Pages final {
 public:
  explicit Pages(PagesParts parts)
      : parts_(std::move(parts)), readings_(std::make_shared<Readings>(parts_)) {}

  void Show(const HttpRequest& request, HttpServer::Reply reply) const {
    if (request.path == "/healthz") return Answer(reply, Said(parts_.alive(), "ok"));
    if (request.path == "/readyz") {
      const Result<std::string> ready = parts_.ready();
      return Answer(reply, ready ? Said(Status(), *ready) : Said(ready.error(), ""));
    }
    if (request.path == "/metrics")
      return Read(std::move(reply), [this](const MetricSnapshot& snapshot) {
        return HttpAnswer{.type = std::string(kMetricsType), .body = MetricsText(parts_.registry, snapshot)};
      });
    if (request.path == "/status")
      return Read(std::move(reply), [this](const MetricSnapshot& snapshot) {
        return HttpAnswer{.type = "application/json", .body = StatusText(parts_.registry, snapshot) + "\n"};
      });
    if (request.path == "/")
      return Answer(reply, {.type = "text/html; charset=utf-8", .body = std::string(DataPage())});
    Answer(reply, {.status = 404, .body = "there are /, /metrics, /status, /healthz and /readyz\n"});
  }

 private:
  // The core reads; what is made of it is made on the server's thread.
  void Read(HttpServer::Reply reply, std::function<HttpAnswer(const MetricSnapshot&)> show) const {
    readings_->Ask({std::move(reply), std::move(show)});
  }

  const PagesParts parts_;
  const std::shared_ptr<Readings> readings_;
};

}  // namespace

HttpServer::Handler MakePages(PagesParts parts) {
  auto pages = std::make_shared<const Pages>(std::move(parts));
  return [pages](const HttpRequest& request, HttpServer::Reply reply) {
    pages->Show(request, std::move(reply));
  };
}

}  // namespace cistern::admin
