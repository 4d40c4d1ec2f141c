// SPDX-License-Identifier: Apache-2.0
#include "server/steering.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/format.h"
#include "server/arguments.h"
#include "store/block_store.h"

namespace cistern::server {

Task<Result<Answer>> Steering::ChangeDevice(Session& session, const wire::Submission& call) {
  Arguments arguments(ArgumentBytes(session, call));
  Status status;
  if (call.a != wire::kTakeOut && call.a != wire::kBringBack) {
    status = Status(Code::kInvalid, Text("device: ", call.a, " asks for nothing that is known"));
  } else if (arguments.left() < 1 || arguments.left() > wire::kMaxPathBytes) {
    status = Status(Code::kInvalid, Text("device: a path of ", arguments.left(), " bytes: paths have 1 to ",
                                         wire::kMaxPathBytes));
  } else if (parts_.device == nullptr) {
    status = Status(Code::kMiss, "device: this node has no flash");
  }
  if (!status.ok()) co_return Error(status);
  co_return Done(co_await parts_.device(arguments.TakeText(), call.a == wire::kBringBack));
}

Task<Result<Answer>> Steering::Turn(Session& session, const wire::Submission& call) {
  Arguments arguments(ArgumentBytes(session, call));
  Status status;
  if ((call.a != wire::kReads && call.a != wire::kWrites) || call.b > 1 ||
      (call.flags & ~wire::kOfEngine) != 0) {
    status = Status(Code::kInvalid, Text("switch: ", call.a, " turned ", call.b, " with the flags ",
                                         call.flags, " is nothing that is known"));
  } else if (arguments.left() > wire::kMaxTargetBytes) {
    status = Status(Code::kInvalid, Text("switch: a name of ", arguments.left(),
                                         " bytes: names have at most ", wire::kMaxTargetBytes));
  }
  if (!status.ok()) co_return Error(status);
  std::string target = arguments.TakeText();
  const store::Switch which = call.a == wire::kReads ? store::Switch::kReads : store::Switch::kWrites;
  const bool on = call.b == 1, all = target.empty();
  Task<Result<std::uint32_t>> turning = (call.flags & wire::kOfEngine) != 0
                                            ? engines_.Turn(which, on, std::move(target))
                                            : parts_.store.Turn(which, on, std::move(target));
  const Result<std::uint32_t> turned = co_await turning;
  if (!turned) co_return Error(turned.error());
  // All on again are also the engines that were off by themselves.
  if (on && all) co_await engines_.TurnAllOn(which);
  co_return Answer{.a = *turned};
}

Task<Result<Answer>> Steering::Resize(const wire::Submission& call) {
  if (parts_.resize == nullptr) co_return Error(Code::kInvalid, "memory: this node's has one size");
  const Result<std::uint64_t> bytes = co_await parts_.resize(call.a);
  if (!bytes) co_return Error(bytes.error());
  co_return Answer{.a = *bytes};
}

Task<Result<Answer>> Steering::Drain(const wire::Submission& call) {
  if (call.a > wire::kForLeaving || (call.flags & ~wire::kThenStop) != 0) {
    co_return Error(Code::kInvalid,
                    Text("drain: ", call.a, " with the flags ", call.flags, " is nothing that is known"));
  }
  if (parts_.drain == nullptr) co_return Error(Code::kInvalid, "drain: this node is never out of service");
  const auto us = static_cast<std::int64_t>(std::min(call.b, static_cast<std::uint64_t>(kMaxDeadlineUs)));
  const Status begun =
      co_await parts_.drain({.on = call.a != wire::kServe,
                             .memory_goes = call.a == wire::kForReboot || call.a == wire::kForLeaving,
                             .lower_tier_goes = call.a == wire::kForLeaving,
                             .then_stop = (call.flags & wire::kThenStop) != 0,
                             .deadline = executor().Now().PlusUs(us)});
  co_return Done(begun);
}

}  // namespace cistern::server
