// SPDX-License-Identifier: Apache-2.0
// The simulated etcd beside a real one: random transactions, ranges, leases and compactions, asked of both,
// have the same answers, and a watch tells the same of both.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/random.h"
#include "etcd/gateway.h"
#include "etcd/simulated.h"
#include "etcd/test_etcd.h"
#include "io/loop.h"

namespace cistern::etcd {
namespace {

constexpr int kSteps = 300;

std::string TextOf(const RangeAnswer& answer) {
  std::string text = Text(answer.header.revision, ": ", answer.keys.size(), answer.more ? "+" : "");
  for (const KeyValue& key : answer.keys)
    text += Text(" ", key.key, "=", key.value, "@", key.create_revision, ",", key.mod_revision,
                 key.lease != 0 ? " leased" : "");
  return text;
}
std::string TextOf(const TransactionAnswer& answer) {
  std::string text = Text(answer.header.revision, answer.succeeded ? " then" : " otherwise");
  for (const RangeAnswer& range : answer.ranges) text += Text(" [", TextOf(range), "]");
  return text;
}
template <class A>
std::string TextOf(const Result<A>& answer) {
  return answer ? TextOf(*answer) : std::string(CodeName(answer.error().code()));
}

// Both etcds, and the leases that each has granted.
class Likeness {
 public:
  explicit Likeness(std::uint64_t seed) : random_(seed), seed_(seed) {
    const Status started = server_.Start();
    EXPECT_TRUE(started.ok()) << started.ToString();
    etcds_[0] = std::move(*OpenGateway(*loop_, {.endpoints = {server_.endpoint()}}));
    etcds_[1] = simulated_.Client("a");
  }

  void Run() {
    for (step_ = 0; step_ < kSteps && !::testing::Test::HasFailure(); ++step_) {
      const std::uint64_t kind = random_.Below(100);
      if (kind < 60) {
        Commit();
      } else if (kind < 85) {
        Range();
      } else if (kind < 92) {
        Grant();
      } else if (kind < 97) {
        Revoke();
      } else {
        Compact();
      }
    }
    Watch(compacted_ + 1);
  }

 private:
  template <class Ask>
  void Same(std::string_view what, Ask&& ask) {
    const std::string real = ask(0), simulated = ask(1);
    EXPECT_EQ(real, simulated) << "seed " << seed_ << ", step " << step_ << ", a " << what;
  }
  Instant Soon() const { return clock_.Now().PlusUs(60'000'000); }
  std::string Key() { return Text("k", random_.Below(6)); }
  KeyRange Keys() {
    switch (random_.Below(4)) {
      case 0: return KeyRange::Prefix("k");
      case 1: return {"k2", "k5"};
      default: return {Key(), ""};
    }
  }

  void Commit() {
    std::array<Transaction, 2> both;
    for (std::uint64_t left = random_.Below(3); left > 0; --left) {
      Compare condition{
          .key = Key(),
          .what = static_cast<Compare::What>(random_.Below(3)),
          .number = static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(revision_) + 2)),
          .value = Text(random_.Below(3))};
      for (Transaction& each : both) each.conditions.push_back(condition);
    }
    for (const auto side : {&Transaction::then, &Transaction::otherwise}) {
      for (std::uint64_t left = random_.Below(4); left > 0; --left) {
        Operation operation{.kind = static_cast<Operation::Kind>(random_.Below(3)),
                            .keys = Keys(),
                            .value = Text(random_.Below(3)),
                            .limit = static_cast<std::int64_t>(random_.Below(3))};
        const bool put = operation.kind == Operation::Kind::kPut;
        if (put) operation.keys = {Key(), ""};
        const bool leased = put && !leases_[0].empty() && random_.Chance(0.3);
        const std::size_t lease = leased ? random_.Below(leases_[0].size()) : 0;
        for (std::size_t i = 0; i < 2; ++i) {
          operation.lease = leased ? leases_[i][lease] : 0;
          (both[i].*side).push_back(operation);
        }
      }
    }
    Same("transaction", [&](std::size_t i) {
      const auto answer = loop_->BlockOn(etcds_[i]->Commit(both[i], Soon()));
      if (answer) revision_ = answer->header.revision;
      return TextOf(answer);
    });
  }
  void Range() {
    const RangeRequest request{
        .keys = Keys(),
        .revision = random_.Chance(0.5)
                        ? 0
                        : static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(revision_) + 2)),
        .limit = static_cast<std::int64_t>(random_.Below(3))};
    Same("range", [&](std::size_t i) { return TextOf(loop_->BlockOn(etcds_[i]->Range(request, Soon()))); });
  }
  void Grant() {
    Same("grant", [&](std::size_t i) {
      const auto answer = loop_->BlockOn(etcds_[i]->Grant(5'000, Soon()));
      if (answer) leases_[i].push_back(answer->id);
      return answer ? Text(answer->header.revision, " ", answer->ttl_s) : answer.error().ToString();
    });
  }
  void Revoke() {
    if (leases_[0].empty()) return;
    const std::size_t lease = random_.Below(leases_[0].size());
    Same("revocation", [&](std::size_t i) {
      return loop_->BlockOn(etcds_[i]->Revoke(leases_[i][lease], Soon())).ToString();
    });
    Same("renewal", [&](std::size_t i) {
      const auto answer = loop_->BlockOn(etcds_[i]->KeepAlive(leases_[i][lease], Soon()));
      if (answer) revision_ = answer->header.revision;
      return answer ? Text(answer->header.revision, " ", answer->ttl_s) : answer.error().ToString();
    });
  }
  void Compact() {
    const auto upto =
        static_cast<std::int64_t>(random_.Between(1, static_cast<std::uint64_t>(revision_) + 1));
    Same("compaction", [&](std::size_t i) {
      const Status status = loop_->BlockOn(etcds_[i]->Compact(upto, Soon()));
      if (status.ok()) compacted_ = std::max(compacted_, upto);
      return std::string(CodeName(status.code()));
    });
  }
  void Watch(std::int64_t from) {
    Same("watch", [&](std::size_t i) {
      const auto last = loop_->BlockOn(etcds_[i]->Commit({.then = {{.keys = {"k9", ""}}}}, Soon()));
      const auto watch = etcds_[i]->WatchFrom(KeyRange::Prefix("k"), from);
      std::string text;
      while (last && watch->next_revision() <= last->header.revision) {
        const auto events = loop_->BlockOn(watch->Next(Soon()));
        if (!events) return Text(text, events.error().ToString());
        for (const WatchEvent& event : *events)
          text += Text(event.kind == WatchEvent::Kind::kPut ? " +" : " -", event.key.key, "=",
                       event.key.value, "@", event.key.create_revision, ",", event.key.mod_revision);
      }
      return text;
    });
  }

  Random random_;
  const std::uint64_t seed_;
  int step_ = 0;
  TestEtcd server_;
  SystemClock clock_;
  std::unique_ptr<io::Loop> loop_ = std::move(*io::MakeLoop(clock_));
  SimulatedEtcd simulated_{loop_->executor(), 1, {.answer_us = 0, .event_us = 0}};
  std::array<std::unique_ptr<Etcd>, 2> etcds_;
  std::array<std::vector<std::int64_t>, 2> leases_;
  std::int64_t revision_ = 1, compacted_ = 0;
};

TEST(SimulatedLikeness, RandomCallsHaveTheAnswersOfARealEtcd) {
  if (!TestEtcd::Installed()) GTEST_SKIP() << "no etcd is installed";
  const char* seeds = std::getenv("CISTERN_TEST_SEEDS");
  const std::uint64_t count = seeds != nullptr ? std::strtoull(seeds, nullptr, 10) : 2;
  for (std::uint64_t seed = 1; seed <= count; ++seed) Likeness(seed).Run();
}

}  // namespace
}  // namespace cistern::etcd
