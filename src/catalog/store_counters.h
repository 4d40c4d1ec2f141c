// SPDX-License-Identifier: Apache-2.0
// Counters of a store, from the catalog up.
#pragma once

#include "base/metrics.h"

namespace cistern {
class MetricRegistry;
}  // namespace cistern

namespace cistern::catalog {

struct StoreCounters {
  Counter published, present, evicted, dropped, expired, cut_bad, pending_dropped, leases_granted,
      leases_ended, stayed_out, moved_far, moved_near, touches_applied, touches_refused, busy,
      writes_without_room, recovered, recovery_refused, recovery_dropped, reported_bad, reported_good,
      widened_drops;
  // The lower tier's. Demoted: left memory and are still in the lower tier. Evicted unwritten: were wanted
  // in the lower tier and left memory before they were written.
  Counter written_down, down_failed, down_too_large, down_overflow, down_over_budget, down_not_worth, demoted,
      evicted_unwritten, fetched, fetch_failed, fetch_refused, read_ahead, fetched_ahead, ahead_used,
      ahead_too_late, turns_told, turns_missed, passing, passed_segments, moved_below, evicted_below,
      evicted_over_quota, down_over_quota, evicted_below_over_quota, cut_at_reclaim, lost_below,
      scrubbed_bytes, scrub_rounds;
  // Blocks of a match that the node was asked for: found, below memory or come meanwhile, and not found, by
  // why the first of them is not there.
  Counter found_below, miss_unknown, miss_other_namespace, miss_evicted, miss_expired, miss_dropped, miss_bad,
      miss_orphaned, miss_pending, miss_off, miss_too_late;
  Counter lapsed_holds;  // blocks of chains of which some went between match and hold
  Histogram fetch_ns;    // of a record from the lower tier
};

// Borrows them.
void AddMetrics(MetricRegistry& registry, const StoreCounters& counters);
void AddMatchMetrics(MetricRegistry& registry, const StoreCounters& counters);

}  // namespace cistern::catalog
