// SPDX-License-Identifier: Apache-2.0
// The owners of a node's sessions, by their tokens: which have a session open, and how much of the staging
// each has. Belongs to the core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>

#include "cistern/options.h"
#include "cistern/status.h"

namespace cistern::server {

class Owners final {
 public:
  // Fills with unpredictable bytes.
  using Random = std::function<void(std::span<std::byte>)>;

  // `start_bytes`: what an owner may have whatever the others have, as long as there is any.
  Owners(Random random, std::uint64_t budget_bytes, std::uint64_t start_bytes);

  // A token that no owner has.
  OwnerToken NewToken() const;
  bool HasSession(const OwnerToken& owner) const;
  // Whether a token that is said names an owner that has no open session; none is said by zeros.
  bool Gone(const OwnerToken& said) const { return said != OwnerToken{} && !HasSession(said); }
  void AddSession(const OwnerToken& owner);
  // One of those that were added.
  void RemoveSession(const OwnerToken& owner);

  // kInvalid where an owner that has what it starts with may never take so much more, however little the
  // others have.
  Status CheckEver(std::uint64_t bytes) const;
  // kBusy where the owner would have more of the staging, of which all have `used_bytes`, than it may while
  // others need some. The message names the most that it may have now.
  Status CheckShare(const OwnerToken& owner, std::uint64_t bytes, std::uint64_t used_bytes) const;
  std::uint64_t staging_of(const OwnerToken& owner) const;
  void AddStaging(const OwnerToken& owner, std::uint64_t bytes);
  // No more than was added.
  void RemoveStaging(const OwnerToken& owner, std::uint64_t bytes);

 private:
  const Random random_;
  const std::uint64_t budget_bytes_;
  const std::uint64_t start_bytes_;
  std::map<OwnerToken, std::uint32_t> sessions_;  // of each that has one
  std::map<OwnerToken, std::uint64_t> staging_;   // bytes that each has, or that are being made for it
};

// Staging that is being made is the owner's from the question on, until this ends: several of its processes
// that ask at once get no more than they would one after the other.
class StagingClaim final {
 public:
  // Borrows the owners.
  StagingClaim(Owners& owners, const OwnerToken& owner, std::uint64_t bytes);
  ~StagingClaim();
  StagingClaim(const StagingClaim&) = delete;
  StagingClaim& operator=(const StagingClaim&) = delete;

 private:
  Owners& owners_;
  const OwnerToken owner_;
  const std::uint64_t bytes_;
};

}  // namespace cistern::server
