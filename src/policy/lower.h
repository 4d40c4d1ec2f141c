// SPDX-License-Identifier: Apache-2.0
// What goes to the tier below memory, when, and what stays there when a region of it is given up. Decisions
// on plain values; who carries them out is the store.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "cistern/status.h"

namespace cistern {

// When a block that is wanted below is written.
enum class WritePolicy : std::uint8_t {
  kThrough,    // as soon as it is wanted: found again after a reboot, and memory can always let go of it
  kBack,       // when it has become cold: less is written, and a reboot loses what was warm
  kSelective,  // after the n-th use
};
// Which blocks are wanted below.
enum class Admission : std::uint8_t {
  kAll,
  kSecondHit,  // those that were used after they were put: a prompt nobody asks again is never written
};

// Which blocks stay in memory after they were read from below.
enum class Promotion : std::uint8_t {
  kAll,
  kSecondHit,  // those that were asked for before; others pass through and are the first to go again, so that
               // a long prompt that is asked for once takes no room from what is asked for often
};

struct LowerPolicy {
  WritePolicy write = WritePolicy::kThrough;
  Admission admit = Admission::kAll;
  Promotion promote = Promotion::kAll;
  std::uint32_t selective_uses = 2;  // of kSelective; 1 to kMaxSelectiveUses
};

// What somebody says of it, the node's operator or a namespace's user; the rest is as it was.
struct LowerWish {
  std::optional<WritePolicy> write;
  std::uint32_t selective_uses = LowerPolicy{}.selective_uses;
  std::optional<Admission> admit;
  bool operator==(const LowerWish&) const = default;

  constexpr LowerPolicy Over(LowerPolicy policy) const {
    if (write) policy.write = *write;
    if (write) policy.selective_uses = selective_uses;
    if (admit) policy.admit = *admit;
    return policy;
  }
  // What `other` says goes before.
  void Add(const LowerWish& other) {
    if (other.write) write = other.write;
    if (other.write) selective_uses = other.selective_uses;
    if (other.admit) admit = other.admit;
  }
};

inline constexpr std::uint32_t kMaxSelectiveUses = 255;

// As people write it: "through", "back", "selective" or "selective:N"; "all" or "second-hit". kInvalid names
// the known ones and changes nothing.
Status ReadWrite(std::string_view text, LowerWish& wish);
Status ReadAdmit(std::string_view text, LowerWish& wish);
// "all" or "second-hit".
Result<Promotion> ReadPromotion(std::string_view text);

// Whether a block that was used so many times since it was put is worth being written.
constexpr bool Wanted(const LowerPolicy& policy, std::uint32_t uses) {
  if (policy.write == WritePolicy::kSelective && uses < policy.selective_uses) return false;
  return policy.admit == Admission::kAll || uses > 0;
}
// Whether it is written now that it was put (uses 0) or used for the `uses`-th time.
constexpr bool WrittenAtUse(const LowerPolicy& policy, std::uint32_t uses) {
  return policy.write != WritePolicy::kBack && Wanted(policy, uses) &&
         (uses == 0 || !Wanted(policy, uses - 1));
}

// Whether a block that is read from below stays in memory; `asked_before`: since it was written there.
constexpr bool Promoted(const LowerPolicy& policy, bool asked_before) {
  return policy.promote == Promotion::kAll || asked_before;
}

// Whether a read is not begun for who would wait `worth_us` for it. An estimate errs to both sides. What is
// refused is computed, and the next one stands where this one stood; what is tried and is late ends at
// `worth_us` too, and is there for the next. So it has to be an eighth beyond, and few refusals are wrong.
constexpr bool Refused(std::int64_t expected_us, std::int64_t worth_us) {
  return expected_us - expected_us / 8 > worth_us;
}

// How a block that lies below memory comes to who asks for `asked_bytes` of its `bytes`.
enum class WayUp : std::uint8_t {
  kNone,      // it would come too late
  kWhole,     // into memory, for others as well
  kSegments,  // what was asked for alone, past memory
};
// A block that does not stay in memory is not read whole for half of it or less; nor is one that would, where
// only what was asked for comes in time.
constexpr WayUp ChooseWayUp(bool promoted, std::uint64_t asked_bytes, std::uint64_t bytes, bool whole_late,
                            bool asked_late) {
  const bool some = asked_bytes <= bytes / 2 && !asked_late;
  if (some && (!promoted || whole_late)) return WayUp::kSegments;
  return whole_late ? WayUp::kNone : WayUp::kWhole;
}

// A block whose only copy lies in a region that is given up.
struct LastCopy {
  bool used = false;       // since it was written there
  bool has_below = false;  // blocks that descend from it are kept, or on their way: without it they are lost
  bool held = false;       // somebody has a right to find it
  std::uint64_t bytes = 0;
};
// Whether it is moved rather than let go. `moved_bytes` of the region's `live_bytes` are moved already: a
// region that gives back too little is not worth giving up, so past three quarters what was merely used goes.
constexpr bool KeptAtReclaim(const LastCopy& copy, std::uint64_t moved_bytes, std::uint64_t region_bytes) {
  if (copy.held || copy.has_below) return moved_bytes + copy.bytes <= region_bytes / 8 * 7;
  return copy.used && moved_bytes + copy.bytes <= region_bytes / 4 * 3;
}

}  // namespace cistern
