// SPDX-License-Identifier: Apache-2.0
#include "server/answer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "server/handshake.h"

namespace cistern::server {

Instant DeadlineOf(const Executor& executor, const wire::Submission& call) {
  return std::min(Instant{call.deadline_ns}, executor.Now().PlusUs(kMaxDeadlineUs));
}

std::span<const std::byte> ArgumentBytes(const Session& session, const wire::Submission& call) {
  return session.arguments().subspan(call.args_offset, call.args_bytes);
}

std::span<std::byte> ReplyRoom(Session& session, const wire::Submission& call) {
  return session.arguments().subspan(call.reply_offset, call.reply_bytes);
}

Answer Reply(Session& session, const wire::Submission& call, std::span<const std::byte> reply,
             Answer answer) {
  std::span<std::byte> room = ReplyRoom(session, call);
  if (reply.size() > room.size()) {
    Answer failed = Fail(session, call,
                         Status(Code::kInvalid, Text("the reply has ", reply.size(),
                                                     " bytes, the call left room for ", room.size())));
    failed.a = reply.size();
    return failed;
  }
  if (!reply.empty()) std::memcpy(room.data(), reply.data(), reply.size());
  answer.reply_bytes = static_cast<std::uint32_t>(reply.size());
  return answer;
}

Result<Answer> Done(Status status) {
  if (!status.ok()) return Error(std::move(status));
  return Answer();
}

Answer Fail(Session& session, const wire::Submission& call, const Status& why) {
  std::span<std::byte> room = ReplyRoom(session, call);
  Answer answer{.code = why.code()};
  if (room.empty()) return answer;
  std::span text(reinterpret_cast<char*>(room.data()),
                 std::min<std::size_t>(room.size(), wire::kMaxReplyMessage));
  SetText(text, why.message());
  answer.reply_bytes = static_cast<std::uint32_t>(std::min(why.message().size() + 1, text.size()));
  return answer;
}

}  // namespace cistern::server
