// SPDX-License-Identifier: Apache-2.0
// Quotas: how much of memory and of flash namespaces of a kind may have, and how much of it nobody else's
// burst evicts. Pure: patterns, numbers, and from whom room may come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cistern/status.h"
#include "policy/namespace_pattern.h"

namespace cistern::policy {

// Namespaces by the first quota that they match, from 1 on; 0: of none.
using QuotaGroup = std::uint8_t;
inline constexpr std::size_t kMaxQuotas = 15;
// A bit a group.
using QuotaGroups = std::uint16_t;
inline constexpr QuotaGroups kAllGroups = std::numeric_limits<QuotaGroups>::max();

struct Quota {
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  // As MatchesNamespace has it.
  std::string pattern;
  std::uint64_t memory_bytes = kNoLimit;  // of bodies, of all that match together, at most
  std::uint64_t reserve_bytes = 0;        // of these, that stay when others need room
  std::uint64_t flash_bytes = kNoLimit;   // the same of the lower tier
  std::uint64_t flash_reserve_bytes = 0;

  bool of_flash() const { return flash_bytes != kNoLimit || flash_reserve_bytes != 0; }

  friend bool operator==(const Quota&, const Quota&) = default;
};

// "PATTERN:memory=SIZE,reserve=SIZE,flash=SIZE,flash_reserve=SIZE", one of them at least. kInvalid names what
// is wrong.
Result<Quota> ParseQuota(std::string_view text);
std::string ToString(const Quota& quota);

// Whether the text is the pattern, with any characters for each `*`.
bool MatchesPattern(std::string_view pattern, std::string_view text);

class QuotaTable final {
 public:
  QuotaTable() = default;
  // At most kMaxQuotas.
  explicit QuotaTable(std::vector<Quota> quotas) : quotas_(std::move(quotas)) {}

  bool empty() const { return quotas_.empty(); }
  const std::vector<Quota>& quotas() const { return quotas_; }
  // The first that one of the names, fields or labels matches.
  QuotaGroup GroupOf(std::span<const std::string> names, NamedValues fields, NamedValues labels = {}) const;
  std::uint64_t reserved_bytes() const;
  std::uint64_t flash_reserved_bytes() const;
  bool of_flash() const;

  // Bytes by group.
  using Used = std::array<std::uint64_t, kMaxQuotas + 1>;
  // `more` of the group would pass its quota.
  bool Over(QuotaGroup group, const Used& used, std::uint64_t more = 0) const {
    return group != 0 && group <= quotas_.size() && used[group] + more > quotas_[group - 1].memory_bytes;
  }
  // Groups whose blocks may leave for `more` bytes of a group: its own alone where it would pass its quota,
  // or also all that have more than their reserve.
  QuotaGroups MayLeaveFor(QuotaGroup group, std::uint64_t more, const Used& used) const;

  // ---- of the lower tier; `below`: bytes by group there ----
  // `more` of the group would pass its quota: they are not written.
  bool OverBelow(QuotaGroup group, const Used& below, std::uint64_t more) const {
    return Known(group) && below[group] + more > quotas_[group - 1].flash_bytes;
  }
  // Less than a sixteenth of the quota is free for what is to be written: the oldest of the group go.
  bool FullBelow(QuotaGroup group, const Used& below) const {
    return Known(group) && quotas_[group - 1].flash_bytes != Quota::kNoLimit &&
           below[group] > quotas_[group - 1].flash_bytes / 16 * 15;
  }
  // The group has no more than its reserve: all of it stays where room is given up, as far as its records
  // take no more than ReservableBelow.
  bool ReservedBelow(QuotaGroup group, const Used& below) const {
    return Known(group) && below[group] <= quotas_[group - 1].flash_reserve_bytes;
  }
  // The group's part of the `reservable_bytes` of records that a tier can keep for all reserves.
  std::uint64_t ReservableBelow(QuotaGroup group, std::uint64_t reservable_bytes) const;

 private:
  bool Known(QuotaGroup group) const { return group != 0 && group <= quotas_.size(); }

  std::vector<Quota> quotas_;
};

}  // namespace cistern::policy
