// SPDX-License-Identifier: Apache-2.0
#include "policy/quota.h"

#include <algorithm>
#include <iterator>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "policy/namespace_pattern.h"

namespace cistern::policy {

namespace {

struct Part {
  std::string_view name;
  std::uint64_t Quota::* bytes;
  std::uint64_t none;
};
constexpr Part kParts[] = {{"memory", &Quota::memory_bytes, Quota::kNoLimit},
                           {"reserve", &Quota::reserve_bytes, 0},
                           {"flash", &Quota::flash_bytes, Quota::kNoLimit},
                           {"flash_reserve", &Quota::flash_reserve_bytes, 0}};

// Saturates: what is more than there is stays that.
std::uint64_t SumOf(const std::vector<Quota>& quotas, std::uint64_t Quota::* size) {
  std::uint64_t bytes = 0;
  for (const Quota& quota : quotas) bytes += std::min(quota.*size, UINT64_MAX - bytes);
  return bytes;
}

Status CheckReserve(const Quota& quota, std::string_view name, std::uint64_t reserve, std::uint64_t of) {
  if (reserve <= of) return Status();
  return Status(Code::kInvalid, Text("quota ", Shown(quota.pattern), ": its ", name, " of ",
                                     SizeText(reserve), " is above the ", SizeText(of), " that it may have"));
}

}  // namespace

Result<Quota> ParseQuota(std::string_view text) {
  constexpr std::string_view kForm =
      "a quota is PATTERN:memory=SIZE,reserve=SIZE,flash=SIZE,flash_reserve=SIZE, or one of these sizes";
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0)
    return Error(Code::kInvalid, Text("quota: ", Shown(text), ": ", kForm));
  Quota quota{.pattern = std::string(text.substr(0, colon))};
  std::vector<std::string_view> given;
  for (std::string_view rest = text.substr(colon + 1); !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    const std::size_t equals = one.find('=');
    const auto part = std::ranges::find(kParts, one.substr(0, equals), &Part::name);
    if (equals == std::string_view::npos || part == std::end(kParts))
      return Error(Code::kInvalid, Text("quota: ", Shown(one), ": ", kForm));
    if (std::ranges::find(given, part->name) != given.end())
      return Error(Code::kInvalid,
                   Text("quota ", Shown(quota.pattern), ": ", part->name, " is given twice; keep one"));
    given.push_back(part->name);
    const Result<std::uint64_t> bytes = ParseSize(Text("quota ", part->name), one.substr(equals + 1));
    if (!bytes) return Error(bytes.error());
    quota.*part->bytes = *bytes;
  }
  if (given.empty()) return Error(Code::kInvalid, Text("quota: ", Shown(text), ": ", kForm));
  for (const Status& status :
       {CheckReserve(quota, "reserve", quota.reserve_bytes, quota.memory_bytes),
        CheckReserve(quota, "flash_reserve", quota.flash_reserve_bytes, quota.flash_bytes)}) {
    if (!status.ok()) return Error(status);
  }
  return quota;
}

std::string ToString(const Quota& quota) {
  std::string sizes;
  for (const Part& part : kParts) {
    if (quota.*part.bytes == part.none) continue;
    sizes += Text(sizes.empty() ? "" : ",", part.name, "=", SizeText(quota.*part.bytes));
  }
  return Text(quota.pattern, ":", sizes.empty() ? "reserve=0B" : sizes);
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

QuotaGroup QuotaTable::GroupOf(std::span<const std::string> names, NamedValues fields,
                               NamedValues labels) const {
  for (std::size_t i = 0; i < quotas_.size(); ++i) {
    if (MatchesNamespace(quotas_[i].pattern, names, fields, labels)) return static_cast<QuotaGroup>(i + 1);
  }
  return 0;
}

std::uint64_t QuotaTable::reserved_bytes() const { return SumOf(quotas_, &Quota::reserve_bytes); }
std::uint64_t QuotaTable::flash_reserved_bytes() const { return SumOf(quotas_, &Quota::flash_reserve_bytes); }

std::uint64_t QuotaTable::ReservableBelow(QuotaGroup group, std::uint64_t reservable_bytes) const {
  if (!Known(group) || quotas_[group - 1].flash_reserve_bytes == 0) return 0;
  const double part = static_cast<double>(quotas_[group - 1].flash_reserve_bytes) /
                      static_cast<double>(flash_reserved_bytes());
  return static_cast<std::uint64_t>(part * static_cast<double>(reservable_bytes));
}

bool QuotaTable::of_flash() const { return std::ranges::any_of(quotas_, &Quota::of_flash); }

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
