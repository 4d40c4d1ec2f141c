// SPDX-License-Identifier: Apache-2.0
// Sessions without a client: their rings are written here.
#include "server/active_sessions.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "memory/shared_memory.h"
#include "server/test_server.h"
#include "server/touches.h"

namespace cistern::server {
namespace {

class ActiveSessionsTest : public testing::Test {
 protected:
  ~ActiveSessionsTest() override {
    for (const auto& session : sessions_) active_.Forget(*session);
    sessions_.clear();
    server_.Settle();
  }
  Session& Make() {
    Executor& executor = server_.loop->executor();
    Result<memory::SharedMemory> made = server_.loop->BlockOn(memory::MakeSharedMemory(
        executor, *server_.movers, "session", sizeof(wire::SessionMemory), Access::kReadWrite));
    CISTERN_ASSERT(made.has_value());
    sessions_.push_back(std::make_unique<Session>(catalog::Caller{}, 0, *server_.movers, std::move(*made),
                                                  server_.lanes->Make()));
    sessions_.back()->ring.SetCoreSleeps(true);
    return *sessions_.back();
  }

  TestServer server_;
  ServerCounters counters_;
  Touches touches_{server_.loop->executor(), *server_.store, counters_};
  std::vector<Session*> called_;  // for each call that was found
  std::vector<std::string> forged_;
  ActiveSessions active_{
      *server_.loop,
      touches_,
      {.call = [this](Session& session, const wire::Submission&) { called_.push_back(&session); },
       .forged =
           [this](Session& session, std::string what) {
             session.ended = true;
             forged_.push_back(std::move(what));
           }}};
  std::vector<std::unique_ptr<Session>> sessions_;
};

TEST_F(ActiveSessionsTest, WhatIsSubmittedIsFoundOnceTheSessionHasSignalled) {
  Session& session = Make();
  session.page().submitted = 1;
  server_.Settle();
  EXPECT_TRUE(called_.empty());
  active_.Activate(session);
  server_.Until([&] { return !called_.empty(); });
  EXPECT_EQ(called_, std::vector<Session*>{&session});
}

TEST_F(ActiveSessionsTest, P5SessionsThatSubmitALotAreServedInTurns) {
  Session &first = Make(), &second = Make();
  for (Session* session : {&first, &second}) {
    session->page().submitted = 8;
    active_.Activate(*session);
  }
  server_.Until([&] { return called_.size() == 16; });
  const std::vector<Session*> turns = {called_[0], called_[4], called_[8], called_[12]};
  EXPECT_EQ(turns, (std::vector<Session*>{&first, &second, &first, &second}));
}

TEST_F(ActiveSessionsTest, AnIdleOneIsLetGoOfAndToldToSignal) {
  Session& session = Make();
  active_.Activate(session);
  EXPECT_EQ(active_.size(), 1u);
  EXPECT_EQ(session.page().core_sleeps, 0u);
  server_.Until([&] { return active_.size() == 0; });
  EXPECT_EQ(session.page().core_sleeps, 1u);
  EXPECT_FALSE(session.active);
}

TEST_F(ActiveSessionsTest, ARingThatIsAheadOfItselfIsForgedAndNothingOfItIsTaken) {
  Session& session = Make();
  session.page().submitted = wire::kRingEntries + 1;
  active_.Activate(session);
  server_.Until([&] { return !forged_.empty(); });
  server_.Until([&] { return active_.size() == 0; });
  EXPECT_EQ(forged_.size(), 1u);
  EXPECT_TRUE(called_.empty());
}

}  // namespace
}  // namespace cistern::server
