// SPDX-License-Identifier: Apache-2.0
#include "admin/pages.h"

#include <memory>
#include <utility>

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

class Pages final {
 public:
  explicit Pages(PagesParts parts) : parts_(std::move(parts)) {}

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
    const bool asked = parts_.read([reply, show = std::move(show)](MetricSnapshot snapshot) {
      reply([show, snapshot = std::move(snapshot)] { return show(snapshot); });
    });
    if (asked) return;
    const Result<std::string> ready = parts_.ready();
    Answer(reply, Said(ready ? Status(Code::kGone, "the node ends") : ready.error(), ""));
  }

  const PagesParts parts_;
};

}  // namespace

HttpServer::Handler MakePages(PagesParts parts) {
  auto pages = std::make_shared<const Pages>(std::move(parts));
  return [pages](const HttpRequest& request, HttpServer::Reply reply) {
    pages->Show(request, std::move(reply));
  };
}

}  // namespace cistern::admin
