// SPDX-License-Identifier: Apache-2.0
#include "net/control_connection.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/codec.h"
#include "base/format.h"
#include "base/limits.h"
#include "base/nearest.h"
#include "base/step_budget.h"
#include "net/answer_code.h"

namespace cistern::net {
namespace {

constexpr std::uint32_t kHelloMagic = 0x4f4c4843;  // "CHLO" in memory
constexpr std::size_t kMaxName = 255;
constexpr std::size_t kMaxHelloBytes = 1024;
constexpr std::size_t kShownBytes = 1024;  // of the other side's message

std::vector<std::byte> Encode(const Hello& hello) {
  std::vector<std::byte> payload;
  Encoder out(payload);
  out.U32(kHelloMagic);
  out.U16(hello.lowest_version);
  out.U16(hello.highest_version);
  out.U64(hello.process_number);
  out.String(hello.member);
  return payload;
}

// Later versions may add fields behind.
std::optional<Hello> DecodeHello(ConstPiece payload) {
  Decoder in(payload);
  const std::uint32_t magic = in.U32();
  Hello hello;
  hello.lowest_version = in.U16();
  hello.highest_version = in.U16();
  hello.process_number = in.U64();
  hello.member = in.String(kMaxName);
  if (!in.ok() || magic != kHelloMagic || hello.lowest_version > hello.highest_version) return std::nullopt;
  return hello;
}

}  // namespace

ControlConnection::ControlConnection(std::unique_ptr<Stream> stream, ControlHandler& handler, Lane* lane)
    : stream_(std::move(stream)),
      handler_(handler),
      lane_(lane),
      outbox_(*stream_),
      answers_(stream_->executor()) {}

ControlConnection::~ControlConnection() {
  answers_.Drop();
  CISTERN_ASSERT(asked_.empty());
}

Task<Result<std::unique_ptr<ControlConnection>>> ControlConnection::Open(Executor&,
                                                                         std::unique_ptr<Stream> stream,
                                                                         Hello own, ControlHandler& handler,
                                                                         Instant deadline, Lane* lane) {
  std::unique_ptr<ControlConnection> made(new ControlConnection(std::move(stream), handler, lane));
  if (Status status = co_await made->Greet(own, deadline); !status.ok()) co_return Error(std::move(status));
  made->receiving_ = made->ReceiveFrames();
  made->sending_task_ = made->SendFrames();
  co_return made;
}

Task<Status> ControlConnection::Greet(const Hello& own, Instant deadline) {
  CISTERN_ASSERT(own.member.size() <= kMaxName && own.lowest_version <= own.highest_version);
  const std::vector<std::byte> said = Encode(own);
  std::array<std::byte, FrameHead::kBytes> bytes;
  FrameHead head{.payload_bytes = static_cast<std::uint32_t>(said.size()), .kind = FrameKind::kHello};
  head.Store(bytes.data());
  const std::array<ConstPiece, 2> pieces = {ConstPiece(bytes), ConstPiece(said)};
  if (Status status = co_await stream_->Send(pieces, deadline); !status.ok()) co_return status;
  if (Status status = co_await Take(bytes, deadline); !status.ok()) co_return status;
  head = FrameHead::Load(bytes.data());
  std::optional<Hello> hello;
  if (head.kind == FrameKind::kHello && head.payload_bytes <= kMaxHelloBytes) {
    std::vector<std::byte> payload(head.payload_bytes);
    if (Status status = co_await Take(payload, deadline); !status.ok()) co_return status;
    hello = DecodeHello(payload);
  }
  if (!hello) co_return Status(Code::kGone, Text(stream_->peer(), ": said no hello: it is no member"));
  other_ = std::move(*hello);
  version_ = std::min(own.highest_version, other_.highest_version);
  if (version_ < std::max(own.lowest_version, other_.lowest_version)) {
    co_return Status(
        Code::kMismatch,
        Text("member ", Shown(other_.member), " at ", stream_->peer(), " speaks versions ",
             other_.lowest_version, " to ", other_.highest_version, ", this one ", own.lowest_version, " to ",
             own.highest_version, ": bring both to releases that are neighbours"));
  }
  co_return Status();
}

Task<Status> ControlConnection::Take(std::span<std::byte> into, Instant deadline) {
  while (!into.empty()) {
    Result<std::size_t> bytes = co_await stream_->Receive({&into, 1}, deadline);
    if (!bytes) co_return bytes.error();
    if (*bytes == 0) co_return Status(Code::kGone, Text(stream_->peer(), ": closed the connection"));
    into = into.subspan(*bytes);
  }
  co_return Status();
}

void ControlConnection::End(Status why) {
  if (!ended_status_.ok()) return;
  ended_status_ = std::move(why);
  stream_->Close();
  something_to_send_.Set();
  for (const auto& [id, asked] : asked_) {
    // Whose answer is here has it.
    if (asked->answered.is_set()) continue;
    asked->status = ended_status_;
    asked->answered.Set();
  }
  ended_.Set();
}

Task<void> ControlConnection::Close() {
  End(Status(Code::kGone, Text(stream_->peer(), ": the connection was closed here")));
  co_await answers_.Close();
  // Who asked has been told, and not gone on yet.
  while (!asked_.empty()) co_await Yield();
}

// A heartbeat comes where nothing else does, so silence means that the other side or the way from it is gone.
Task<void> ControlConnection::ReceiveFrames() {
  Status status;
  while (status.ok()) {
    std::array<std::byte, FrameHead::kBytes> bytes;
    const Instant silent_at = executor().Now().PlusUs(ControlLimits::kSilenceUs);
    status = co_await Take(bytes, silent_at);
    if (!status.ok()) break;
    const FrameHead head = FrameHead::Load(bytes.data());
    if (head.payload_bytes > ControlLimits::kPayloadBytes) {
      status = Status(Code::kGone, Text(stream_->peer(), ": sent a message of ", head.payload_bytes,
                                        " bytes, the limit is ", ControlLimits::kPayloadBytes));
      break;
    }
    std::vector<std::byte> payload;
    payload.reserve(head.payload_bytes);
    const Instant late_at = executor().Now().PlusUs(ControlLimits::kSilenceUs);
    while (status.ok() && payload.size() < head.payload_bytes) {
      if (!payload.empty()) co_await Yield();
      const std::size_t begin = payload.size();
      payload.resize(std::min<std::size_t>(head.payload_bytes, begin + kStepBytes));
      status = co_await Take(std::span(payload).subspan(begin), late_at);
    }
    if (status.ok()) status = Handle(head, std::move(payload));
    // What the next one leads to is another step.
    if (status.ok()) co_await Yield();
  }
  if (status.code() == Code::kTooLate)
    status = Status(Code::kGone, Text(stream_->peer(), ": has been silent for ",
                                      ControlLimits::kSilenceUs / 1000, " ms, so it is gone"));
  End(std::move(status));
}

Task<void> ControlConnection::SendFrames() {
  while (ended_status_.ok()) {
    if (outbox_.unsent().empty()) {
      something_to_send_.Reset();
      const Instant quiet_at = executor().Now().PlusUs(ControlLimits::kHeartbeatUs);
      const Status woken = co_await something_to_send_.Wait(quiet_at);
      if (!woken.ok() && outbox_.unsent().empty()) (void)Add({}, {});
      continue;
    }
    const Status status = co_await outbox_.SendOnce(executor().Now().PlusUs(ControlLimits::kSilenceUs));
    if (!status.ok()) End(Status(Code::kGone, std::string(status.message())));
  }
}

Status ControlConnection::Add(FrameHead head, ConstPiece payload) {
  if (!ended_status_.ok()) return ended_status_;
  if (payload.size() > ControlLimits::kPayloadBytes)
    return Status(Code::kInvalid, Text("a message of ", payload.size(), " bytes: a control connection takes ",
                                       ControlLimits::kPayloadBytes));
  std::vector<std::byte>& unsent = outbox_.unsent();
  if (unsent.size() + payload.size() > ControlLimits::kUnsentBytes)
    return Status(Code::kBusy, Text(stream_->peer(), ": has not taken ", unsent.size(),
                                    " bytes of messages, the ", "limit is ", ControlLimits::kUnsentBytes));
  head.payload_bytes = static_cast<std::uint32_t>(payload.size());
  const std::size_t at = unsent.size();
  unsent.resize(at + FrameHead::kBytes);
  head.Store(unsent.data() + at);
  unsent.insert(unsent.end(), payload.begin(), payload.end());
  something_to_send_.Set();
  return Status();
}

Status ControlConnection::Tell(std::uint16_t type, ConstPiece payload) {
  return Add({.kind = FrameKind::kNotice, .type = type}, payload);
}

Task<Result<std::vector<std::byte>>> ControlConnection::Ask(std::uint16_t type, ConstPiece payload,
                                                            Instant deadline) {
  const std::int64_t left_us = deadline.UsSince(executor().Now());
  if (left_us <= 0)
    co_return Error(Code::kTooLate, Text(stream_->peer(), ": was not asked, the deadline had passed"));
  FrameHead head{.kind = FrameKind::kQuestion, .type = type, .id = ++last_id_};
  head.remaining_us = static_cast<std::uint32_t>(std::min(left_us, ControlLimits::kQuestionUs));
  if (Status status = Add(head, payload); !status.ok()) co_return Error(std::move(status));
  const auto asked = std::make_shared<Asked>();
  asked_[head.id] = asked;
  struct Waits {
    ControlConnection& connection;
    std::uint32_t id;
    ~Waits() { connection.asked_.erase(id); }
  };
  Status waited;
  {
    const Waits waits{*this, head.id};
    waited = co_await asked->answered.Wait(deadline);
  }
  if (!waited.ok())
    co_return Error(waited.code(), Text(stream_->peer(), ": did not answer before the deadline"));
  if (!asked->status.ok()) co_return Error(asked->status);
  co_return std::move(asked->payload);
}

Status ControlConnection::Handle(const FrameHead& head, std::vector<std::byte> payload) {
  if (!ended_status_.ok()) return ended_status_;  // it had come before
  switch (head.kind) {
    case FrameKind::kHello: return Status(Code::kGone, Text(stream_->peer(), ": said hello a second time"));
    case FrameKind::kHeartbeat: return Status();
    case FrameKind::kNotice: handler_.Notice(head.type, payload); return Status();
    case FrameKind::kAnswer: {
      const auto asked = asked_.find(head.id);
      // Its deadline came first, or an answer before this one.
      if (asked == asked_.end() || asked->second->answered.is_set()) return Status();
      const Code code = CodeSaid(head.code);
      if (code == Code::kOk) {
        asked->second->payload = std::move(payload);
      } else {
        const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
        asked->second->status = Status(code, Text(stream_->peer(), ": ", Shown(text, kShownBytes)));
      }
      asked->second->answered.Set();
      return Status();
    }
    case FrameKind::kQuestion: {
      if (lane_ != nullptr) lane_->Charge(payload.size() / kBytesPerTouch);
      if (answers_.size() >= ControlLimits::kQuestions) {
        const std::string why = Text(answers_.size(), " questions are being answered, which is the limit");
        const FrameHead busy{
            .kind = FrameKind::kAnswer, .code = static_cast<std::uint8_t>(Code::kBusy), .id = head.id};
        const Status added = Add(busy, std::as_bytes(std::span(why)));
        return added.ok() ? Status() : Status(Code::kGone, std::string(added.message()));
      }
      const Executor::InLane in(executor(), lane_);
      answers_.Spawn(AnswerOne(head, std::move(payload)));
      return Status();
    }
  }
  return Status();  // of a later version
}

Task<void> ControlConnection::AnswerOne(FrameHead question, std::vector<std::byte> payload) {
  const Instant deadline =
      executor().Now().PlusUs(std::min<std::int64_t>(question.remaining_us, ControlLimits::kQuestionUs));
  co_await Yield();  // its turn
  if (!ended_status_.ok()) co_return;
  Result<std::vector<std::byte>> made = Error(Code::kTooLate, "its turn came after its deadline");
  if (executor().Now() <= deadline) made = co_await handler_.Answer(question.type, payload, deadline);
  FrameHead head{.kind = FrameKind::kAnswer, .id = question.id};
  Status added;
  if (made) {
    added = Add(head, *made);
  } else {
    head.code = static_cast<std::uint8_t>(made.error().code());
    const std::string_view why = made.error().message().substr(0, ControlLimits::kPayloadBytes);
    added = Add(head, std::as_bytes(std::span(why)));
  }
  // Who does not take its answers asks no more.
  if (!added.ok() && added.code() != Code::kGone) End(Status(Code::kGone, std::string(added.message())));
}

}  // namespace cistern::net
