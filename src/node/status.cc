// SPDX-License-Identifier: Apache-2.0
#include "node/status.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

namespace cistern {

namespace json = boost::json;

std::string StatusJson(const NodeFacts& facts, const BlockStore::Occupancy& occupancy,
                       const StoreCounters& counters, const Slots::Counts& slots, const DoorCounters& door) {
  json::object node{{"tenant", facts.tenant},
                    {"pid", facts.pid},
                    {"directory", facts.directory},
                    {"socket", facts.socket},
                    {"loop", facts.loop},
                    {"copy", facts.copy},
                    {"boot_count", facts.boot_count},
                    {"uptime_us", facts.uptime_us},
                    {"warm_us", facts.warm_us},
                    {"sleeps", facts.loop_sleeps}};
  json::object memory{{"bytes", facts.memory_bytes}, {"used_bytes", slots.used_bytes},
                      {"slots", slots.slots},        {"used_slots", slots.used_slots},
                      {"chunks", slots.chunks},      {"free_heads", slots.free_heads},
                      {"carvings", slots.carvings}};
  json::object now{{"blocks", occupancy.blocks},
                   {"records", occupancy.records},
                   {"bytes", occupancy.bytes},
                   {"pending", occupancy.pending},
                   {"leases", occupancy.leases},
                   {"leased_blocks", occupancy.leased_blocks},
                   {"namespaces", occupancy.namespaces},
                   {"tombstones", occupancy.tombstones},
                   {"conversations", occupancy.conversations}};
  auto value = [](const Counter& counter) { return counter.value(); };
  json::object store{{"published", value(counters.published)},
                     {"present", value(counters.present)},
                     {"evicted", value(counters.evicted)},
                     {"dropped", value(counters.dropped)},
                     {"expired", value(counters.expired)},
                     {"cut_bad", value(counters.cut_bad)},
                     {"pending_dropped", value(counters.pending_dropped)},
                     {"leases_granted", value(counters.leases_granted)},
                     {"leases_ended", value(counters.leases_ended)},
                     {"touches_applied", value(counters.touches_applied)},
                     {"touches_refused", value(counters.touches_refused)},
                     {"busy", value(counters.busy)},
                     {"writes_without_room", value(counters.writes_without_room)},
                     {"recovered", value(counters.recovered)},
                     {"recovery_refused", value(counters.recovery_refused)},
                     {"reported_bad", value(counters.reported_bad)},
                     {"reported_good", value(counters.reported_good)}};
  json::object at_door{{"sessions", door.sessions},
                       {"in_flight", door.in_flight},
                       {"staging_bytes", door.staging_bytes},
                       {"accepted", door.accepted},
                       {"refused", door.refused},
                       {"ended_forged", door.ended_forged},
                       {"calls", door.calls},
                       {"calls_refused", door.calls_refused},
                       {"completions_lost", door.completions_lost},
                       {"touches", door.touches},
                       {"touches_lost", door.touches_lost}};
  return json::serialize(json::object{{"node", std::move(node)},
                                      {"memory", std::move(memory)},
                                      {"now", std::move(now)},
                                      {"store", std::move(store)},
                                      {"door", std::move(at_door)}});
}

}  // namespace cistern
