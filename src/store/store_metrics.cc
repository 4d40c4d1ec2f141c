// SPDX-License-Identifier: Apache-2.0
#include "store/store_metrics.h"

#include <algorithm>

#include "base/metric_registry.h"
#include "residency/resizer.h"
#include "store/block_store.h"
#include "store/drain.h"

namespace cistern::store {
namespace {

using enum MetricKind;
using Occupancy = BlockStore::Occupancy;
using catalog::NamespaceCounters;

constexpr MetricMember<Occupancy> kFields[] = {
    {"blocks", kGauge, &Occupancy::blocks, "in the tree, in any tier"},
    {"records", kGauge, &Occupancy::records, "in memory, one for each group of a block"},
    {"bytes", kGauge, &Occupancy::bytes, "of their bodies"},
    {"pending", kGauge, &Occupancy::pending, "puts that wait for parts, parent or Publish"},
    {"leases", kGauge, &Occupancy::leases, "rights to find blocks unmoved"},
    {"leased_blocks", kGauge, &Occupancy::leased_blocks, "the blocks of all leases"},
    {"namespaces", kGauge, &Occupancy::namespaces, "lists that are known"},
    {"tombstones", kGauge, &Occupancy::tombstones, "dropped keys of which an older record may remain"},
    {"conversations", kGauge, &Occupancy::conversations,
     "that wrote a block which may be here, and were not ended"},
    {"fetches", kGauge, &Occupancy::fetches, "blocks that are being read from flash into memory"},
    {"awaited_turns", kGauge, &Occupancy::awaited_turns,
     "turns to come that callers told of: 16,384 at most"},
    {"held_bytes", kGauge, &Occupancy::held_bytes,
     "of slots whose records were fetched for such turns and wait for them: half of memory at most"},
    {"partial_copies", kGauge, &Occupancy::partial_copies,
     "blocks of which some segments lie in a slot, or are on their way"},
    {"write_queue", kGauge, &Occupancy::write_queue, "records that wait to be written to flash"},
    {"cleaner_looked", kGauge, &Occupancy::cleaner_looked,
     "of the coldest records in memory, those that the cleaner looked at last: 4,096 at most"},
    {"cleaner_ready", kGauge, &Occupancy::cleaner_ready,
     "of these, that may leave at once, since flash has them or is not to have them: the cleaner's reserve"},
};

struct SwitchField {
  std::string_view all, some, all_help, some_help;
  Switch which;
};

constexpr SwitchField kSwitches[] = {
    {"reads_on", "reads_off_namespaces", "false: `cistern admin reads off`, nothing is found",
     "namespaces whose reads are off by themselves", Switch::kReads},
    {"writes_on", "writes_off_namespaces", "false: `cistern admin writes off`, nothing new is kept",
     "namespaces whose writes are off by themselves", Switch::kWrites},
};

constexpr MetricMember<NamespaceCounters> kCounted[] = {
    {"memory_bytes", kGauge, &NamespaceCounters::memory_bytes, "of its records in memory"},
    {"memory_records", kGauge, &NamespaceCounters::memory_records, "its records in memory"},
    {"flash_bytes", kGauge, &NamespaceCounters::lower_bytes, "of its records on flash"},
    {"published", kCounter, &NamespaceCounters::published, "records that became visible"},
    {"uses", kCounter, &NamespaceCounters::uses,
     "reads and touches of its records, as far as clients told of them"},
    {"misses", kCounter, &NamespaceCounters::misses, "blocks that were asked for and not there"},
    {"evicted", kCounter, &NamespaceCounters::evicted, "records that left memory and are nowhere any more"},
};

MetricTable::Found NamespaceRow(const BlockStore* store, std::size_t at, MetricRow& row) {
  const auto slot = static_cast<std::uint32_t>(at);
  if (slot >= store->namespace_slots()) return MetricTable::Found::kEnd;
  const catalog::NamespaceEntry* entry = store->NamespaceAt(slot);
  if (entry == nullptr) return MetricTable::Found::kNone;
  const NamespaceCounters& counters = store->CountedAt(slot);
  row.reserve(std::size(kCounted) + 4);
  row.push_back(entry->names.empty() ? catalog::NamespaceTable::FingerprintText(store->FingerprintAt(slot))
                                     : entry->names.front());
  const auto model = std::ranges::find(entry->labels, "model", [](const auto& one) { return one.first; });
  row.push_back(model == entry->labels.end() ? std::string() : model->second);
  row.push_back(store->switches().on(Switch::kReads, slot));
  row.push_back(store->switches().on(Switch::kWrites, slot));
  for (const auto& field : kCounted) row.push_back(counters.*field.member);
  return MetricTable::Found::kRow;
}

MetricValue LimitOf(std::uint64_t bytes) {
  return bytes == policy::Quota::kNoLimit ? MetricValue() : MetricValue(bytes);
}

}  // namespace

void AddNamespaceMetrics(MetricRegistry& registry, const BlockStore* store) {
  MetricTable table{.name = "namespaces",
                    .metric = "namespace",
                    .help = "one object a namespace, by slot number",
                    .columns = {{"namespace", kLabel, "its name, or the fingerprint of its list"},
                                {"model", kLabel, "its label of that name, as engines call it; empty: none"},
                                {"reads_on", kGauge, "whether anything of it can be found"},
                                {"writes_on", kGauge, "whether anything new of it is kept"}},
                    .rows = [store](std::size_t at, MetricRow& row) { return NamespaceRow(store, at, row); }};
  for (const auto& field : kCounted) table.columns.push_back({field.name, field.kind, field.help});
  registry.Add("", std::move(table));
}

void AddQuotaMetrics(MetricRegistry& registry, const BlockStore* store) {
  MetricTable table{.name = "quotas",
                    .metric = "quota",
                    .help = "one object a quota, in the order of the configuration",
                    .columns = {{"quota", kLabel, "its namespaces"},
                                {"memory_bytes", kGauge, "of bodies that they have in memory"},
                                {"memory_limit_bytes", kGauge, "that they may have; none: all"},
                                {"reserve_bytes", kGauge, "of these, that stay when others need room"},
                                {"flash_bytes", kGauge, "of bodies that they have on flash"},
                                {"flash_limit_bytes", kGauge, "that they may have there; none: all"},
                                {"flash_reserve_bytes", kGauge, "of these, that stay when others need room"}},
                    .rows = [store](std::size_t at, MetricRow& row) {
                      const std::vector<policy::Quota>& quotas = store->quotas().quotas();
                      if (at >= quotas.size()) return MetricTable::Found::kEnd;
                      const policy::Quota& quota = quotas[at];
                      row.push_back(quota.pattern);
                      row.push_back(store->used()[at + 1]);
                      row.push_back(LimitOf(quota.memory_bytes));
                      row.push_back(quota.reserve_bytes);
                      row.push_back(store->below()[at + 1]);
                      row.push_back(LimitOf(quota.flash_bytes));
                      row.push_back(quota.flash_reserve_bytes);
                      return MetricTable::Found::kRow;
                    }};
  registry.Add("", std::move(table));
}

void AddSwitchMetrics(MetricRegistry& registry, const BlockStore* store) {
  for (const SwitchField& field : kSwitches) {
    registry.Add("switches", {field.all, kGauge, field.all_help},
                 [store, which = field.which] { return MetricValue(store->switches().all_on(which)); });
    registry.Add("switches", {field.some, kGauge, field.some_help},
                 [store, which = field.which] { return MetricValue(store->switches().off_count(which)); });
  }
}

struct HandedOverField {
  std::string_view name;
  std::uint64_t HandedOver::* member;
  std::string_view help;
};

constexpr HandedOverField kHandedOver[] = {
    {"asked_members", &HandedOver::members,
     "other nodes that could take what this one's memory has; none: nothing was handed over, or not yet"},
    {"given_blocks", &HandedOver::blocks, "blocks that other nodes have taken; none: as above"},
    {"given_bytes", &HandedOver::bytes, "of their bodies in the full group; none: as above"},
};

void AddDrainMetrics(MetricRegistry& registry, const BlockStore* store) {
  registry.Add("drain", {"stage", kText, "off, writing, giving, waiting or drained: `cistern admin drain`"},
               [store] { return MetricValue(std::string(ToString(store->drain().stage()))); });
  registry.Add("drain", {"on", kGauge, "whether the node is on its way out of service, or is out of it"},
               [store] { return MetricValue(store->drain().stage() != Drain::Stage::kOff); });
  registry.Add("drain",
               {"alone_records", kGauge,
                "that memory alone had when it looked last, less what was written since; none: it is off"},
               [store] {
                 const Drain& drain = store->drain();
                 return drain.stage() == Drain::Stage::kOff ? MetricValue() : MetricValue(drain.alone());
               });
  for (const auto& [name, member, help] : kHandedOver) {
    registry.Add("drain", {name, kGauge, help}, [store, read = member] {
      const std::optional<HandedOver>& handed = store->drain().handed_over();
      return handed ? MetricValue((*handed).*read) : MetricValue();
    });
  }
  registry.Add("drain",
               {"lost_blocks", kGauge,
                "that go with memory: neither flash nor another node has them; none: it has not drained"},
               [store] {
                 const Drain& drain = store->drain();
                 return drain.stage() == Drain::Stage::kDrained ? MetricValue(drain.lost()) : MetricValue();
               });
  registry.Add(
      "drain",
      {"complete", kGauge, "whether nothing was left to be done when it had drained; none: it has not"},
      [store] {
        const Drain& drain = store->drain();
        return drain.stage() == Drain::Stage::kDrained ? MetricValue(drain.complete()) : MetricValue();
      });
}

void AddMetrics(MetricRegistry& registry, const BlockStore* store) {
  registry.Add("memory", {"wanted_bytes", kGauge, "of slots that it is on its way to have, or has"},
               [store] { return MetricValue(store->resizer().wanted() * arena::kHeaderSpanBytes); });
  registry.Add("memory",
               {"held_bytes", kGauge,
                "of slots that have memory of the host: more than bytes while a resize takes some away"},
               [store] { return MetricValue(store->resizer().served() * arena::kHeaderSpanBytes); });
  registry.Add(
      "memory",
      {"short", kGauge,
       "whether the host had no more when it was to grow to wanted_bytes; it looks again each minute"},
      [store] { return MetricValue(store->resizer().out_of_memory()); });
  AddFields(registry, "now", kFields, [store] { return store->occupancy(); });
  registry.Add("now",
               {"namespaces_wanted", kGauge,
                "of namespaces, those with a session, a name or blocks: 1,024 at most; any other makes room "
                "for a further list"},
               [store] { return MetricValue(store->namespaces().wanted()); });
}

}  // namespace cistern::store
