// SPDX-License-Identifier: Apache-2.0
// The sessions that are polled: those that submitted something a moment ago. Another one has its core_sleeps
// word set, so that its next submission signals and makes it active; a thousand idle sessions cost nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "io/loop.h"
#include "server/session.h"
#include "server/touches.h"
#include "wire/protocol.h"

namespace cistern::server {

class ActiveSessions final : private io::Poller {
 public:
  // Told of what a session's ring holds, in the session's lane. Either may end the session.
  struct Found {
    // The ranges in it are as the client wrote them.
    std::function<void(Session& session, const wire::Submission& call)> call;
    std::function<void(Session& session, std::string what)> forged;
  };

  // The loop and the touches are borrowed.
  ActiveSessions(io::Loop& loop, Touches& touches, Found found);

  // The session has signalled: it is polled until it has been idle for a moment.
  void Activate(Session& session);
  // The session goes.
  void Forget(const Session& session);

  std::size_t size() const { return active_.size(); }
  // The number of the last poll: what is done once a poll is done when it is another.
  std::uint32_t polls() const { return polls_; }

 private:
  // Of one poll, so that it stays within a core step and nobody waits for one who submits a lot.
  static constexpr std::size_t kSessionsPerPoll = 32;
  static constexpr std::uint32_t kCallsPerSession = 4;
  // Steps of a session that are ready: past it the rest of its calls stay in its ring.
  static constexpr std::size_t kReadyOfSession = 4;
  static constexpr std::uint32_t kPollsPerGlance = 64;  // how seldom touches and idleness are looked at
  static constexpr std::int64_t kActiveUs = 1'000;

  bool Poll() override;
  void AboutToSleep() override;
  void Awake() override;
  bool PollOne(Session& session);
  void Glance(Instant now);
  void Deactivate(std::size_t at);

  Executor& executor_;
  Touches& touches_;
  const Found found_;
  std::vector<Session*> active_;
  std::size_t next_ = 0;
  std::uint32_t polls_ = 0;
  bool falling_asleep_ = false;
};

}  // namespace cistern::server
