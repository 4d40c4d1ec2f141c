// SPDX-License-Identifier: Apache-2.0
// The control connection of two members: small messages both ways over one stream, questions with answers and
// notices without, each bounded in size, number and time; and heartbeats, by which each side knows within a
// second that the other one, or the way there or back, is gone. Blocks travel on rails (net/rail.h).
//
// What a message is about is a type and bytes to it. A question of a type that the other side does not know
// is answered with kMismatch, a notice of such a type is skipped, and an answer with a code that this side
// does not know is taken for kMismatch: so members of neighbouring versions talk.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/task_group.h"
#include "net/control_message.h"
#include "net/outbox.h"
#include "net/stream.h"

namespace cistern::net {

struct ControlLimits {
  static constexpr std::size_t kPayloadBytes = 1u << 20;
  static constexpr std::size_t kQuestions = 64;          // of the other side, being answered
  static constexpr std::size_t kUnsentBytes = 4u << 20;  // that the other side has not taken
  static constexpr std::int64_t kHeartbeatUs = 250'000;  // after which a silent side says that it is there
  static constexpr std::int64_t kSilenceUs = 3 * kHeartbeatUs;  // after which it is gone
  static constexpr std::int64_t kQuestionUs = 60'000'000;       // that a question may take, whatever it says
};

// What each side says first.
struct Hello {
  std::uint64_t process_number = 0;  // random, of this start of the member
  std::string member;                // its name in the cell, at most 255 bytes
  // Versions of what is said on this connection and on rails that it speaks; the highest common one is used.
  std::uint16_t lowest_version = 1, highest_version = 1;
};

// What the other side's messages lead to.
class ControlHandler {
 public:
  // The answer's payload, or an error whose code and message are the answer. `payload` is valid until the
  // task ends. kMismatch: no such type.
  virtual Task<Result<std::vector<std::byte>>> Answer(std::uint16_t type, ConstPiece payload,
                                                      Instant deadline) = 0;
  virtual void Notice(std::uint16_t type, ConstPiece payload) = 0;

 protected:
  ~ControlHandler() = default;
};

class ControlConnection final {
 public:
  // Exchanges hellos. kMismatch: no common version, named with both ranges; kTooLate, kGone. The handler is
  // borrowed and outlives the connection. So is the lane, in which questions of the other side are answered,
  // and which has what it costs to receive them counted; null: none. What is no question waits for no turn
  // of it: the other side's notices, its answers, and that it is there.
  static Task<Result<std::unique_ptr<ControlConnection>>> Open(Executor& executor,
                                                               std::unique_ptr<Stream> stream, Hello own,
                                                               ControlHandler& handler, Instant deadline,
                                                               Lane* lane = nullptr);
  // Close was awaited; or the node crashed, and who asked was dropped before.
  ~ControlConnection();
  ControlConnection(const ControlConnection&) = delete;
  ControlConnection& operator=(const ControlConnection&) = delete;

  Executor& executor() { return stream_->executor(); }
  const Hello& other() const { return other_; }
  std::uint16_t version() const { return version_; }

  // The answer to a question. kTooLate: none by the deadline; kBusy: the other side answers kQuestions
  // others, or takes nothing; kGone: the connection ended; else what the other side said.
  Task<Result<std::vector<std::byte>>> Ask(std::uint16_t type, ConstPiece payload, Instant deadline);
  // Queues a notice, in order with all else. kBusy: the other side takes nothing; kGone.
  Status Tell(std::uint16_t type, ConstPiece payload);

  // Why the connection ended, which it does for good; ok while it has not.
  const Status& status() const { return ended_status_; }
  // co_await connection.Ended()
  Event::Waiting Ended() { return ended_.Wait(); }
  // Ends the connection: questions under way here end with kGone. Waits for the answers that are being made,
  // which nobody gets any more.
  Task<void> Close();

 private:
  struct Asked {
    Event answered;
    Status status;
    std::vector<std::byte> payload;
  };

  ControlConnection(std::unique_ptr<Stream> stream, ControlHandler& handler, Lane* lane);
  Task<Status> Greet(const Hello& own, Instant deadline);
  Task<void> ReceiveFrames();
  Task<void> SendFrames();
  Task<void> AnswerOne(FrameHead question, std::vector<std::byte> payload);
  // Exactly so many bytes.
  Task<Status> Take(std::span<std::byte> into, Instant deadline);
  // Adds a frame to what is sent next.
  Status Add(FrameHead head, ConstPiece payload);
  Status Handle(const FrameHead& head, std::vector<std::byte> payload);
  void End(Status why);

  std::unique_ptr<Stream> stream_;
  ControlHandler& handler_;
  Lane* const lane_;
  Hello other_;
  std::uint16_t version_ = 0;
  Outbox outbox_;
  Event something_to_send_;
  std::map<std::uint32_t, std::shared_ptr<Asked>> asked_;  // by id
  std::uint32_t last_id_ = 0;
  Status ended_status_;
  Event ended_;
  TaskGroup answers_;
  Task<void> receiving_, sending_task_;
};

}  // namespace cistern::net
