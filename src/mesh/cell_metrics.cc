// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_metrics.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/format.h"
#include "base/metric_registry.h"
#include "mesh/local_block_store.h"
#include "mesh/member.h"

namespace cistern::mesh {
namespace {

struct Said {
  std::string_view name;
  MetricKind kind;
  MetricValue (*read)(const Member& member);
  std::string_view help;
};

MetricValue Number(std::int64_t number) { return MetricValue(number); }

constexpr Said kSaid[] = {
    {"member", MetricKind::kText, [](const Member& m) { return MetricValue(m.options().id); },
     "this node's id in its cell"},
    {"prefix", MetricKind::kText, [](const Member& m) { return MetricValue(m.options().prefix); },
     "what the cell's keys in etcd begin with"},
    {"address", MetricKind::kText, [](const Member& m) { return MetricValue(m.options().address); },
     "where the other members reach it"},
    {"zone", MetricKind::kText, [](const Member& m) { return MetricValue(m.options().zone); },
     "where it stands"},
    {"history", MetricKind::kText, [](const Member& m) { return MetricValue(Hex(m.state().history)); },
     "what the cell's revisions belong to: another one after a restore of etcd"},
    {"trouble", MetricKind::kText,
     [](const Member& m) { return MetricValue(std::string(m.why().message())); },
     "why it has not joined, or does not reach etcd; empty: it does"},
    {"joined", MetricKind::kGauge, [](const Member& m) { return MetricValue(m.joined()); },
     "whether it has joined, and has read all drops up to then"},
    {"members", MetricKind::kGauge,
     [](const Member& m) { return MetricValue(std::uint64_t{m.state().view.members.size()}); },
     "in its view, itself too"},
    {"reachable", MetricKind::kGauge,
     [](const Member& m) { return MetricValue(std::uint64_t{m.reachable()}); },
     "other members to which there is a connection"},
    {"view_revision", MetricKind::kGauge, [](const Member& m) { return Number(m.state().view.revision); },
     "of etcd, at which the members were those"},
    {"seen", MetricKind::kGauge, [](const Member& m) { return Number(m.state().seen); },
     "every drop of the cell up to this revision has begun to take effect here"},
    {"applied", MetricKind::kGauge, [](const Member& m) { return Number(m.state().applied); },
     "the same, durable"},
    {"drops_floor", MetricKind::kGauge, [](const Member& m) { return Number(m.state().floor.drops); },
     "drops up to this revision are no longer kept in etcd"},
    {"ends_floor", MetricKind::kGauge, [](const Member& m) { return Number(m.state().floor.ends); },
     "ends of conversations up to this revision are no longer kept in etcd"},
    {"listed", MetricKind::kGauge,
     [](const Member& m) { return MetricValue(std::uint64_t{m.drops().size()}); },
     "keys, namespaces and ends in the list that records of other members are checked against"},
};

using Counters = LocalBlockStore::Counters;

constexpr MetricMember<Counters, Counter> kCounted[] = {
    {"drops", MetricKind::kCounter, &Counters::drops,
     "drops of keys and of namespaces that took effect here"},
    {"ends", MetricKind::kCounter, &Counters::ends, "ends of conversations that did"},
    {"unknown_drops", MetricKind::kCounter, &Counters::unknown,
     "of both, those of namespaces that are not here"},
    {"dropped_blocks", MetricKind::kCounter, &Counters::blocks, "blocks that they removed"},
    {"discards", MetricKind::kCounter, &Counters::discards,
     "times that everything was given up: another history, or away for longer than drops are kept"},
};

}  // namespace

void AddMetrics(MetricRegistry& registry, const Member* member, const LocalBlockStore* local) {
  for (const Said& said : kSaid)
    registry.Add("cell", {said.name, said.kind, said.help},
                 [member, read = said.read] { return read(*member); });
  AddFields(registry, "cell", kCounted, [local]() -> const Counters& { return local->counters(); });
}

}  // namespace cistern::mesh
