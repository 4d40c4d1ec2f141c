// SPDX-License-Identifier: Apache-2.0
// Options of a store: each folder from the catalog up reads its part.
#pragma once

#include <cstdint>
#include <functional>

#include "policy/placement.h"
#include "policy/quota.h"

namespace cistern::catalog {

// Placeholders (in namespaces without a full group, whose records behind the window leave first) are bounded
// with the other blocks at 1.25 times the records that the arena could hold. Past the bound a put evicts
// records whose removal frees some; a single chain longer than the bound has none, and its puts are kBusy.
struct StoreOptions {
  std::uint64_t max_blocks = 0;  // published records at most; 0: what fits
  EvictionPolicy eviction = EvictionPolicy::kReuse;
  std::function<std::uint64_t()> eviction_time_ms{};  // as OpenOptions has it; empty: the store's clock
  std::uint32_t max_pending = 0;         // puts not visible yet, over all sessions; 0: see PendingBound
  std::int64_t pending_us = 30'000'000;  // a pending put is dropped after this and counted
  std::uint32_t max_leases = 65'536;
  std::uint32_t max_leased_blocks = 1u << 20;
  std::uint32_t max_tombstones = 65'536;
  std::uint32_t max_noted_blocks = 262'144;  // of conversations; see conversations.h
  // A batch of more goes to movers; the core copies the rest itself, in steps of kStepBytes
  // (docs/decisions/0003-who-copies-a-put.md).
  std::uint64_t core_copy_bytes = 4u << 20;

  // ---- with a lower tier ----
  // Blocks that may be in the lower tier, for which the forest has room: its bytes divided by the smallest
  // record.
  std::uint32_t max_lower_blocks = 0;

  // ---- what BlockStore::SetOptions changes while it runs ----
  policy::LowerPolicy lower;
  policy::QuotaTable quotas;
  std::uint64_t read_ahead_bytes = 16u << 20;  // of a matched chain; 0: none
  std::uint64_t scrub_bytes_per_s = 0;         // rate of the scrubber, in every tier; 0: none
};

}  // namespace cistern::catalog
