// SPDX-License-Identifier: Apache-2.0
#include "policy/lower.h"

#include <charconv>

#include "base/format.h"

namespace cistern {
namespace {

constexpr std::string_view kSelective = "selective";

// The N of "selective:N", or none.
std::optional<std::uint32_t> UsesOf(std::string_view text) {
  if (!text.starts_with(kSelective) || text.size() < kSelective.size() + 2 || text[kSelective.size()] != ':')
    return std::nullopt;
  text.remove_prefix(kSelective.size() + 1);
  std::uint32_t uses = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), uses);
  if (error != std::errc() || end != text.data() + text.size() || uses == 0 || uses > kMaxSelectiveUses)
    return std::nullopt;
  return uses;
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
