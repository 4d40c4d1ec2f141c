// SPDX-License-Identifier: Apache-2.0
#include "server/active_sessions.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/spin.h"

namespace cistern::server {

ActiveSessions::ActiveSessions(io::Loop& loop, Touches& touches, Found found)
    : executor_(loop.executor()), touches_(touches), found_(std::move(found)) {
  loop.AddPoller(*this);
}

void ActiveSessions::Activate(Session& session) {
  session.last_used = executor_.Now();
  if (session.active || session.ended) return;
  session.active = true;
  if (!falling_asleep_) session.ring.SetCoreSleeps(false);
  active_.push_back(&session);
}

void ActiveSessions::Deactivate(std::size_t at) {
  active_[at]->active = false;
  active_[at] = active_.back();
  active_.pop_back();
}

void ActiveSessions::Forget(const Session& session) { std::erase(active_, &session); }

bool ActiveSessions::Poll() {
  if (falling_asleep_) {
    return std::any_of(active_.begin(), active_.end(), [](const Session* session) {
      return !session->ended && session->ring.HasSubmission();
    });
  }
  bool any = false;
  ++polls_;
  std::size_t count = std::min(active_.size(), kSessionsPerPoll);
  for (std::size_t i = 0; i < count; ++i) {
    if (next_ >= active_.size()) next_ = 0;
    any |= PollOne(*active_[next_++]);
  }
  if (polls_ % kPollsPerGlance == 0 && !active_.empty()) Glance(executor_.Now());
  return any;
}

bool ActiveSessions::PollOne(Session& session) {
  bool any = session.ring.TakeAnnounced();
  const Executor::InLane in(executor_, &session.lane);
  for (std::uint32_t i = 0; i < kCallsPerSession && !session.ended; ++i) {
    if (session.lane.HasReady(kReadyOfSession)) break;
    wire::Submission call;
    NodeRing::Took took = session.ring.Take(call);
    if (took == NodeRing::Took::kNothing) break;
    any = true;
    if (took == NodeRing::Took::kForged) {
      found_.forged(session, Text("its ring is more than ", wire::kRingEntries, " submissions ahead"));
      break;
    }
    found_.call(session, call);
  }
  if (any) session.last_used = executor_.Now();
  return any;
}

// What need not be seen at once: touches, and who has become idle.
void ActiveSessions::Glance(Instant now) {
  for (std::size_t at = 0; at < active_.size();) {
    Session& session = *active_[at];
    if (session.ended) {
      Deactivate(at);
      continue;
    }
    touches_.Look(session);
    if (now.UsSince(session.last_used) > kActiveUs) {
      session.ring.SetCoreSleeps(true);
      // As before a sleep: either this sees the submission or the client sees the word.
      FullFence();
      if (!session.ring.HasSubmission()) {
        Deactivate(at);
        continue;
      }
      session.ring.SetCoreSleeps(false);
      session.last_used = now;
    }
    at++;
  }
}

void ActiveSessions::AboutToSleep() {
  falling_asleep_ = true;
  for (Session* session : active_) session->ring.SetCoreSleeps(true);
}

void ActiveSessions::Awake() {
  falling_asleep_ = false;
  for (std::size_t at = 0; at < active_.size();) {
    Session& session = *active_[at];
    // Touches keep nobody awake; a client that signalled for them is looked at before the next sleep.
    if (!session.ended && session.ring.HasTouches()) polls_ = kPollsPerGlance - 1;
    if (!session.ended && (session.ring.HasSubmission() || session.ring.HasTouches())) {
      session.ring.SetCoreSleeps(false);
      at++;
    } else {
      Deactivate(at);
    }
  }
}

}  // namespace cistern::server
