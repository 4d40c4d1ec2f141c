// SPDX-License-Identifier: Apache-2.0
#include "flash/figures.h"

#include <utility>

#include "base/format.h"
#include "base/metric_registry.h"
#include "flash/flash_tier.h"

namespace cistern::flash {
namespace {

using enum MetricKind;

constexpr std::string_view kSection = "flash";

MetricTable::Found DeviceRow(const FlashTier* tier, std::size_t at, MetricRow& row) {
  if (tier == nullptr) return MetricTable::Found::kEnd;
  std::vector<FlashDeviceState> devices = tier->devices();  // a few
  if (at >= devices.size()) return MetricTable::Found::kEnd;
  FlashDeviceState& device = devices[at];
  row = {std::move(device.path),
         Hex(device.id),
         device.in_service,
         std::move(device.why),
         device.size_bytes,
         device.reads,
         device.read_bytes,
         device.writes,
         device.written_bytes,
         device.errors,
         device.bad_records,
         std::uint64_t{device.in_flight},
         device.in_service ? MetricValue(device.read_estimate_us) : MetricValue()};
  return MetricTable::Found::kRow;
}

MetricTable DeviceTable(const FlashTier* tier) {
  return {.name = "devices",
          .metric = "device",
          .help = "one object a device; empty, and alone here, where memory is all",
          .columns = {{"path", kLabel,
                       "its directory (the tenant's, below the one that was given) or block device"},
                      {"id", kText, "what the device is called in its own headers"},
                      {"in_service", kGauge, "whether it is used"},
                      {"why", kText, "it is not: since what went wrong"},
                      {"bytes", kGauge, "what the node may use of it"},
                      {"reads", kCounter, "transfers from it"},
                      {"read_bytes", kCounter, "bytes read from it"},
                      {"writes", kCounter, "transfers to it"},
                      {"written_bytes", kCounter, "bytes written to it"},
                      {"errors", kCounter, "transfers that failed"},
                      {"bad_records", kCounter, "reads that found another thing than was written there"},
                      {"in_flight", kGauge, "transfers under way"},
                      {"read_estimate_us", kGauge,
                       "how long a read of 64 KiB would take from now on; none: it is out of service"}},
          .rows = [tier](std::size_t at, MetricRow& row) { return DeviceRow(tier, at, row); }};
}

constexpr MetricMember<FlashCounters, Counter> kCounters[] = {
    {"written_records", kCounter, &FlashCounters::appended_records,
     "records written there, those moved within it too"},
    {"written_bytes", kCounter, &FlashCounters::appended_bytes, "bytes of those records"},
    {"device_written_bytes", kCounter, &FlashCounters::device_written_bytes,
     "all bytes that were written to devices"},
    {"fetched_records", kCounter, &FlashCounters::fetched_records,
     "records read back into memory: what flash served"},
    {"fetched_bytes", kCounter, &FlashCounters::fetched_bytes, "bytes of those records"},
    {"released_regions", kCounter, &FlashCounters::released_regions, "regions given up and free again"},
    {"refused_by_budget_bytes", kCounter, &FlashCounters::refused_by_budget,
     "bytes of batches under which the day's budget was spent; the records that it kept from flash: "
     "store.down_over_budget"},
    {"refused_no_region", kCounter, &FlashCounters::refused_no_region,
     "appends for which there was no free region"},
    {"bad_records", kCounter, &FlashCounters::bad_records, "what lay there was not what was written there"},
    {"errors", kCounter, &FlashCounters::io_errors, "transfers that failed"},
};

}  // namespace

double FlashCounters::write_amplification() const {
  const auto fresh = static_cast<double>(fresh_bytes());
  return fresh == 0 ? 0.0 : static_cast<double>(device_written_bytes.value()) / fresh;
}

void AddDeviceMetrics(MetricRegistry& registry, const FlashTier* tier) {
  registry.Add(kSection, DeviceTable(tier));
}

void AddMetrics(MetricRegistry& registry, const FlashTier* tier) {
  AddDeviceMetrics(registry, tier);
  const auto gauge = [&](std::string_view name, std::string_view help, auto read) {
    registry.Add(kSection, {name, kGauge, help},
                 [tier, read] { return MetricValue(std::uint64_t{read(*tier)}); });
  };
  gauge("bytes", "of all devices", [](const FlashTier& t) { return t.capacity_bytes(); });
  gauge("live_bytes", "of the records there that may still be asked for",
        [](const FlashTier& t) { return t.live_bytes(); });
  gauge("regions", "a region is written once and given up whole",
        [](const FlashTier& t) { return t.regions(); });
  gauge("free_regions", "of these, ready to be written", [](const FlashTier& t) { return t.free_regions(); });
  gauge("region_bytes", "of each", [](const FlashTier& t) { return t.region_bytes(); });
  AddFields(registry, kSection, kCounters, [tier]() -> const FlashCounters& { return tier->counters(); });
  registry.Add(kSection,
               {"budget_left_bytes", kGauge,
                "what of flash_budget may be written now, an hour's worth at most; none: no limit"},
               [tier] {
                 const std::uint64_t left = tier->budget_left_bytes();
                 return left == UINT64_MAX ? MetricValue() : MetricValue(left);
               });
  registry.Add(kSection,
               {"write_amplification", kGauge,
                "device_written_bytes, divided by the bytes of records that came from memory"},
               [tier] { return MetricValue(tier->counters().write_amplification()); });
  registry.Add("store", {"reclaimed", kCounter, "regions of flash that were given up"},
               [tier] { return MetricValue(tier->counters().reclaimed.value()); });
}

}  // namespace cistern::flash
