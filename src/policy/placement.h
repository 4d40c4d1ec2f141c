// SPDX-License-Identifier: Apache-2.0
// Decisions on the lower tier: which blocks are written, when, and which stay when the tier gives up room.
// They work on plain values; the store carries them out.
#pragma once

#include <cstdint>
#include <optional>

#include "cistern/policy.h"

namespace cistern::policy {

struct LowerPolicy {
  WriteRule write;
  Admission admit = Admission::kWorth;
  Promotion promote = Promotion::kWorth;
};

// Settings of the node's operator or of a namespace's user; fields without a value keep the policy's.
struct LowerWish {
  std::optional<WriteRule> write;
  std::optional<Admission> admit;
  bool operator==(const LowerWish&) const = default;

  constexpr LowerPolicy Over(LowerPolicy policy) const {
    if (write) policy.write = *write;
    if (admit) policy.admit = *admit;
    return policy;
  }
  // Values of `other` replace these.
  void Add(const LowerWish& other) {
    if (other.write) write = other.write;
    if (other.admit) admit = other.admit;
  }
};

// True if a block with so many uses since its put is worth writing. `pays`: it is worth the price of a write
// now (WritePrice).
constexpr bool Wanted(const LowerPolicy& policy, std::uint32_t uses, bool pays) {
  if (policy.write.policy == WritePolicy::kSelective && uses < policy.write.uses) return false;
  switch (policy.admit) {
    case Admission::kAll: return true;
    case Admission::kSecondHit: return uses > 0;
    case Admission::kWorth: return pays;
  }
  __builtin_unreachable();
}
// True if the block is written now, at its put (uses 0) or at its `uses`-th use. What was not worth its write
// may be at any use.
constexpr bool WrittenAtUse(const LowerPolicy& policy, std::uint32_t uses, bool pays) {
  if (policy.write.policy == WritePolicy::kBack || !Wanted(policy, uses, pays)) return false;
  return uses == 0 || policy.admit == Admission::kWorth || !Wanted(policy, uses - 1, pays);
}

// True if a fetched block stays in memory. `asked_before`: since it was written to the lower tier; `passes`:
// it is worth less than what would leave for it (Order::Passes).
constexpr bool Promoted(const LowerPolicy& policy, bool asked_before, bool passes) {
  switch (policy.promote) {
    case Promotion::kAll: return true;
    case Promotion::kSecondHit: return asked_before;
    case Promotion::kWorth: return !passes;
  }
  __builtin_unreachable();
}

// True if a read is not begun for a caller that would wait `worth_us`. Estimates err to both sides. A
// refused block is recomputed, and the next caller faces the same choice; a read that is tried and late ends
// at `worth_us` too, and its block is in memory for the next caller. So the estimate has to be an eighth
// beyond, and few refusals are wrong.
constexpr bool Refused(std::int64_t expected_us, std::int64_t worth_us) {
  return expected_us - expected_us / 8 > worth_us;
}

// How a block in the lower tier is fetched for a caller that asks for `asked_bytes` of its `bytes`.
enum class FetchChoice : std::uint8_t {
  kNone,      // a fetch would be too late
  kWhole,     // into memory, for other callers too
  kSegments,  // the segments asked for alone, into a partial copy
};
// A block that does not stay in memory is not read whole for half of it or less; nor is a promoted one if
// only the segments asked for can be read in time.
constexpr FetchChoice ChooseFetch(bool promoted, std::uint64_t asked_bytes, std::uint64_t bytes,
                                  bool whole_late, bool asked_late) {
  const bool some = asked_bytes <= bytes / 2 && !asked_late;
  if (some && (!promoted || whole_late)) return FetchChoice::kSegments;
  return whole_late ? FetchChoice::kNone : FetchChoice::kWhole;
}

// A block whose only copy lies in room that the tier gives up.
struct LastCopy {
  bool used = false;             // since it was written to the lower tier
  bool has_descendants = false;  // descendants are kept or being written: without this block they are lost
  bool leased = false;           // a client has a right to find it
  std::uint64_t bytes = 0;
};
// True if the copy is moved rather than lost. `moved_bytes` of the `region_bytes` are moved already: reclaim
// that gives back too little is not worth its writes, so past three quarters copies that were merely used
// are lost.
constexpr bool KeptAtReclaim(const LastCopy& copy, std::uint64_t moved_bytes, std::uint64_t region_bytes) {
  if (copy.leased || copy.has_descendants) return moved_bytes + copy.bytes <= region_bytes / 8 * 7;
  return copy.used && moved_bytes + copy.bytes <= region_bytes / 4 * 3;
}

}  // namespace cistern::policy
