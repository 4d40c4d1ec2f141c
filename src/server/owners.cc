// SPDX-License-Identifier: Apache-2.0
#include "server/owners.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "policy/share.h"

namespace cistern::server {

Owners::Owners(Random random, std::uint64_t budget_bytes, std::uint64_t start_bytes)
    : random_(std::move(random)), budget_bytes_(budget_bytes), start_bytes_(start_bytes) {}

OwnerToken Owners::NewToken() const {
  OwnerToken token{};
  while (token == OwnerToken{} || HasSession(token)) random_(token);
  return token;
}

bool Owners::HasSession(const OwnerToken& owner) const { return sessions_.contains(owner); }

void Owners::AddSession(const OwnerToken& owner) { sessions_[owner]++; }

void Owners::RemoveSession(const OwnerToken& owner) {
  const auto found = sessions_.find(owner);
  CISTERN_ASSERT(found != sessions_.end());
  if (--found->second == 0) sessions_.erase(found);
}

std::uint64_t Owners::staging_of(const OwnerToken& owner) const {
  const auto found = staging_.find(owner);
  return found == staging_.end() ? 0 : found->second;
}

// Beside what each has from its start.
Status Owners::CheckEver(std::uint64_t bytes) const {
  const std::uint64_t most = policy::MostMore(budget_bytes_, start_bytes_, start_bytes_);
  if (bytes <= most) return Status();
  return Status(Code::kInvalid, Text("staging: ", bytes, " bytes asked for at once, and one owner may have ",
                                     most, ": give the node more memory"));
}

Status Owners::CheckShare(const OwnerToken& owner, std::uint64_t bytes, std::uint64_t used_bytes) const {
  const std::uint64_t has = staging_of(owner);
  const std::uint64_t to_start = has < start_bytes_ ? start_bytes_ - has : 0;
  if (to_start > 0 && bytes <= to_start) return Status();
  if (policy::MayTake(budget_bytes_, used_bytes, has, bytes)) return Status();
  const std::uint64_t left = budget_bytes_ - used_bytes;
  const std::uint64_t most =
      std::max(policy::MostMore(budget_bytes_, used_bytes, has), std::min(left, to_start));
  return Status(Code::kBusy, Text("staging: ", bytes, " bytes asked for, ", left, " of ", budget_bytes_,
                                  " are left, and this owner, which has ", has, ", may take ", most,
                                  " of them now; end idle sessions or give the node more memory"));
}

void Owners::AddStaging(const OwnerToken& owner, std::uint64_t bytes) { staging_[owner] += bytes; }

void Owners::RemoveStaging(const OwnerToken& owner, std::uint64_t bytes) {
  const auto found = staging_.find(owner);
  if (found == staging_.end()) return;  // nothing was added
  CISTERN_ASSERT(found->second >= bytes);
  found->second -= bytes;
  if (found->second == 0) staging_.erase(found);
}

StagingClaim::StagingClaim(Owners& owners, const OwnerToken& owner, std::uint64_t bytes)
    : owners_(owners), owner_(owner), bytes_(bytes) {
  owners_.AddStaging(owner_, bytes_);
}

StagingClaim::~StagingClaim() { owners_.RemoveStaging(owner_, bytes_); }

}  // namespace cistern::server
