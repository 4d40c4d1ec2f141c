// SPDX-License-Identifier: Apache-2.0
// Clients of a node that stands still, and what they find when it goes on.
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/format.h"
#include "node_process.h"
#include "transfer/transfers.h"

namespace cistern {
namespace {

class Stopped : public NodeProcess {
 protected:
  void Stop() {
    kill(child_, SIGSTOP);
    waitpid(child_, nullptr, WUNTRACED);
  }
  void GoOn() { kill(child_, SIGCONT); }
  static bool Sleeps(pid_t thread) {
    std::string line;
    std::ifstream file(Text("/proc/self/task/", thread, "/stat"));
    std::getline(file, line);
    const std::size_t name_ends = line.rfind(") ");
    return name_ends != std::string::npos && line[name_ends + 2] == 'S';
  }
};

// Each put wants more than the session has, for which it asks the node.
TEST_F(Stopped, PutsThatEndedMeanwhileLeaveNoAnswersInTheWayOfOneThatComesLater) {
  Stop();
  const std::vector<std::byte> body = BodyOf(2, 2u << 20);
  for (int i = 0; i < 400; ++i) {
    const Status late = store_->Put(ns_, KeyOf(2), std::nullopt, body, {.deadline_us = 1'000});
    ASSERT_EQ(late.code(), Code::kTooLate) << i << ": " << late.ToString();
  }
  GoOn();
  Result<Staging> large = store_->AllocateStaging(8u << 20);
  ASSERT_TRUE(large.has_value()) << large.error().ToString();
  *large = Staging();
  const Status put = store_->Put(ns_, KeyOf(2), std::nullopt, body, {.deadline_us = 60'000'000});
  EXPECT_TRUE(put.ok()) << put.ToString();
}

TEST_F(Stopped, AThreadThatIsCancelledWhileItWaitsLeavesTheHandleToOthers) {
  struct Waits {
    Store& store;
    std::atomic<pid_t> thread = 0;
  } waits{*store_};
  Stop();
  pthread_t thread;
  const auto wait = [](void* of) -> void* {
    auto& it = *static_cast<Waits*>(of);
    it.thread = gettid();
    static_cast<void>(it.store.StatusJson(300'000'000));
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, wait, &waits), 0);
  Until([&] { return waits.thread != 0 && Sleeps(waits.thread); });
  pthread_cancel(thread);
  void* ended = nullptr;
  pthread_join(thread, &ended);
  EXPECT_EQ(ended, PTHREAD_CANCELED);
  GoOn();
  for (int i = 0; i < 3; ++i) {
    const Result<std::string> state = store_->StatusJson(60'000'000);
    ASSERT_TRUE(state.has_value()) << state.error().ToString();
  }
}

// The first save waits for staging of the node until its own deadline, and with it the thread that saves.
TEST_F(Stopped, Promise3ASaveBehindOneThatWaitsIsReportedByItsDeadlineToWhoWaitsForTheDescriptor) {
  std::vector<std::byte> memory(2u << 20);
  const transfer::Fragment fragment{memory.data(), memory.size(), memory.size()};
  const auto pages = std::make_shared<const transfer::Pages>(
      *transfer::Pages::Make({.fragments = std::span(&fragment, 1), .pages = 1}));
  const auto store = std::make_shared<Store>(std::move(*store_));
  store_.reset();
  const auto transfers = *transfer::Transfers::Make(store, {});
  const auto save = [&](std::uint64_t number, std::int64_t deadline_us) {
    transfer::PageSave move;
    move.ns = ns_;
    move.keys = std::make_shared<const std::vector<BlockKey>>(1, KeyOf(number));
    move.pages = pages;
    move.page_ids = {0};
    move.parents.resize(1);
    move.deadline_us = deadline_us;
    return *transfers->Submit(std::move(move));
  };
  save(2, 60'000'000);  // asks for what saves may have in staging
  ASSERT_EQ(transfers->Wait(60'000'000).size(), 1u);
  std::vector<Staging> all;
  for (Result<Staging> more = store->AllocateStaging(1u << 20); more; more = store->AllocateStaging(1u << 20))
    all.push_back(std::move(*more));
  Stop();
  const std::uint64_t first = save(3, 300'000'000), second = save(4, 1'000);
  pollfd readable{.fd = transfers->event_fd(), .events = POLLIN, .revents = 0};
  std::vector<transfer::TransferDone> done;
  while (done.empty() && poll(&readable, 1, 60'000) == 1) done = transfers->Poll();
  GoOn();
  all.clear();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, second);
  EXPECT_EQ(done[0].outcomes[0], Code::kTooLate);
  done = transfers->Wait(60'000'000);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, first);
  EXPECT_EQ(done[0].outcomes[0], Code::kOk) << done[0].message;
}

}  // namespace
}  // namespace cistern
