// SPDX-License-Identifier: Apache-2.0
#include "policy/quota.h"

#include <algorithm>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"

namespace cistern::policy {

Result<Quota> ParseQuota(std::string_view text) {
  constexpr std::string_view kForm = "a quota is PATTERN:memory=SIZE,reserve=SIZE, or one of the two sizes";
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0)
    return Error(Code::kInvalid, Text("quota: ", Shown(text), ": ", kForm));
  Quota quota{.pattern = std::string(text.substr(0, colon))};
  bool any = false;
  for (std::string_view rest = text.substr(colon + 1); !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    const std::size_t equals = one.find('=');
    const std::string_view name = one.substr(0, equals);
    if (equals == std::string_view::npos || (name != "memory" && name != "reserve"))
      return Error(Code::kInvalid, Text("quota: ", Shown(one), ": ", kForm));
    const Result<std::uint64_t> bytes = ParseSize(Text("quota ", name), one.substr(equals + 1));
    if (!bytes) return Error(bytes.error());
    (name == "memory" ? quota.memory_bytes : quota.reserve_bytes) = *bytes;
    any = true;
  }
  if (!any) return Error(Code::kInvalid, Text("quota: ", Shown(text), ": ", kForm));
  if (quota.reserve_bytes > quota.memory_bytes) {
    return Error(Code::kInvalid,
                 Text("quota ", Shown(quota.pattern), ": its reserve of ", SizeText(quota.reserve_bytes),
                      " is above its memory of ", SizeText(quota.memory_bytes)));
  }
  return quota;
}

std::string ToString(const Quota& quota) {
  std::string text = quota.pattern + ":";
  if (quota.memory_bytes != Quota::kNoLimit) text += "memory=" + SizeText(quota.memory_bytes);
  if (quota.reserve_bytes != 0 || quota.memory_bytes == Quota::kNoLimit)
    text += (text.back() == ':' ? "reserve=" : ",reserve=") + SizeText(quota.reserve_bytes);
  return text;
}

bool MatchesPattern(std::string_view pattern, std::string_view text) {
  std::size_t star = std::string_view::npos, from = 0, at = 0, in = 0;
  while (in < text.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      from = in;
    } else if (at < pattern.size() && pattern[at] == text[in]) {
      ++at;
      ++in;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      in = ++from;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

QuotaGroup QuotaTable::GroupOf(std::span<const std::string> names,
                               std::span<const std::pair<std::string, std::string>> fields) const {
  for (std::size_t i = 0; i < quotas_.size(); ++i) {
    const std::string_view pattern = quotas_[i].pattern;
    const std::size_t equals = pattern.find('=');
    bool found =
        std::ranges::any_of(names, [&](const std::string& name) { return MatchesPattern(pattern, name); });
    if (equals != std::string_view::npos) {
      found = found || std::ranges::any_of(fields, [&](const auto& field) {
                return field.first == pattern.substr(0, equals) &&
                       MatchesPattern(pattern.substr(equals + 1), field.second);
              });
    }
    if (found) return static_cast<QuotaGroup>(i + 1);
  }
  return 0;
}

std::uint64_t QuotaTable::reserved_bytes() const {
  std::uint64_t bytes = 0;
  for (const Quota& quota : quotas_) bytes += quota.reserve_bytes;
  return bytes;
}

QuotaGroups QuotaTable::MayLeaveFor(QuotaGroup group, std::uint64_t more, const Used& used) const {
  if (quotas_.empty()) return kAllGroups;
  const auto own = static_cast<QuotaGroups>(1u << group);
  if (Over(group, used, more)) return own;
  QuotaGroups groups = own | 1u;
  for (std::size_t i = 0; i < quotas_.size(); ++i) {
    if (used[i + 1] > quotas_[i].reserve_bytes) groups |= static_cast<QuotaGroups>(1u << (i + 1));
  }
  return groups;
}

}  // namespace cistern::policy
