// SPDX-License-Identifier: Apache-2.0
#include "admin/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
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

}  // namespace
}  // namespace cistern::admin
