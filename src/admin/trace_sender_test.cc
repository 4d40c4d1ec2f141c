// SPDX-License-Identifier: Apache-2.0
#include "admin/trace_sender.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/format.h"

namespace cistern::admin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// A collector: keeps what it is sent, and answers with what it is told to; 0: not at all.
class Collector final {
 public:
  explicit Collector(int answer) : answer_(answer) {
    listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    socklen_t length = sizeof(at);
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &length), 0);
    port_ = ntohs(at.sin_port);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Collector() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string url() const { return Text("http://127.0.0.1:", port_); }
  void Answer(int with) {
    const std::lock_guard lock(mutex_);
    answer_ = with;
  }
  // The requests, once there are so many.
  std::vector<std::string> Await(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return requests_.size() >= count; }));
    return requests_;
  }

 private:
  void Run() {
    std::vector<Fd> silent;
    for (;;) {
      Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket.valid()) return;
      std::string all;
      char bytes[4096];
      while (!Whole(all)) {
        const ssize_t got = recv(socket.get(), bytes, sizeof(bytes), 0);
        if (got <= 0) break;
        all.append(bytes, static_cast<std::size_t>(got));
      }
      const std::lock_guard lock(mutex_);
      requests_.push_back(all);
      changed_.notify_all();
      if (answer_ == 0) {
        silent.push_back(std::move(socket));
        continue;
      }
      const std::string said =
          Text("HTTP/1.1 ", answer_, " x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
      EXPECT_EQ(send(socket.get(), said.data(), said.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(said.size()));
    }
  }
  static bool Whole(const std::string& all) {
    const std::size_t body = all.find("\r\n\r\n");
    const std::size_t length = all.find("Content-Length: ");
    return body != all.npos && length != all.npos &&
           all.size() >= body + 4 + std::strtoul(all.c_str() + length + 16, nullptr, 10);
  }

  Fd listener_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> requests_;
  int answer_;
  std::thread thread_;
};

struct Lines {
  std::mutex mutex;
  std::vector<std::string> all;
  std::unique_ptr<Logger> log = Logger::ToSink(LogLevel::kInfo, [this](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    all.emplace_back(line);
  });
};

const SimulatedClock kClock;

SlowCall Call(std::uint64_t count) {
  return {.kind = CallKind::kWrite,
          .stations = CallStations(kClock, Instant{1'000}),
          .ended = Instant{2'000},
          .count = count};
}

std::string UrlOf(const Collector& collector) { return *ParseTraceEndpoint("otlp", collector.url()); }

// A sender and its collector.
struct Sending {
  explicit Sending(int answer) : collector(answer) {}
  void AwaitSent() const {
    while (sender.sent() == 0) std::this_thread::yield();
  }

  Collector collector;
  Lines lines;
  TraceSender sender{UrlOf(collector), {{"service.name", "cistern"}}, *lines.log};
};

TEST(TraceSender, AnEndpointIsHttpAndItsTracesHaveTheUsualPath) {
  EXPECT_EQ(*ParseTraceEndpoint("otlp", "http://127.0.0.1:4318"), "http://127.0.0.1:4318/v1/traces");
  EXPECT_EQ(*ParseTraceEndpoint("otlp", "https://traces.example/"), "https://traces.example/v1/traces");
  EXPECT_EQ(*ParseTraceEndpoint("otlp", "http://[::1]:4318/here"), "http://[::1]:4318/here");
  for (const char* wrong :
       {"", "127.0.0.1:4318", "grpc://a:4317", "http://", "http:///v1/traces", "http://:4318", "http://a b",
        "http://u:secret@host", "http://a\n", "file:///etc/passwd"}) {
    const Result<std::string> endpoint = ParseTraceEndpoint("otlp", wrong);
    ASSERT_FALSE(endpoint.has_value()) << wrong;
    EXPECT_EQ(endpoint.error().code(), Code::kInvalid);
    EXPECT_THAT(std::string(endpoint.error().message()), HasSubstr("otlp: "));
  }
}

TEST(TraceSender, SendsWhatItIsGiven) {
  Sending sending(200);
  sending.sender.Add(Call(41));
  const std::string request = sending.collector.Await(1)[0];
  EXPECT_THAT(request, HasSubstr("POST /v1/traces HTTP/1.1\r\n"));
  EXPECT_THAT(request, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(request, HasSubstr(R"({"key":"cistern.parts","value":{"intValue":"41"}})"));
  sending.AwaitSent();
  EXPECT_EQ(sending.sender.sent(), 1u);
  EXPECT_EQ(sending.sender.lost(), 0u);
}

TEST(TraceSender, WhatIsNotTakenNowIsSentAgainUnderTheSameIdAndSaidOnce) {
  Sending sending(503);
  sending.sender.Add(Call(1));
  sending.collector.Await(1);
  sending.collector.Answer(200);
  const std::vector<std::string> requests = sending.collector.Await(2);
  const auto id = [](const std::string& request) { return request.substr(request.find("traceId"), 48); };
  EXPECT_EQ(id(requests[0]), id(requests[1]));
  sending.AwaitSent();
  sending.lines.log.reset();
  EXPECT_THAT(sending.lines.all, ElementsAre(HasSubstr("does not take traces (it answered 503)"),
                                             HasSubstr("takes traces again")));
  EXPECT_EQ(sending.sender.lost(), 0u);
}

TEST(TraceSender, WhatIsRefusedIsLostAndTheNextIsSent) {
  Sending sending(400);
  sending.sender.Add(Call(1));
  while (sending.sender.lost() == 0) std::this_thread::yield();
  sending.collector.Answer(200);
  sending.sender.Add(Call(2));
  EXPECT_THAT(sending.collector.Await(2)[1], HasSubstr(R"("intValue":"2")"));
  sending.AwaitSent();
}

TEST(TraceSender, P5ACollectorThatNeverAnswersCostsABoundedQueueAndNobodysTime) {
  Collector collector(0);
  Lines lines;
  {
    TraceSender sender(UrlOf(collector), {}, *lines.log);
    sender.Add(Call(0));
    collector.Await(1);  // it is at that one from now on
    for (std::uint64_t i = 1; i <= 10'000; ++i) sender.Add(Call(i));
    EXPECT_EQ(sender.sent(), 0u);
    EXPECT_EQ(sender.lost(), 10'000 - TraceSender::kMaxWaiting);
  }  // and its end does not wait for an answer
}

TEST(TraceSender, ACollectorThatIsNotThereIsSaidOnce) {
  // Nobody listens there, and nobody else can.
  const Fd nobody(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(at);
  ASSERT_EQ(bind(nobody.get(), reinterpret_cast<sockaddr*>(&at), length), 0);
  ASSERT_EQ(getsockname(nobody.get(), reinterpret_cast<sockaddr*>(&at), &length), 0);
  Lines lines;
  {
    const std::string url = Text("http://127.0.0.1:", ntohs(at.sin_port));
    TraceSender sender(*ParseTraceEndpoint("otlp", url), {}, *lines.log);
    for (std::uint64_t i = 0; i < 3; ++i) sender.Add(Call(i));
    for (bool said = false; !said; std::this_thread::yield()) {
      const std::lock_guard lock(lines.mutex);
      said = !lines.all.empty();
    }
  }
  lines.log.reset();
  EXPECT_THAT(lines.all, ElementsAre(HasSubstr("does not take traces")));
}

}  // namespace
}  // namespace cistern::admin
