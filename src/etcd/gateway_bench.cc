// SPDX-License-Identifier: Apache-2.0
// What a call of etcd costs over loopback by its JSON gateway, one after the other, with etcd's data in
// memory
// (/dev/shm), against an HTTP round trip to the same server that asks nothing of etcd. A disk's sync comes on
// top of each commit.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "base/format.h"
#include "etcd/curl_loop.h"
#include "etcd/gateway.h"
#include "etcd/test_etcd.h"
#include "io/loop.h"

namespace cistern::etcd {
namespace {

constexpr int kCalls = 2'000, kWarm = 100;

class Bench {
 public:
  int Run() {
    if (Status status = server_.Start(); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
    curl_ = std::move(*CurlLoop::Open(*loop_, {}));
    etcd_ = std::move(*OpenGateway(*loop_, {.endpoints = {server_.endpoint()}}));
    Row("HTTP alone (GET /version)", [this] {
      const auto transfer = curl_->Start({.url = server_.endpoint() + "/version", .unread_bytes = 4096});
      while (!transfer->ended()) loop_->Turn();
    });
    Row("range of one key", [this] { Must(loop_->BlockOn(etcd_->Range({.keys = {"cell/1", ""}}, Soon()))); });
    Row("commit of one key of 100 bytes", [this] { Must(loop_->BlockOn(etcd_->Commit(Put(), Soon()))); });
    auto watch =
        etcd_->WatchFrom(KeyRange::Prefix("cell/"), Must(loop_->BlockOn(etcd_->Commit(Put(), Soon()))));
    Must(loop_->BlockOn(watch->Next(Soon())));
    Row("commit until its event is at a watch", [&] {
      auto commit = etcd_->Commit(Put(), Soon());
      Must(loop_->BlockOn(watch->Next(Soon())));
      Must(loop_->BlockOn(std::move(commit)));
    });
    watch.reset();
    return 0;
  }

 private:
  Instant Soon() const { return clock_.Now().PlusUs(10'000'000); }
  static Transaction Put() { return {.then = {{.keys = {"cell/1", ""}, .value = std::string(100, 'v')}}}; }
  static std::int64_t RevisionOf(const TransactionAnswer& answer) { return answer.header.revision; }
  template <class T>
  static std::int64_t RevisionOf(const T&) {
    return 0;
  }
  template <class T>
  static std::int64_t Must(const Result<T>& result) {
    if (result) return RevisionOf(*result);
    std::fprintf(stderr, "%s\n", result.error().ToString().c_str());
    std::exit(1);
  }
  void Row(const char* name, const std::function<void()>& call) {
    std::vector<double> us;
    for (int i = -kWarm; i < kCalls; ++i) {
      const Instant before = clock_.Now();
      call();
      if (i >= 0) us.push_back(static_cast<double>(clock_.Now().NsSince(before)) / 1'000);
    }
    std::ranges::sort(us);
    if (floor_us_ == 0) floor_us_ = us[us.size() / 2];
    std::printf("%-38s p50 %7.0f us, p99 %7.0f us, p50 %5.1f x HTTP alone\n", name, us[us.size() / 2],
                us[us.size() * 99 / 100], us[us.size() / 2] / floor_us_);
  }

  TestEtcd server_;
  SystemClock clock_;
  std::unique_ptr<io::Loop> loop_ = std::move(*io::MakeLoop(clock_));
  std::unique_ptr<CurlLoop> curl_;
  std::unique_ptr<Etcd> etcd_;
  double floor_us_ = 0;
};

}  // namespace
}  // namespace cistern::etcd

int main() { return cistern::etcd::Bench().Run(); }
