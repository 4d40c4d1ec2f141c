// SPDX-License-Identifier: Apache-2.0
// What the server knows of each operation of the protocol beside what it does: one row each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/slow_calls.h"
#include "wire/protocol.h"

namespace cistern::server {

struct Operation {
  wire::Op op = wire::Op::kNone;
  // What a call that took long is noted as; none: nobody's request waits for such a call.
  std::optional<CallKind> slow = {};
  std::size_t item_bytes = 0;  // of each thing that its arguments list; 0: they are no list
  // What its times are of, as the help of `calls` under the name of `slow`; empty: they are not shown.
  std::string_view times = {};
  bool steers = false;  // changes the node for all its clients: its own user's alone
};

// By number.
inline constexpr std::array<Operation, wire::kLastOp + 1> kOperations = {{
    {.op = wire::Op::kNone},
    {.op = wire::Op::kAttach, .slow = CallKind::kAttach},
    {.op = wire::Op::kMatchRest,
     .slow = CallKind::kMatch,
     .item_bytes = sizeof(wire::KeyItem),
     .times = "the rest of a chain, which the index did not have"},
    {.op = wire::Op::kHold,
     .slow = CallKind::kHold,
     .item_bytes = sizeof(wire::KeyItem),
     .times = "a match that leases what it found"},
    {.op = wire::Op::kAcquire,
     .slow = CallKind::kAcquire,
     .item_bytes = sizeof(wire::BlockItem),
     .times = "views, with what was fetched from flash for them"},
    {.op = wire::Op::kRelease},
    // Checksums follow its parts: they are counted by what the call says.
    {.op = wire::Op::kWrite,
     .slow = CallKind::kWrite,
     .times = "parts of blocks, until the node let go of their bytes"},
    {.op = wire::Op::kPublish,
     .slow = CallKind::kPublish,
     .item_bytes = sizeof(wire::PutIdItem),
     .times = "what was written held becomes visible"},
    {.op = wire::Op::kAbandon, .slow = CallKind::kPublish, .item_bytes = sizeof(wire::PutIdItem)},
    {.op = wire::Op::kTouch,
     .slow = CallKind::kTouch,
     .item_bytes = sizeof(wire::KeyItem),
     .times = "uses in order"},
    {.op = wire::Op::kDrop,
     .slow = CallKind::kDrop,
     .item_bytes = sizeof(wire::KeyItem),
     .times = "blocks with all that descends from them, durably"},
    {.op = wire::Op::kDropNamespace, .slow = CallKind::kDrop},
    {.op = wire::Op::kReportBad, .item_bytes = sizeof(wire::BlockItem)},
    {.op = wire::Op::kStatus},
    {.op = wire::Op::kEndConversation, .slow = CallKind::kDrop},
    {.op = wire::Op::kDevice, .steers = true},
    {.op = wire::Op::kSwitch, .steers = true},
    {.op = wire::Op::kMemory, .steers = true},
    {.op = wire::Op::kDropNamed, .slow = CallKind::kDrop, .steers = true},
    {.op = wire::Op::kDrain, .steers = true},
    {.op = wire::Op::kIntroduce},
}};

// Each stands at its number, and what is timed has a name.
constexpr bool OperationsInOrder() {
  for (std::size_t i = 0; i < kOperations.size(); ++i) {
    const Operation& one = kOperations[i];
    if (static_cast<std::size_t>(one.op) != i || (!one.times.empty() && !one.slow)) return false;
  }
  return true;
}
static_assert(OperationsInOrder());

// Of a number that is none: what is known of kNone.
constexpr const Operation& OperationOf(wire::Op op) {
  return kOperations[static_cast<std::uint16_t>(op) <= wire::kLastOp ? static_cast<std::size_t>(op) : 0];
}

// What CallText::of of its kind says, as the client says it.
constexpr std::uint64_t CountOf(const wire::Submission& call) {
  if (call.op == wire::Op::kWrite) return call.a;
  const std::size_t item_bytes = OperationOf(call.op).item_bytes;
  return item_bytes == 0 ? 1 : call.args_bytes / item_bytes;
}

}  // namespace cistern::server
