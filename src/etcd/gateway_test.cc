// SPDX-License-Identifier: Apache-2.0
// A real etcd in trouble, and what is none: servers that are killed, stopped, restored, full or want a login,
// and answers that no etcd gives. What etcd promises in peace is contract_test.cc's.
#include "etcd/gateway.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/event.h"
#include "base/format.h"
#include "base/nearest.h"
#include "etcd/curl_loop.h"
#include "etcd/test_etcd.h"

namespace cistern::etcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class GatewayTest : public ::testing::Test {
 protected:
  std::unique_ptr<Etcd> Open(GatewayOptions options) {
    auto opened = OpenGateway(*loop_, std::move(options));
    EXPECT_TRUE(opened.has_value()) << opened.error().ToString();
    return std::move(*opened);
  }
  std::unique_ptr<Etcd> Open(const std::string& endpoint) {
    return Open(GatewayOptions{.endpoints = {endpoint}});
  }
  Instant After(std::int64_t us) const { return clock_.Now().PlusUs(us); }
  Instant Soon() const { return After(60'000'000); }

  static Transaction PutOf(std::string key, std::string value) {
    return {.then = {{.keys = {std::move(key), ""}, .value = std::move(value)}}};
  }
  Result<TransactionAnswer> Put(Etcd& etcd, std::string key, std::string value) {
    return loop_->BlockOn(etcd.Commit(PutOf(std::move(key), std::move(value)), Soon()));
  }
  Result<RangeAnswer> Range(Etcd& etcd, std::string key) {
    return loop_->BlockOn(etcd.Range({.keys = {std::move(key), ""}}, Soon()));
  }
  template <class T>
  static Status StatusOf(const Result<T>& result) {
    return result ? Status() : result.error();
  }

  SystemClock clock_;
  std::unique_ptr<io::Loop> loop_ = std::move(*io::MakeLoop(clock_));
};

// ------------------------------------------------------------------------------------------- a real etcd

class RealEtcdTest : public GatewayTest {
 protected:
  void SetUp() override {
    if (!TestEtcd::Installed()) GTEST_SKIP() << "no etcd is installed";
  }
};

TEST_F(RealEtcdTest, AStoppedServerKeepsNoCallBeyondItsDeadlineAndGoesOnWhereItWas) {
  TestEtcd server;
  ASSERT_EQ(server.Start().ToString(), "ok");
  const auto etcd = Open(server.endpoint());
  const auto first = Put(*etcd, "k", "1");
  ASSERT_TRUE(first) << first.error().ToString();
  const auto watch = etcd->WatchFrom({"k", ""}, first->header.revision);
  ASSERT_TRUE(loop_->BlockOn(watch->Next(Soon())));
  server.Pause();
  EXPECT_EQ(StatusOf(loop_->BlockOn(etcd->Range({.keys = {"k", ""}}, After(20'000)))).code(), Code::kTooLate);
  EXPECT_EQ(StatusOf(loop_->BlockOn(etcd->Commit(PutOf("l", "1"), After(20'000)))).code(), Code::kTooLate);
  EXPECT_EQ(StatusOf(loop_->BlockOn(watch->Next(After(20'000)))).code(), Code::kTooLate)
      << "silence is no error";
  server.Resume();
  ASSERT_TRUE(Put(*etcd, "k", "2"));
  const auto events = loop_->BlockOn(watch->Next(Soon()));
  ASSERT_TRUE(events) << events.error().ToString();
  EXPECT_EQ(events->front().key.value, "2");
}

TEST_F(RealEtcdTest, AKilledServerLeavesATransactionOpenAndIsGoneUntilItIsThereAgain) {
  TestEtcd server;
  ASSERT_EQ(server.Start().ToString(), "ok");
  const auto etcd = Open(server.endpoint());
  const auto first = Put(*etcd, "k", "1");
  ASSERT_TRUE(first);
  const auto watch = etcd->WatchFrom({"k", ""}, first->header.revision);
  ASSERT_TRUE(loop_->BlockOn(watch->Next(Soon())));
  server.Pause();
  auto under_way = etcd->Commit(PutOf("k", "2"), Soon());
  auto asked = etcd->Range({.keys = {"k", ""}}, After(20'000));
  EXPECT_EQ(StatusOf(loop_->BlockOn(std::move(asked))).code(), Code::kTooLate);
  for (int turns = 0; turns < 5; ++turns)  // so that the transaction is sent
    (void)loop_->BlockOn(etcd->Range({.keys = {"k", ""}}, After(1'000)));
  server.Kill();
  EXPECT_EQ(StatusOf(loop_->BlockOn(std::move(under_way))).code(), Code::kTooLate);
  const Status gone = StatusOf(Put(*etcd, "k", "3"));
  EXPECT_EQ(gone.code(), Code::kGone);
  EXPECT_THAT(std::string(gone.message()), HasSubstr(server.endpoint()));
  Status ended;
  for (auto events = loop_->BlockOn(watch->Next(Soon())); ended.ok();) ended = StatusOf(events);
  EXPECT_EQ(ended.code(), Code::kGone) << ended.ToString();

  ASSERT_EQ(server.Start().ToString(), "ok");
  ASSERT_TRUE(Put(*etcd, "k", "4"));
  const auto again = etcd->WatchFrom({"k", ""}, watch->next_revision());
  std::vector<WatchEvent> events;
  while (events.empty() || events.back().key.value != "4") {
    auto next = loop_->BlockOn(again->Next(Soon()));
    ASSERT_TRUE(next);
    events.insert(events.end(), next->begin(), next->end());
  }
  EXPECT_LE(events.size(), 2u) << "what was under way took effect or not";
}

TEST_F(RealEtcdTest, ARestoredServerIsAtALowerRevisionOfTheSameClusterAndAWatchWaitsInVain) {
  TestEtcd server;
  ASSERT_EQ(server.Start().ToString(), "ok");
  const auto etcd = Open(server.endpoint());
  const auto then = Put(*etcd, "k", "1");
  ASSERT_TRUE(then);
  server.Kill();
  server.Save("backup");
  ASSERT_EQ(server.Start().ToString(), "ok");
  Result<TransactionAnswer> last = Put(*etcd, "k", "2");
  for (int i = 0; i < 9; ++i) last = Put(*etcd, "k", "3");
  ASSERT_TRUE(last);
  server.Kill();
  server.Restore("backup");
  ASSERT_EQ(server.Start().ToString(), "ok");
  const auto now = Range(*etcd, "k");
  ASSERT_TRUE(now) << now.error().ToString();
  EXPECT_EQ(now->header.cluster_id, last->header.cluster_id);
  EXPECT_EQ(now->header.revision, then->header.revision);
  const Status missing = StatusOf(loop_->BlockOn(etcd->Range({{"k", ""}, last->header.revision}, Soon())));
  EXPECT_EQ(missing.code(), Code::kMismatch);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("restored from a backup"));
  const auto watch = etcd->WatchFrom({"k", ""}, last->header.revision + 1);
  ASSERT_TRUE(Put(*etcd, "k", "new"));
  EXPECT_EQ(StatusOf(loop_->BlockOn(watch->Next(After(50'000)))).code(), Code::kTooLate);
}

TEST_F(RealEtcdTest, AFullServerIsBusyForWhatItWouldKeepAndNotForDeletes) {
  TestEtcd server({"--quota-backend-bytes", "65536"});
  ASSERT_EQ(server.Start().ToString(), "ok");
  const auto etcd = Open(server.endpoint());
  Result<TransactionAnswer> answer = Put(*etcd, "k0", std::string(8'000, 'x'));
  for (int i = 1; answer && i < 100; ++i) answer = Put(*etcd, Text("k", i), std::string(8'000, 'x'));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kBusy);
  EXPECT_THAT(std::string(answer.error().message()), HasSubstr("disarm"));
  EXPECT_EQ(StatusOf(loop_->BlockOn(etcd->Grant(10, Soon()))).code(), Code::kBusy);
  const auto deleted = loop_->BlockOn(
      etcd->Commit({.then = {{.kind = Operation::Kind::kDelete, .keys = KeyRange::Prefix("k")}}}, Soon()));
  EXPECT_TRUE(deleted) << deleted.error().ToString();
}

TEST_F(RealEtcdTest, ALoginIsAskedForUsedAndRenewed) {
  TestEtcd server({"--bcrypt-cost", "4"});
  ASSERT_EQ(server.Start().ToString(), "ok");
  auto curl = std::move(*CurlLoop::Open(*loop_, {}));
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"user/add", R"({"name":"root","password":"secret"})"},
           {"role/add", R"({"name":"root"})"},
           {"user/grant", R"({"user":"root","role":"root"})"},
           {"user/add", R"({"name":"guest","password":"none of \"yours\""})"},
           {"enable", "{}"}}) {
    const auto transfer =
        curl->Start({.url = server.endpoint() + "/v3/auth/" + path, .body = body, .unread_bytes = 4096});
    while (!transfer->ended()) loop_->Turn();
    ASSERT_EQ(transfer->status(), 200) << path << ": " << transfer->TakeAll();
  }
  const Status nobody = StatusOf(Range(*Open(server.endpoint()), "k"));
  EXPECT_EQ(nobody.code(), Code::kDenied);
  EXPECT_THAT(std::string(nobody.message()), HasSubstr("asks for a login, and none is given here"));
  const Status wrong =
      StatusOf(Range(*Open({.endpoints = {server.endpoint()}, .user = "root", .password = "guess"}), "k"));
  EXPECT_EQ(wrong.code(), Code::kDenied);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("password is wrong"));
  EXPECT_THAT(std::string(wrong.message()), Not(HasSubstr("guess")));
  const auto guest =
      Open({.endpoints = {server.endpoint()}, .user = "guest", .password = "none of \"yours\""});
  EXPECT_EQ(StatusOf(Range(*guest, "k")).code(), Code::kDenied);
  EXPECT_EQ(StatusOf(loop_->BlockOn(guest->WatchFrom({"k", ""}, 1)->Next(Soon()))).code(), Code::kDenied);

  const auto root = Open({.endpoints = {server.endpoint()}, .user = "root", .password = "secret"});
  const auto put = Put(*root, "k", "1");
  ASSERT_TRUE(put) << put.error().ToString();
  const auto events = loop_->BlockOn(root->WatchFrom({"k", ""}, put->header.revision)->Next(Soon()));
  EXPECT_TRUE(events) << events.error().ToString();
  server.Kill();  // its tokens are lost
  ASSERT_EQ(server.Start().ToString(), "ok");
  const auto again = Put(*root, "k", "2");
  EXPECT_TRUE(again) << again.error().ToString();
  // A login where none is asked for is no error.
  TestEtcd open;
  ASSERT_EQ(open.Start().ToString(), "ok");
  EXPECT_TRUE(Range(*Open({.endpoints = {open.endpoint()}, .user = "root", .password = "secret"}), "k"));
}

TEST_F(RealEtcdTest, AnotherEndpointAnswersForOneThatIsGoneOrStandsStill) {
  TestEtcd one, other;
  ASSERT_EQ(one.Start().ToString(), "ok");
  ASSERT_EQ(other.Start().ToString(), "ok");
  const auto etcd = Open({.endpoints = {one.endpoint(), other.endpoint()}});
  ASSERT_TRUE(Put(*etcd, "k", "of one"));
  one.Pause();
  // Half of the deadline goes to the one that stands still.
  Result<RangeAnswer> other_answers = Error(Code::kTooLate, "");
  for (std::int64_t us = 500'000; !other_answers && us < 60'000'000; us *= 2) {
    const auto fresh = Open({.endpoints = {one.endpoint(), other.endpoint()}});
    other_answers = loop_->BlockOn(fresh->Range({.keys = {"k", ""}}, After(us)));
    const auto puts = Open({.endpoints = {one.endpoint(), other.endpoint()}});
    const auto put = loop_->BlockOn(puts->Commit(PutOf("l", ""), After(us)));
    if (!put) other_answers = Error(put.error());
  }
  ASSERT_TRUE(other_answers) << other_answers.error().ToString();
  EXPECT_TRUE(other_answers->keys.empty());
  other.Kill();
  one.Resume();
  EXPECT_EQ(Range(*etcd, "k")->keys.size(), 1u);
  one.Kill();
  EXPECT_EQ(StatusOf(Range(*etcd, "k")).code(), Code::kGone);
  EXPECT_EQ(StatusOf(Put(*etcd, "k", "")).code(), Code::kGone);
  EXPECT_EQ(StatusOf(loop_->BlockOn(etcd->WatchFrom({"k", ""}, 1)->Next(Soon()))).code(), Code::kGone);
}

TEST_F(RealEtcdTest, TlsNeedsAnAuthorityThatKnowsTheServer) {
  TestEtcd server({"--auto-tls"}, "https");
  ASSERT_EQ(server.Start().ToString(), "ok");
  // On a loaded host a handshake may take longer than a connection has for it.
  const auto is_late = [](const Status& status) {
    return status.message().find("timeout") != std::string_view::npos;
  };
  Status stranger;
  do {
    stranger = StatusOf(Put(*Open(server.endpoint()), "k", "1"));
    EXPECT_EQ(stranger.code(), Code::kGone);
  } while (is_late(stranger));
  EXPECT_THAT(std::string(stranger.message()), HasSubstr("certificate"));
  const auto etcd = Open({.endpoints = {server.endpoint()},
                          .authorities_file = server.directory() + "/data/fixtures/client/cert.pem"});
  auto put = Put(*etcd, "k", std::string(100'000, 'x'));
  while (is_late(StatusOf(put))) put = Put(*etcd, "k", std::string(100'000, 'x'));
  ASSERT_TRUE(put) << put.error().ToString();
  const auto events = loop_->BlockOn(etcd->WatchFrom({"k", ""}, 1)->Next(Soon()));
  ASSERT_TRUE(events) << events.error().ToString();
  EXPECT_THAT(events->front().key.value, SizeIs(100'000));
}

TEST_F(RealEtcdTest, TheLoopOfEpollDrivesItToo) {
  loop_ = std::move(*io::MakeLoop(clock_, {.kind = io::LoopKind::kEpoll}));
  TestEtcd server;
  ASSERT_EQ(server.Start().ToString(), "ok");
  const auto etcd = Open(server.endpoint());
  const auto put = Put(*etcd, "k", std::string(1'000'000, 'x'));
  ASSERT_TRUE(put) << put.error().ToString();
  EXPECT_THAT(Range(*etcd, "k")->keys.at(0).value, SizeIs(1'000'000));
}

// ------------------------------------------------------------------------------------------ what is none

// A server that says what a test wants: bytes for a path, as often as it is asked. Each connection is a
// thread of its own.
class FakeServer {
 public:
  // Of a request's path the whole answer; empty: the connection is closed instead.
  using Says = std::function<std::string(const std::string& path)>;

  explicit FakeServer(Says says)
      : says_(std::move(says)), socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    CISTERN_ASSERT(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    CISTERN_ASSERT(::listen(socket_.get(), 64) == 0);
    CISTERN_ASSERT(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    endpoint_ = Text("http://127.0.0.1:", ntohs(address.sin_port));
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~FakeServer() {
    ending_ = true;
    ::shutdown(socket_.get(), SHUT_RDWR);
    acceptor_.join();
    for (std::thread& each : connections_) each.join();
  }
  const std::string& endpoint() const { return endpoint_; }
  int asked() const { return asked_; }  // not for its version

  static std::string Answer(std::string_view body, int status = 200) {
    return Text("HTTP/1.1 ", status, " X\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  }
  static std::string Version() { return Answer(R"({"etcdserver":"3.4.23","etcdcluster":"3.4.0"})"); }

 private:
  void Accept() {
    for (;;) {
      Fd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.valid()) return;
      connections_.emplace_back([this, from = std::move(connection)] { Serve(from.get()); });
    }
  }
  // Until the other side or the test ends.
  bool Readable(int from) const {
    pollfd poll{from, POLLIN, 0};
    while (!ending_) {
      if (::poll(&poll, 1, 10) > 0) return true;
    }
    return false;
  }
  void Serve(int from) {
    std::string had;
    for (;;) {
      const std::size_t head = had.find("\r\n\r\n");
      const std::size_t length = had.find("Content-Length: ");
      const std::size_t body = length < head ? std::stoul(had.substr(length + 16)) : 0;
      if (head != std::string::npos && had.size() >= head + 4 + body) {
        const std::size_t path = had.find(' ') + 1;
        const std::string asked = had.substr(path, had.find(' ', path) - path);
        had.erase(0, head + 4 + body);
        if (asked != "/version") ++asked_;
        const std::string answer = says_(asked);
        if (answer.empty()) return;
        for (std::size_t at = 0; at < answer.size();) {
          const ssize_t sent = ::send(from, answer.data() + at, answer.size() - at, MSG_NOSIGNAL);
          if (sent <= 0) return;
          at += static_cast<std::size_t>(sent);
        }
        continue;
      }
      std::array<char, 4096> bytes{};
      if (!Readable(from)) return;
      const ssize_t count = ::recv(from, bytes.data(), bytes.size(), 0);
      if (count <= 0) return;
      had.append(bytes.data(), static_cast<std::size_t>(count));
    }
  }

  const Says says_;
  const Fd socket_;
  std::string endpoint_;
  std::atomic<bool> ending_{false};
  std::atomic<int> asked_{0};
  std::vector<std::thread> connections_;
  std::thread acceptor_;
};

FakeServer::Says Always(std::string answer) {
  return [answer = std::move(answer)](const std::string& path) {
    return path == "/version" ? FakeServer::Version() : answer;
  };
}

TEST_F(GatewayTest, WhatIsNoAnswerOfEtcdIsSaidByEndpoint) {
  const std::string header = R"("header":{"cluster_id":"7","revision":"5"})";
  for (const std::string& body : {
           std::string(""),
           std::string("{"),
           std::string("[]"),
           std::string("<html>hello</html>"),
           std::string("{}"),
           std::string(R"({"header":{}})"),
           std::string(R"({"header":7})"),
           std::string(R"({"header":{"cluster_id":"-1","revision":"5"}})"),
           std::string(R"({"header":{"cluster_id":"7","revision":"five"}})"),
           std::string(R"({"header":{"cluster_id":"7","revision":"99999999999999999999"}})"),
           "{" + header + R"(,"kvs":7})",
           "{" + header + R"(,"kvs":[7]})",
           "{" + header + R"(,"kvs":[{}]})",
           "{" + header + R"(,"count":"1","kvs":[{"key":"?","create_revision":"1","mod_revision":"1"}]})",
           "{" + header + R"(,"count":"1","kvs":[{"key":"YQ=","create_revision":"1","mod_revision":"1"}]})",
           "{" + header + R"(,"count":"1","kvs":[{"key":"YQ==","create_revision":"3","mod_revision":"1"}]})",
           "{" + header + R"(,"count":"2","kvs":[{"key":"YQ==","create_revision":"1","mod_revision":"1"},)" +
               R"({"key":"YQ==","create_revision":"1","mod_revision":"1"}]})",
           "{" + header + R"(,"more":"yes"})",
           "{" + header + "} and more",
           std::string(100'000, '['),
       }) {
    FakeServer server(Always(FakeServer::Answer(body)));
    const Status status = StatusOf(Range(*Open(server.endpoint()), "a"));
    EXPECT_EQ(status.code(), Code::kIoError) << Shown(body) << " " << status.ToString();
    EXPECT_THAT(std::string(status.message()), HasSubstr(server.endpoint())) << Shown(body);
  }
}

TEST_F(GatewayTest, RefusalsHaveTheCodesThatSayWhatToDo) {
  const auto refusal = [](int code, const std::string& message) {
    return FakeServer::Answer(
        Text("{\"error\":\"", message, "\",\"message\":\"", message, "\",\"code\":", code, "}"), 400);
  };
  const struct {
    std::string answer;
    Code code;
  } cases[] = {
      {refusal(3, "etcdserver: request is too large"), Code::kInvalid},
      {refusal(3, "etcdserver: user name is empty"), Code::kDenied},
      {refusal(5, "etcdserver: requested lease not found"), Code::kLapsed},
      {refusal(7, "etcdserver: permission denied"), Code::kDenied},
      {refusal(8, "etcdserver: mvcc: database space exceeded"), Code::kBusy},
      {refusal(8, "etcdserver: too many requests"), Code::kBusy},
      {refusal(9, "etcdserver: not capable"), Code::kIoError},
      {refusal(11, "etcdserver: mvcc: required revision has been compacted"), Code::kLapsed},
      {refusal(14, "etcdserver: leader changed"), Code::kTooLate},
      {refusal(14, "etcdserver: request timed out"), Code::kTooLate},
      {refusal(16, "etcdserver: invalid auth token"), Code::kDenied},
      {FakeServer::Answer("not here", 404), Code::kIoError},
      {FakeServer::Answer("bad gateway", 502), Code::kTooLate},
      {"what is this\r\n\r\n", Code::kTooLate},
      {"", Code::kTooLate},
  };
  for (const auto& [answer, code] : cases) {
    FakeServer server(Always(answer));
    const Status status = StatusOf(Put(*Open(server.endpoint()), "k", "1"));
    EXPECT_EQ(status.code(), code) << answer << " " << status.ToString();
    EXPECT_EQ(server.asked(), 1) << "a transaction is sent once";
  }
}

// Such as one with the port for etcd's own members, among the others.
TEST_F(GatewayTest, AnEndpointThatIsNoEtcdKeepsNobodyFromTheOthers) {
  const std::string body = R"({"header":{"cluster_id":"1","member_id":"1","revision":"5","raft_term":"1"}})";
  for (const bool too_old : {false, true}) {
    SCOPED_TRACE(too_old ? "of an old version" : "no gateway");
    FakeServer wrong([&](const std::string& path) {
      if (path != "/version") return FakeServer::Answer("404 page not found", 404);
      return too_old ? FakeServer::Answer(R"({"etcdserver":"3.2.0","etcdcluster":"3.2.0"})")
                     : FakeServer::Version();
    });
    FakeServer good(Always(FakeServer::Answer(body)));
    const GatewayOptions both{.endpoints = {wrong.endpoint(), good.endpoint()}};
    EXPECT_EQ(StatusOf(Range(*Open(both), "a")).ToString(), "ok");
    const auto etcd = Open(both);
    const Status put = StatusOf(Put(*etcd, "a", "1"));
    EXPECT_EQ(put.ok(), too_old) << "a transaction that was sent is sent once: " << put.ToString();
    EXPECT_EQ(wrong.asked(), too_old ? 0 : 2);
    EXPECT_EQ(StatusOf(Put(*etcd, "a", "1")).ToString(), "ok");
    const auto watching = Open(both);
    const auto watch = watching->WatchFrom({"a", ""}, 1);
    EXPECT_FALSE(loop_->BlockOn(watch->Next(Soon())).has_value());
    EXPECT_EQ(StatusOf(Put(*watching, "a", "1")).ToString(), "ok") << "a watch that it refused is a sign too";
  }
}

TEST_F(GatewayTest, ATransactionIsSentOnceWhateverBecomesOfAConnectionThatWasUsedBefore) {
  FakeServer server(Always(""));
  const auto etcd = Open(server.endpoint());
  EXPECT_EQ(StatusOf(Put(*etcd, "k", "1")).code(), Code::kTooLate)
      << "on the connection that asked the version";
  EXPECT_EQ(server.asked(), 1);
}

TEST_F(GatewayTest, AnAnswerPastItsBoundIsCutOffAndNamesTheWayOut) {
  FakeServer server([](const std::string& path) {
    if (path == "/version") return FakeServer::Version();
    return FakeServer::Answer(std::string(Limits::kAnswerBytes + 1, ' '));
  });
  const Status status = StatusOf(Range(*Open(server.endpoint()), "a"));
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_THAT(std::string(status.message()), HasSubstr("limit"));
  const Status put = StatusOf(Put(*Open(server.endpoint()), "a", "1"));
  EXPECT_EQ(put.code(), Code::kTooLate) << "it may have taken effect: " << put.ToString();
}

TEST_F(GatewayTest, WhatMayHaveTakenEffectAtOneEndpointIsNotUndoneByAnotherThatIsGone) {
  FakeServer breaks(Always(""));
  const auto etcd = Open({.endpoints = {breaks.endpoint(), "http://127.0.0.1:1"}});
  EXPECT_EQ(loop_->BlockOn(etcd->Revoke(7, Soon())).code(), Code::kTooLate);
  EXPECT_EQ(loop_->BlockOn(etcd->Revoke(7, Soon())).code(), Code::kTooLate) << "whichever is asked first";
  EXPECT_EQ(breaks.asked(), 2);
}

TEST_F(GatewayTest, AVersionThatIsTooOldIsNamed) {
  for (const char* version : {"3.3.27", "2.9.9", "3"}) {
    FakeServer server(
        [&](const std::string&) { return FakeServer::Answer(Text(R"({"etcdserver":")", version, "\"}")); });
    const Status status = StatusOf(Range(*Open(server.endpoint()), "a"));
    EXPECT_EQ(status.code(), Code::kMismatch) << version;
    EXPECT_THAT(std::string(status.message()), HasSubstr(version));
  }
  FakeServer newer([](const std::string& path) {
    return path == "/version" ? FakeServer::Answer(R"({"etcdserver":"10.0.0-rc.1"})")
                              : FakeServer::Answer(R"({"header":{"cluster_id":"7","revision":"5"}})");
  });
  EXPECT_TRUE(Range(*Open(newer.endpoint()), "a"));
  FakeServer none([](const std::string&) { return FakeServer::Answer("<html>"); });
  EXPECT_EQ(StatusOf(Range(*Open(none.endpoint()), "a")).code(), Code::kIoError);
}

TEST_F(GatewayTest, CallsPastTheBoundAreBusyAtOnce) {
  FakeServer server(
      [](const std::string& path) { return path == "/version" ? FakeServer::Version() : "HTTP/1.1"; });
  const auto etcd = Open(server.endpoint());
  std::vector<Task<Result<RangeAnswer>>> waiting;
  for (std::size_t i = 0; i < kMaxGatewayCalls; ++i)
    waiting.push_back(etcd->Range({.keys = {"a", ""}}, Soon()));
  EXPECT_EQ(StatusOf(Range(*etcd, "a")).code(), Code::kBusy);
  waiting.clear();
}

// A watch's answer in as many pieces as it has bytes.
std::string Chunked(std::string_view body, bool ends) {
  std::string answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char byte : body) answer += Text("1\r\n", byte, "\r\n");
  return ends ? answer + "0\r\n\r\n" : answer;
}

std::string EventOf(int revision, char key) {
  return Text(R"({"kv":{"key":")", key, R"(Q==","create_revision":"1","mod_revision":")", revision, "\"}}");
}

TEST_F(GatewayTest, ARevisionThatComesInFragmentsIsGivenWhole) {
  const std::string lines = Text(
      R"({"result":{"created":true}})", "\n", R"({"result":{"fragment":true,"events":[)", EventOf(4, 'Y'),
      ",", EventOf(5, 'Y'), "]}}\n", R"({"result":{"fragment":true,"events":[)", EventOf(5, 'Z'), "]}}\n",
      R"({"result":{"events":[)", EventOf(5, 'a'), ",", EventOf(6, 'Y'), "]}}\n");
  FakeServer server([&](const std::string& path) {
    return path == "/version" ? FakeServer::Version() : Chunked(lines, true);
  });
  const auto etcd = Open(server.endpoint());
  const auto watch = etcd->WatchFrom(KeyRange::Prefix(""), 4);
  const auto revisions = [](const std::vector<WatchEvent>& events) {
    std::vector<std::int64_t> all;
    for (const WatchEvent& event : events) all.push_back(event.key.mod_revision);
    return all;
  };
  const auto first = loop_->BlockOn(watch->Next(Soon()));
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_THAT(revisions(*first), ElementsAre(4));
  EXPECT_EQ(watch->next_revision(), 5);
  const auto second = loop_->BlockOn(watch->Next(Soon()));
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_THAT(revisions(*second), ElementsAre(5, 5, 5, 6));
  EXPECT_EQ(StatusOf(loop_->BlockOn(watch->Next(Soon()))).code(), Code::kGone) << "the stream ended";
  EXPECT_EQ(watch->next_revision(), 7);
}

TEST_F(GatewayTest, WhatIsNoWatchOfEtcdEndsIt) {
  const struct {
    std::string answer;
    Code code;
  } cases[] = {
      {Chunked("nonsense\n", false), Code::kIoError},
      {Chunked("{}\n", false), Code::kIoError},
      {Chunked(R"({"result":7})"
               "\n",
               false),
       Code::kIoError},
      {Chunked(R"({"result":{"events":[{"kv":{"key":"YQ==","mod_revision":"9"}}]}})"
               "\n",
               false),
       Code::kIoError},
      {Chunked(Text(R"({"result":{"events":[)", EventOf(2, 'Y'), "]}}\n"), false), Code::kIoError},
      {Chunked(Text(R"({"result":{"events":[)", EventOf(5, 'Y'), ",", EventOf(4, 'Y'), "]}}\n"), false),
       Code::kIoError},
      {Chunked(Text(R"({"result":{"events":[)", EventOf(5, 'z'), "]}}\n"), false), Code::kIoError},
      {Chunked(R"({"result":{"canceled":true,"compact_revision":"9"}})"
               "\n",
               false),
       Code::kLapsed},
      {Chunked(R"({"result":{"canceled":true,"cancel_reason":"why not"}})"
               "\n",
               false),
       Code::kGone},
      {Chunked(R"({"error":{"grpc_code":14,"message":"etcdserver: no leader"}})"
               "\n",
               false),
       Code::kGone},
      {Chunked(R"({"error":{"grpc_code":7,"message":"etcdserver: permission denied"}})"
               "\n",
               false),
       Code::kDenied},
      {Chunked("", true), Code::kGone},
      {FakeServer::Answer("not here", 404), Code::kIoError},
      {FakeServer::Answer(R"({"error":"etcdserver: user name is empty","code":3})", 400), Code::kDenied},
      {"", Code::kGone},
  };
  for (const auto& [answer, code] : cases) {
    FakeServer server(Always(answer));
    const auto etcd = Open(server.endpoint());
    const auto watch = etcd->WatchFrom(KeyRange::Prefix("a"), 3);
    const auto ended = StatusOf(loop_->BlockOn(watch->Next(Soon())));
    EXPECT_EQ(ended.code(), code) << answer << " " << ended.ToString();
    EXPECT_THAT(std::string(ended.message()), HasSubstr(server.endpoint()));
    EXPECT_EQ(watch->next_revision(), 3);
  }
}

TEST_F(GatewayTest, AWatchThatNobodyReadsEndsPastItsBoundAfterWhatItHas) {
  const std::string line = Text(R"({"result":{"events":[)", EventOf(3, 'Y'), "]}}\n");
  FakeServer server([&](const std::string& path) {
    if (path == "/version") return FakeServer::Version();
    const std::string rest = line + std::string(Limits::kUnreadBytes + 1, ' ');
    return Text("HTTP/1.1 200 OK\r\nContent-Length: ", rest.size(), "\r\n\r\n", rest);
  });
  const auto etcd = Open(server.endpoint());
  const auto watch = etcd->WatchFrom(KeyRange::Prefix("a"), 3);
  const auto first = loop_->BlockOn(watch->Next(Soon()));
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_THAT(*first, SizeIs(1));
  const auto ended = StatusOf(loop_->BlockOn(watch->Next(Soon())));
  EXPECT_EQ(ended.code(), Code::kBusy) << ended.ToString();
}

TEST_F(GatewayTest, OptionsThatCannotServeAreNamed) {
  const std::string good = "http://127.0.0.1:1";
  const struct {
    GatewayOptions options;
    const char* says;
  } cases[] = {
      {{}, "0 endpoints"},
      {{.endpoints = {"127.0.0.1:2379"}}, "http://10.0.0.7:2379"},
      {{.endpoints = {"ftp://127.0.0.1"}}, "ftp://127.0.0.1"},
      {{.endpoints = {"http://"}}, "host and port"},
      {{.endpoints = {good, "http://me:secret@host:1"}}, "options of their own"},
      {{.endpoints = {good}, .certificate_file = "/c", .key_file = "/k"}, "must be https://"},
      {{.endpoints = {"https://host:1"}, .certificate_file = "/c"}, "together"},
      {{.endpoints = {"https://host:1"}, .authorities_file = "/no/such/file"}, "/no/such/file"},
      {{.endpoints = {good}, .password = "secret"}, "without a user"},
      {{.endpoints = {good}, .connect_us = 0}, "connect_us is 0"},
  };
  for (const auto& [options, says] : cases) {
    const auto opened = OpenGateway(*loop_, options);
    ASSERT_FALSE(opened.has_value()) << says;
    EXPECT_EQ(opened.error().code(), Code::kInvalid);
    EXPECT_THAT(std::string(opened.error().message()), HasSubstr(says));
    EXPECT_THAT(std::string(opened.error().message()), Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace cistern::etcd
