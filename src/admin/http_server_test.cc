// SPDX-License-Identifier: Apache-2.0
#include "admin/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include "admin/heartbeat.h"
#include "admin/pages.h"
#include "admin/test_http.h"

namespace cistern::admin {
namespace {

using testing::HasSubstr;

HttpAddress AnyPort() { return *ParseHttpAddress("http", "0"); }

std::unique_ptr<HttpServer> ServerOf(HttpServer::Handler handler) {
  Result<std::unique_ptr<HttpServer>> server = HttpServer::Open(AnyPort(), std::move(handler));
  EXPECT_TRUE(server.has_value());
  return std::move(*server);
}

void Echo(const HttpRequest& request, HttpServer::Reply reply) {
  reply([path = request.path] { return HttpAnswer{.body = path}; });
}

TEST(HttpAddress, APortAloneIsThisHosts) {
  EXPECT_EQ(ParseHttpAddress("http", "9180")->ToText(), "127.0.0.1:9180");
  EXPECT_EQ(ParseHttpAddress("http", "0.0.0.0:9180")->ToText(), "0.0.0.0:9180");
  EXPECT_EQ(ParseHttpAddress("http", "[::1]:9180")->ToText(), "[::1]:9180");
  for (const char* wrong : {"", ":9180", "localhost:9180", "1.2.3.4", "1.2.3:9180", "::1:9180", "[::1]",
                            "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:", "a\n:1"}) {
    const Result<HttpAddress> address = ParseHttpAddress("http", wrong);
    ASSERT_FALSE(address.has_value()) << wrong;
    EXPECT_EQ(address.error().code(), Code::kInvalid);
    EXPECT_THAT(std::string(address.error().message()), HasSubstr("http: "));
  }
}

TEST(HttpServer, APortInUseIsSaidByName) {
  const auto server = ServerOf(Echo);
  const Result<std::unique_ptr<HttpServer>> second = HttpServer::Open(server->address(), Echo);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), Code::kBusy);
  EXPECT_THAT(std::string(second.error().message()), HasSubstr(server->address().ToText() + " is in use"));
}

TEST(HttpServer, AnswersWhoAsksInPiecesAndWhoAsksTooMuch) {
  const auto server = ServerOf(Echo);
  const std::string at = server->address().ToText();
  EXPECT_EQ(Get(at, "/hello").body, "/hello");
  const Fd socket = ConnectTo(at);
  for (const std::string_view piece : {"GET /pie", "ces HTTP/1.1\r\nHo", "st: a\r\n\r", "\n"})
    ASSERT_TRUE(SendAll(socket, piece));
  EXPECT_EQ(AnsweredWith(ReceiveAll(socket)).body, "/pieces");
  EXPECT_EQ(Ask(at, "nonsense\r\n\r\n").status, 400);
  EXPECT_EQ(Ask(at, "GET / HTTP/1.1\r\nX: " + std::string(100'000, 'a')).status, 431);
  EXPECT_EQ(Ask(at, "HEAD /x HTTP/1.1\r\n\r\n").body, "");
  EXPECT_EQ(Get(at, "/still").body, "/still");
}

TEST(HttpServer, P5WhoConnectsAndAsksNothingMakesRoomForWhoDoes) {
  const auto server = ServerOf(Echo);
  std::vector<Fd> idle;
  for (std::size_t i = 0; i < 2 * HttpServer::kMaxConnections; ++i)
    idle.push_back(ConnectTo(server->address().ToText()));
  EXPECT_EQ(Get(server->address().ToText(), "/served").body, "/served");
  EXPECT_EQ(ReceiveAll(idle.front()), "");  // it was let go of
}

// Closed so that the other side is told at once, with what it has sent on its way.
void Reset(Fd socket) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
}

// How many requests are let in, where as many as there are places for hang up before their answers and one
// asks behind them.
std::size_t LetInBesideThoseWhoHangUp() {
  std::mutex mutex;
  std::vector<HttpServer::Reply> kept;
  const auto server = ServerOf([&](const HttpRequest& request, HttpServer::Reply reply) {
    if (request.path == "/fast") return Echo(request, std::move(reply));
    std::lock_guard lock(mutex);
    kept.push_back(std::move(reply));
  });
  const std::string at = server->address().ToText();
  const auto asked = [&] {
    std::lock_guard lock(mutex);
    return kept.size();
  };
  for (std::size_t i = 0; i < HttpServer::kMaxConnections; ++i) {
    Fd socket = ConnectTo(at);
    EXPECT_TRUE(SendAll(socket, "GET /slow HTTP/1.1\r\n\r\n"));
    while (asked() == i) std::this_thread::yield();
    Reset(std::move(socket));
  }
  EXPECT_EQ(Get(at, "/slow").status, 503) << "nobody left that could make room";
  const std::size_t let_in = asked();
  for (const HttpServer::Reply& reply : kept) reply([] { return HttpAnswer{.body = "nobody's"}; });
  EXPECT_EQ(Get(at, "/fast").body, "/fast");
  return let_in;
}

TEST(HttpServer, P5WhoHangsUpBeforeHisAnswerKeepsHisPlaceUntilItIsMade) {
  // On a loaded host the first has waited for as long as anybody does (kAnswerUs) before the last asks.
  std::size_t let_in = 0;
  for (int round = 0; round < 100 && let_in != HttpServer::kMaxConnections; ++round)
    let_in = LetInBesideThoseWhoHangUp();
  EXPECT_EQ(let_in, HttpServer::kMaxConnections);
}

TEST(HttpServer, P5OfManyWhoAskAtOnceNoneIsLetGoOfUnanswered) {
  std::latch busy(1), go_on(1);
  const auto server = ServerOf([&](const HttpRequest& request, HttpServer::Reply reply) {
    if (request.path == "/first") {
      busy.count_down();
      go_on.wait();
    }
    Echo(request, std::move(reply));
  });
  const std::string at = server->address().ToText();
  const auto ask = [&](std::string_view path) {
    Fd socket = ConnectTo(at);
    EXPECT_TRUE(SendAll(socket, "GET " + std::string(path) + " HTTP/1.1\r\n\r\n"));
    return socket;
  };
  std::vector<Fd> asking;
  asking.push_back(ask("/first"));
  busy.wait();
  for (std::size_t i = 0; i < HttpServer::kMaxConnections + 8; ++i) asking.push_back(ask("/then"));
  go_on.count_down();
  for (const Fd& socket : asking) {
    const int status = AnsweredWith(ReceiveAll(socket)).status;
    EXPECT_TRUE(status == 200 || status == 503) << status;
  }
}

TEST(HttpServer, AnAnswerThatIsNotMadeIsUnavailableAndALateOneIsNobodys) {
  std::mutex mutex;
  std::vector<HttpServer::Reply> kept;
  auto server = ServerOf([&](const HttpRequest& request, HttpServer::Reply reply) {
    if (request.path == "/fast") return Echo(request, std::move(reply));
    std::lock_guard lock(mutex);
    kept.push_back(std::move(reply));
  });
  const Fd socket = ConnectTo(server->address().ToText());
  ASSERT_TRUE(SendAll(socket, "GET /slow HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(Get(server->address().ToText(), "/fast").body, "/fast");  // meanwhile
  EXPECT_EQ(AnsweredWith(ReceiveAll(socket)).status, 503);
  kept.at(0)([] { return HttpAnswer{.body = "late"}; });
  EXPECT_EQ(Get(server->address().ToText(), "/fast").body, "/fast");
  server.reset();
  kept.at(0)([] { return HttpAnswer{.body = "after the end"}; });
}

TEST(Heartbeat, StandsStillAfterItsLimitAndNotBeforeItsFirstBeat) {
  SimulatedClock clock;
  Heartbeat heartbeat;
  EXPECT_TRUE(heartbeat.Check(clock.Now()).ok());
  heartbeat.Beat(clock.Now());
  EXPECT_TRUE(heartbeat.Check(clock.Now().PlusUs(Heartbeat::kLimitUs)).ok());
  const Status late = heartbeat.Check(clock.Now().PlusUs(Heartbeat::kLimitUs + 1'000));
  EXPECT_THAT(std::string(late.message()), HasSubstr("has not turned for 2001 ms"));
}

TEST(Pages, SayWhyThereIsNothingToRead) {
  MetricRegistry registry;
  Status alive;
  Result<std::string> ready = Error(Code::kBusy, "the node starts");
  const auto server = ServerOf(MakePages({.registry = registry,
                                          .read = [](auto) { return false; },
                                          .alive = [&] { return alive; },
                                          .ready = [&] { return ready; }}));
  const std::string at = server->address().ToText();
  for (const char* path : {"/metrics", "/status", "/readyz"}) {
    EXPECT_EQ(Get(at, path).status, 503) << path;
    EXPECT_EQ(Get(at, path).body, "the node starts\n");
  }
  ready = "ready: memory has 1GiB of 8GiB";
  EXPECT_EQ(Get(at, "/readyz").status, 200);
  EXPECT_EQ(Get(at, "/readyz").body, *ready + "\n");
  EXPECT_EQ(Get(at, "/healthz").status, 200);
  EXPECT_EQ(Get(at, "/etc/passwd").status, 404);
  EXPECT_EQ(Get(at, "/../metrics").status, 404);
}

// What the core was asked to read, and has not read yet.
class CoreReads {
 public:
  bool Read(std::function<void(MetricSnapshot)> done) {
    std::lock_guard lock(mutex_);
    asked_.push_back(std::move(done));
    return true;
  }
  std::size_t asked() {
    std::lock_guard lock(mutex_);
    return asked_.size();
  }
  void Answer(std::size_t which) {
    std::unique_lock lock(mutex_);
    const std::function<void(MetricSnapshot)> done = std::move(asked_.at(which));
    lock.unlock();
    done({});
  }
  void Drop() {
    std::vector<std::function<void(MetricSnapshot)>> dropped;
    std::lock_guard lock(mutex_);
    dropped.swap(asked_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void(MetricSnapshot)>> asked_;
};

TEST(Pages, P5TheCoreReadsOnceAtATimeForAllWhoWait) {
  MetricRegistry registry;
  CoreReads core;
  std::atomic<std::size_t> requests = 0;
  HttpServer::Handler pages = MakePages({.registry = registry,
                                         .read = [&](auto done) { return core.Read(std::move(done)); },
                                         .alive = [] { return Status(); },
                                         .ready = [] { return Result<std::string>("ready"); }});
  auto server = ServerOf([&](const HttpRequest& request, HttpServer::Reply reply) {
    pages(request, std::move(reply));
    ++requests;
  });
  std::vector<Fd> waiting;
  for (std::size_t i = 1; i <= 5; ++i) {
    waiting.push_back(ConnectTo(server->address().ToText()));
    ASSERT_TRUE(SendAll(waiting.back(), "GET /metrics HTTP/1.1\r\n\r\n"));
    while (requests < i) std::this_thread::yield();
  }
  EXPECT_EQ(core.asked(), 1u);
  core.Answer(0);
  EXPECT_EQ(AnsweredWith(ReceiveAll(waiting[0])).status, 200);
  EXPECT_EQ(core.asked(), 2u) << "what came meanwhile is read for together, afterwards";
  core.Answer(1);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(AnsweredWith(ReceiveAll(waiting[i])).status, 200);
  EXPECT_EQ(core.asked(), 2u);
  const Fd last = ConnectTo(server->address().ToText());
  ASSERT_TRUE(SendAll(last, "GET /status HTTP/1.1\r\n\r\n"));
  while (requests < 6) std::this_thread::yield();
  core.Drop();
  EXPECT_EQ(AnsweredWith(ReceiveAll(last)).body, "the node ends\n");
}

}  // namespace
}  // namespace cistern::admin
