// SPDX-License-Identifier: Apache-2.0
// The HTTP port of a whole node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "../real_node.h"
#include "admin/test_http.h"
#include "base/release.h"
#include "node/node_metrics.h"

namespace cistern {
namespace {

using admin::Ask;
using admin::Get;
using testing::HasSubstr;

const auto kWithHttp = [](node::NodeOptions& options) { options.http = "0"; };

double ValueOf(const std::string& metrics, const std::string& series) {
  const std::size_t at = metrics.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::strtod(metrics.c_str() + at + series.size() + 2, nullptr);
}

// What a scraper insists on: each line is a comment or NAME{LABELS} NUMBER, a metric's lines stand together
// behind its HELP and TYPE, and no series comes twice.
void CheckFormat(const std::string& metrics) {
  std::istringstream lines(metrics);
  std::set<std::string> series, names;
  std::string line, name;
  while (std::getline(lines, line)) {
    if (line.starts_with("# HELP ")) {
      name = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(names.insert(name).second) << name << " comes twice";
    } else if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(line.starts_with("# TYPE " + name + " ")) << line;
    } else {
      const std::size_t space = line.rfind(' ');
      ASSERT_NE(space, std::string::npos) << line;
      char* end = nullptr;
      std::strtod(line.c_str() + space + 1, &end);
      EXPECT_EQ(*end, '\0') << line;
      EXPECT_TRUE(line.starts_with(name)) << line << " stands under " << name;
      EXPECT_TRUE(series.insert(line.substr(0, space)).second) << line << " comes twice";
    }
  }
  EXPECT_GT(series.size(), 50u);
}

TEST(Http, ShowsANodeThatServes) {
  RealNode node(64u << 20, kWithHttp);
  Store store = node.Connect();
  const Namespace ns = AttachTest(store);
  for (std::uint64_t n = 0; n < 8; ++n)
    ASSERT_TRUE(PutBlock(store, ns, n, n == 0 ? std::nullopt : std::optional(n - 1), 4096).ok());
  const std::string at = node.http();
  Until([&] { return Get(at, "/readyz").status == 200; });
  // Each is 503 where the core had no turn for 2 s.
  Until([&] { return Get(at, "/healthz").status == 200; });
  admin::HttpAnswered answered;
  Until([&] { return (answered = Get(at, "/metrics")).status == 200; });
  const std::string& metrics = answered.body;
  CheckFormat(metrics);
  EXPECT_EQ(ValueOf(metrics, "cistern_store_published_total"), 8);
  EXPECT_EQ(ValueOf(metrics, "cistern_now_bytes"), 8 * 4096);
  EXPECT_EQ(ValueOf(metrics, "cistern_door_sessions"), 1);
  EXPECT_EQ(ValueOf(metrics, "cistern_calls_seconds_count{call=\"write\"}"), 8);
  EXPECT_THAT(metrics, HasSubstr("\ncistern_node_info{release=\"" + std::string(Release()) +
                                 "\",tenant=\"default\","));
  EXPECT_THAT(Get(at, "/status").body, HasSubstr("\"store\":{\"published\":8,"));
  EXPECT_EQ(StatusNumber(store, "published"), 8u);
  EXPECT_EQ(Ask(at, "HEAD /metrics HTTP/1.1\r\n\r\n").body, "");
}

// The page asks the node it came from and nobody else, for fields that there are.
TEST(Http, ThePageIsOneDocumentOfWhatStatusHas) {
  RealNode node(64u << 20, kWithHttp);
  const std::string page = Get(node.http(), "/").body;
  EXPECT_THAT(page, HasSubstr("<title>Cistern</title>"));
  const std::regex outside("(https?:)?//[a-z]");
  for (std::sregex_iterator at(page.begin(), page.end(), outside), end; at != end; ++at)
    EXPECT_EQ(page.substr(static_cast<std::size_t>(at->position()), 26), "http://www.w3.org/2000/svg");
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  const std::string fields = node::MetricsOfDocs();
  const std::regex asked("(?:field\\(\\w+, |grown\\()\"(\\w+\\.\\w+)[.\\w]*\"");
  std::size_t count = 0;
  for (std::sregex_iterator at(page.begin(), page.end(), asked), end; at != end; ++at, ++count)
    EXPECT_THAT(fields, HasSubstr("`" + at->str(1) + "`"));
  EXPECT_GT(count, 15u);
}

TEST(Http, MalformedRequestsChangeNothing) {
  RealNode node(64u << 20, kWithHttp);
  Store store = node.Connect();
  const std::string at = node.http();
  const Namespace ns = AttachTest(store);
  ASSERT_TRUE(PutBlock(store, ns, 1, std::nullopt, 4096).ok());
  for (const std::string& bytes : {std::string("GET /metrics\r\n\r\n"),
                                   std::string("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
                                   std::string("DELETE / HTTP/1.1\r\n\r\n"), std::string("\0\0\r\n\r\n", 6),
                                   std::string(20'000, '\r')}) {
    const admin::HttpAnswered answered = Ask(at, bytes);
    EXPECT_GE(answered.status, 400);
    EXPECT_LT(answered.status, 500);
    EXPECT_FALSE(answered.body.empty());
  }
  EXPECT_TRUE(store.Get(ns, KeyOf(1)).has_value());
  EXPECT_EQ(StatusNumber(store, "published"), 1u);
}

TEST(Http, APortInUseIsAStartErrorByName) {
  RealNode node(64u << 20, kWithHttp);
  node::NodeOptions second;
  second.memory_dir = node.directory() + "/second";
  second.memory_bytes = 64u << 20;
  second.log_level = "error";
  second.http = node.http();
  const auto started = node::Node::Start(second);
  ASSERT_FALSE(started.has_value());
  EXPECT_EQ(started.error().code(), Code::kBusy);
  EXPECT_THAT(std::string(started.error().message()), HasSubstr(node.http() + " is in use"));
  EXPECT_FALSE(std::filesystem::exists(second.memory_dir)) << "memory was reserved before the port was tried";
}

// Promise 5 from outside: a core that hangs is seen, though nothing of it answers any more.
TEST(Http, HealthzFailsWhileTheCoreDoesNotTurn) {
  std::atomic<bool> held{false}, let_go{false};
  {
    RealNode node(64u << 20, [&](node::NodeOptions& options) {
      options.http = "0";
      options.linger_us = 1;
      options.on_ends = [&](const Status&) {  // on the core's thread
        held = true;
        held.notify_all();
        let_go.wait(false);
      };
    });
    held.wait(false);
    const std::string at = node.http();
    Until([&] { return Get(at, "/healthz").status == 503; });
    EXPECT_THAT(Get(at, "/healthz").body, HasSubstr("the core thread has not turned for "));
    EXPECT_EQ(Get(at, "/readyz").status, 503);
    EXPECT_EQ(Get(at, "/metrics").status, 503);
    let_go = true;
    let_go.notify_all();
    Until([&] { return Get(at, "/healthz").status == 200; });
    Until([&] { return Get(at, "/metrics").status == 200; });
  }
}

}  // namespace
}  // namespace cistern
