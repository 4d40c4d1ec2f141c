// SPDX-License-Identifier: Apache-2.0
// A call's arguments in the session's area, and what it is answered there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/executor.h"
#include "cistern/status.h"
#include "server/session.h"
#include "wire/protocol.h"

namespace cistern::server {

struct Answer {
  Code code = Code::kOk;
  std::uint32_t reply_bytes = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// A client may ask for any deadline; none is further away than this.
inline constexpr std::int64_t kMaxDeadlineUs = 3'600'000'000;
Instant DeadlineOf(const Executor& executor, const wire::Submission& call);

// Of a call whose ranges lie in the area.
std::span<const std::byte> ArgumentBytes(const Session& session, const wire::Submission& call);
std::span<std::byte> ReplyRoom(Session& session, const wire::Submission& call);

// The answer with the reply in the area, or the one that says why it does not go there.
Answer Reply(Session& session, const wire::Submission& call, std::span<const std::byte> reply, Answer answer);
// The answer to a call that says no more than that it was done.
Result<Answer> Done(Status status);
// An answer that says why not, with the message in the reply area as far as it has room.
Answer Fail(Session& session, const wire::Submission& call, const Status& why);

}  // namespace cistern::server
