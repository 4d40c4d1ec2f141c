// SPDX-License-Identifier: Apache-2.0
#include "node/status.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "base/format.h"

namespace cistern::node {

namespace json = boost::json;

namespace {

json::object DeviceJson(const flash::FlashTier::DeviceState& device) {
  return {{"path", device.path},
          {"id", Hex(device.id)},
          {"in_service", device.in_service},
          {"why", device.why},
          {"bytes", device.size_bytes},
          {"reads", device.reads},
          {"read_bytes", device.read_bytes},
          {"writes", device.writes},
          {"written_bytes", device.written_bytes},
          {"errors", device.errors},
          {"bad_records", device.bad_records},
          {"in_flight", device.in_flight},
          {"read_estimate_us", device.read_estimate_us}};
}

json::object FlashJson(const NodeFacts& facts, const catalog::StoreCounters& store,
                       const flash::FlashTier* tier) {
  json::array devices;
  if (tier == nullptr) return {{"devices", std::move(devices)}};
  for (const flash::FlashTier::DeviceState& device : tier->devices()) devices.push_back(DeviceJson(device));
  const flash::FlashTier::Counters& counters = tier->counters();
  auto value = [](const Counter& counter) { return counter.value(); };
  // Per byte of a record that was written for the first time, not moved.
  const double records = static_cast<double>(store.written_down.value() + store.moved_below.value());
  const double first_bytes = records == 0 ? 0.0
                                          : static_cast<double>(counters.appended_bytes.value()) *
                                                static_cast<double>(store.written_down.value()) / records;
  const double amplification =
      first_bytes == 0 ? 0.0 : static_cast<double>(counters.device_written_bytes.value()) / first_bytes;
  const bool limited = facts.budget_bytes_a_day != 0;
  return {{"devices", std::move(devices)},
          {"bytes", tier->capacity_bytes()},
          {"live_bytes", tier->live_bytes()},
          {"regions", tier->regions()},
          {"free_regions", tier->free_regions()},
          {"region_bytes", tier->region_bytes()},
          {"written_records", value(counters.appended_records)},
          {"written_bytes", value(counters.appended_bytes)},
          {"device_written_bytes", value(counters.device_written_bytes)},
          {"write_amplification", amplification},
          {"fetched_records", value(counters.fetched_records)},
          {"fetched_bytes", value(counters.fetched_bytes)},
          {"released_regions", value(counters.released_regions)},
          {"refused_by_budget_bytes", value(counters.refused_by_budget)},
          {"refused_no_region", value(counters.refused_no_region)},
          {"budget_bytes_a_day", limited ? json::value(facts.budget_bytes_a_day) : json::value()},
          {"budget_left_bytes", limited ? json::value(tier->budget_left_bytes()) : json::value()},
          {"bad_records", value(counters.bad_records)},
          {"errors", value(counters.io_errors)}};
}

json::object StoreJson(const catalog::StoreCounters& counters, const flash::FlashTier* tier) {
  auto value = [](const Counter& counter) { return counter.value(); };
  return {{"published", value(counters.published)},
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
          {"written_down", value(counters.written_down)},
          {"down_failed", value(counters.down_failed)},
          {"down_too_large", value(counters.down_too_large)},
          {"down_overflow", value(counters.down_overflow)},
          {"down_over_budget", value(counters.down_over_budget)},
          {"demoted", value(counters.demoted)},
          {"evicted_unwritten", value(counters.evicted_unwritten)},
          {"fetched", value(counters.fetched)},
          {"fetch_failed", value(counters.fetch_failed)},
          {"fetch_refused", value(counters.fetch_refused)},
          {"read_ahead", value(counters.read_ahead)},
          {"passing", value(counters.passing)},
          {"passed_segments", value(counters.passed_segments)},
          {"reclaimed", tier == nullptr ? 0 : tier->counters().reclaimed.value()},
          {"moved_below", value(counters.moved_below)},
          {"evicted_below", value(counters.evicted_below)},
          {"cut_at_reclaim", value(counters.cut_at_reclaim)},
          {"lost_below", value(counters.lost_below)},
          {"scrubbed_bytes", value(counters.scrubbed_bytes)},
          {"scrub_rounds", value(counters.scrub_rounds)},
          {"reported_bad", value(counters.reported_bad)},
          {"reported_good", value(counters.reported_good)}};
}

}  // namespace

std::string StatusJson(const NodeFacts& facts, const store::BlockStore::Occupancy& occupancy,
                       const catalog::StoreCounters& counters, const memory::Slots::Counts& slots,
                       const server::ServerCounters& server, const flash::FlashTier* tier) {
  json::object node{{"tenant", facts.tenant},       {"pid", facts.pid},
                    {"directory", facts.directory}, {"journal", facts.journal},
                    {"socket", facts.socket},       {"loop", facts.loop},
                    {"copy", facts.copy},           {"boot_count", facts.boot_count},
                    {"uptime_us", facts.uptime_us}, {"warm_us", facts.warm_us},
                    {"sleeps", facts.loop_sleeps}};
  json::object memory{{"bytes", facts.memory_bytes}, {"used_bytes", slots.used_bytes},
                      {"slots", slots.slots},        {"used_slots", slots.used_slots},
                      {"chunks", slots.chunks},      {"free_heads", slots.free_headers},
                      {"carvings", slots.carvings}};
  json::object now{{"blocks", occupancy.blocks},
                   {"records", occupancy.records},
                   {"bytes", occupancy.bytes},
                   {"pending", occupancy.pending},
                   {"leases", occupancy.leases},
                   {"leased_blocks", occupancy.leased_blocks},
                   {"namespaces", occupancy.namespaces},
                   {"tombstones", occupancy.tombstones},
                   {"conversations", occupancy.conversations},
                   {"fetches", occupancy.fetches},
                   {"passages", occupancy.passages}};
  json::object at_door{{"sessions", server.sessions},
                       {"in_flight", server.in_flight},
                       {"staging_bytes", server.staging_bytes},
                       {"accepted", server.accepted},
                       {"refused", server.refused},
                       {"ended_forged", server.ended_forged},
                       {"calls", server.calls},
                       {"calls_refused", server.calls_refused},
                       {"completions_lost", server.completions_lost},
                       {"touches", server.touches},
                       {"touches_lost", server.touches_lost}};
  return json::serialize(json::object{{"node", std::move(node)},
                                      {"memory", std::move(memory)},
                                      {"now", std::move(now)},
                                      {"flash", FlashJson(facts, counters, tier)},
                                      {"store", StoreJson(counters, tier)},
                                      {"door", std::move(at_door)}});
}

}  // namespace cistern::node
