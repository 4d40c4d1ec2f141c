// SPDX-License-Identifier: Apache-2.0
// Limits that several folders keep to, each with who relies on it. A limit that one folder alone knows stands
// there; sizes that a format fixes stand beside it: record/seal.h, arena/layout.h, flash/format.h and
// wire/protocol.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cistern {

// The longest body. The client refuses more before it stages anything, slots have sizes up to it (memory), a
// namespace declares no more (catalog), and a seal or a flash entry that says more is damaged.
inline constexpr std::uint64_t kMaxBodyBytes = 64ull << 20;

// What a namespace declares at most: the wire refuses more before it is sent or decoded, the catalog before
// it is journaled, and match keeps a place for each group on its stack.
inline constexpr std::size_t kMaxGroups = 8;
inline constexpr std::size_t kMaxGroupParts = 64;
inline constexpr std::size_t kMaxFields = 256;
inline constexpr std::size_t kMaxFieldBytes = 64u << 10;  // names and values of all fields together

// What one step of the core may do (R16): the StepBudget, and the loops of the journal and of flash that
// read, sum or copy bytes without one. The simulation asserts the touches.
inline constexpr std::uint32_t kStepTouches = 512;  // of the forest, the index, a table
// Below kStepTouches by what the longest indivisible piece may touch.
inline constexpr std::uint32_t kSpentTouches = 128;
inline constexpr std::uint32_t kStepBytes = 64u << 10;  // copied by the core

// The alignment that every device takes: the largest unit of flash, and what the memory that devices read
// into and write from has (residency, flash).
inline constexpr std::uint32_t kMaxAlignment = 4096;

// How long a start waits for what a dead node's last I/O still holds (R8): the directories' locks (memory,
// node) and the devices' (flash). The kernel lets go of a killed ring's files 40 ms after its process in the
// median and, with twenty processes for two processors, 2.4 s at worst of 1,000.
inline constexpr std::int64_t kLockWaitUs = 10'000'000;

// How long after its deadline a write from the caller's own staging is answered at the latest: when the node
// has let go of the bytes, which may be a copy later. The client waits no longer, for its caller fills the
// staging anew then, and the store publishes nothing that was copied from it later (R6).
inline constexpr std::int64_t kStagingGraceUs = 2'000'000;

}  // namespace cistern
