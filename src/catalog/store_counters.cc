// SPDX-License-Identifier: Apache-2.0
#include "catalog/store_counters.h"

#include "base/metric_registry.h"

namespace cistern::catalog {
namespace {

struct Field {
  std::string_view name;
  Counter StoreCounters::* counter;
  std::string_view help;
};

constexpr Field kFields[] = {
    {"published", &StoreCounters::published, "puts that became visible"},
    {"present", &StoreCounters::present, "puts that found their block there already"},
    {"evicted", &StoreCounters::evicted, "records that left memory and are nowhere any more"},
    {"evicted_over_quota", &StoreCounters::evicted_over_quota,
     "records that left memory because their namespaces have a quota, and nobody else needed their room"},
    {"dropped", &StoreCounters::dropped, "blocks that were dropped, with what descended from them"},
    {"expired", &StoreCounters::expired, "blocks whose time had come, with what descended from them"},
    {"cut_bad", &StoreCounters::cut_bad, "records that failed their seal"},
    {"pending_dropped", &StoreCounters::pending_dropped, "puts that never became visible"},
    {"leases_granted", &StoreCounters::leases_granted, "leases given"},
    {"leases_ended", &StoreCounters::leases_ended, "leases that their deadline or their session ended"},
    {"stayed_out", &StoreCounters::stayed_out,
     "puts of prompts that were worth less than what would have left for them"},
    {"moved_far", &StoreCounters::moved_far, "records that moved to memory of a node without processors"},
    {"moved_near", &StoreCounters::moved_near, "records that moved back from there, for they were used"},
    {"touches_applied", &StoreCounters::touches_applied, "uses of resident records, as clients told them"},
    {"touches_refused", &StoreCounters::touches_refused, "uses told of records that had gone meanwhile"},
    {"busy", &StoreCounters::busy, "calls past a bound"},
    {"writes_without_room", &StoreCounters::writes_without_room, "puts for which nothing could go"},
    {"recovered", &StoreCounters::recovered, "records found again at the start"},
    {"recovery_refused", &StoreCounters::recovery_refused,
     "records found at the start and not believed: another journal's, of an older copy, or damaged"},
    {"recovery_dropped", &StoreCounters::recovery_dropped,
     "records found at the start that had been dropped, had expired or had lost their parent, and older "
     "copies of others"},
    {"written_down", &StoreCounters::written_down, "records written to flash from memory"},
    {"down_failed", &StoreCounters::down_failed, "records not written to flash: the device failed"},
    {"down_too_large", &StoreCounters::down_too_large, "records not written to flash at their put: larger than it takes"},
    {"down_overflow", &StoreCounters::down_overflow, "records not written to flash: too many waited"},
    {"down_over_budget", &StoreCounters::down_over_budget, "records not written to flash: endurance"},
    {"down_not_worth", &StoreCounters::down_not_worth,
     "records not written to flash at their put: not likely enough to be used while they would lie there"},
    {"down_over_quota", &StoreCounters::down_over_quota,
     "records not written to flash: their namespaces have all that their quota gives them there"},
    {"demoted", &StoreCounters::demoted, "records that left memory and are on flash still"},
    {"evicted_unwritten", &StoreCounters::evicted_unwritten,
     "records that were wanted on flash and had to go before they were written"},
    {"fetched", &StoreCounters::fetched, "records fetched from flash into memory"},
    {"fetch_failed", &StoreCounters::fetch_failed, "fetches from flash that failed"},
    {"fetch_refused", &StoreCounters::fetch_refused,
     "fetches of a record, or of a share of it, refused because they would come too late"},
    {"read_ahead", &StoreCounters::read_ahead, "of fetched, before they were asked for"},
    {"fetched_ahead", &StoreCounters::fetched_ahead, "of fetched, before a turn that a caller told of"},
    {"ahead_used", &StoreCounters::ahead_used, "of fetched_ahead, in memory when the turn came"},
    {"ahead_too_late", &StoreCounters::ahead_too_late,
     "turns that came while what was fetched for them was on its way"},
    {"turns_told", &StoreCounters::turns_told, "prompts whose next turn a caller told of, with flash below"},
    {"turns_missed", &StoreCounters::turns_missed,
     "of turns_told, that did not come while they were awaited"},
    {"passing", &StoreCounters::passing, "of fetched, not promoted: they leave memory first"},
    {"passed_segments", &StoreCounters::passed_segments, "segments of 64 KiB read for partial copies"},
    {"moved_below", &StoreCounters::moved_below, "records moved out of a region that was given up"},
    {"evicted_below", &StoreCounters::evicted_below,
     "records that left flash with their region, and are nowhere any more"},
    {"evicted_below_over_quota", &StoreCounters::evicted_below_over_quota,
     "records that left flash because their namespaces' quota of it was nearly full, and are nowhere any "
     "more"},
    {"cut_at_reclaim", &StoreCounters::cut_at_reclaim, "records given up for good with their region"},
    {"lost_below", &StoreCounters::lost_below,
     "records that a device failed to read, or took along when it went out"},
    {"scrubbed_bytes", &StoreCounters::scrubbed_bytes, "bytes read again and checked in the background"},
    {"scrub_rounds", &StoreCounters::scrub_rounds, "times that all was read again"},
    {"reported_bad", &StoreCounters::reported_bad, "bodies that a reader saw fail their seal, and that do"},
    {"reported_good", &StoreCounters::reported_good,
     "bodies that a reader saw fail their seal, and that do not"},
    {"widened_drops", &StoreCounters::widened_drops,
     "drops of a cell that took their whole namespace: too many tombstones were kept"},
};

constexpr Field kMisses[] = {
    {"unknown", &StoreCounters::miss_unknown,
     "never stored, or gone for longer than the last 65,536 that went"},
    {"other_namespace", &StoreCounters::miss_other_namespace,
     "never stored there, but in another namespace of the same model: `cistern namespaces diff` says in what "
     "they differ"},
    {"evicted", &StoreCounters::miss_evicted, "it was here and had to make room, or its region was given up"},
    {"expired", &StoreCounters::miss_expired, "its time had come"},
    {"dropped", &StoreCounters::miss_dropped, "its key, an ancestor's, or its conversation was dropped"},
    {"bad", &StoreCounters::miss_bad, "it failed its seal, or its device lost it"},
    {"orphaned", &StoreCounters::miss_orphaned, "a block that it descends from was lost"},
    {"pending", &StoreCounters::miss_pending, "it is being written: parts, parent or Publish are missing"},
    {"switched_off", &StoreCounters::miss_off, "`cistern admin reads off`"},
    {"lease_lost", &StoreCounters::lapsed_holds, "some of the chain went between its match and its hold"},
    {"too_late", &StoreCounters::miss_too_late, "on flash, and it would not have been worth waiting for"},
};

}  // namespace

void AddMatchMetrics(MetricRegistry& registry, const StoreCounters& counters) {
  registry.Label("misses", "reason",
                 "blocks that were asked for and not had, by why the first of their chain was not there");
  for (const Field& field : kMisses) registry.Add("misses", field.name, field.help, counters.*field.counter);
  registry.Label("waits", "of", "how long the core's steps and its longer work took");
  registry.Add("waits", "fetch", "a record's way from flash into memory", counters.fetch_ns);
}

void AddMetrics(MetricRegistry& registry, const StoreCounters& counters) {
  for (const Field& field : kFields) registry.Add("store", field.name, field.help, counters.*field.counter);
}

}  // namespace cistern::catalog
