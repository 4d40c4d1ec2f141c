// SPDX-License-Identifier: Apache-2.0
#include "policy/lower_tier.h"

#include "base/format.h"
#include "base/units.h"

namespace cistern {
namespace {

constexpr std::string_view kSelective = "selective", kCounted = "selective:";

// The N of "selective:N", or none.
std::optional<std::uint32_t> UsesOf(std::string_view text) {
  if (!text.starts_with(kCounted)) return std::nullopt;
  const auto uses = ParseCount(kSelective, text.substr(kCounted.size()), 1, kMaxSelectiveUses);
  return uses ? std::optional(static_cast<std::uint32_t>(*uses)) : std::nullopt;
}

}  // namespace

Status ReadWrite(std::string_view text, LowerWish& wish) {
  if (text == "through") {
    wish.write = WritePolicy::kThrough;
  } else if (text == "back") {
    wish.write = WritePolicy::kBack;
  } else if (text == kSelective) {
    wish.write = WritePolicy::kSelective;
    wish.selective_uses = LowerPolicy{}.selective_uses;
  } else if (const std::optional<std::uint32_t> uses = UsesOf(text)) {
    wish.write = WritePolicy::kSelective;
    wish.selective_uses = *uses;
  } else {
    return Status(Code::kInvalid, Text("there is no write policy '", text,
                                       "'; known: through, back, selective, selective:N with N from 1 to ",
                                       kMaxSelectiveUses));
  }
  return Status();
}

Result<Promotion> ReadPromotion(std::string_view text) {
  if (text == "all") return Promotion::kAll;
  if (text == "second-hit") return Promotion::kSecondHit;
  return Error(Code::kInvalid, Text("there is no promotion '", text, "'; known: all, second-hit"));
}

Status ReadAdmit(std::string_view text, LowerWish& wish) {
  if (text == "all") {
    wish.admit = Admission::kAll;
  } else if (text == "second-hit") {
    wish.admit = Admission::kSecondHit;
  } else {
    return Status(Code::kInvalid, Text("there is no admission '", text, "'; known: all, second-hit"));
  }
  return Status();
}

}  // namespace cistern
