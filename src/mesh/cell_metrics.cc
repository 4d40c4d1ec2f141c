// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_metrics.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/format.h"
#include "base/metric_registry.h"
#include "mesh/local_block_store.h"
#include "mesh/member.h"
#include "mesh/rail_threads.h"
#include "mesh/sharing.h"

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
    {"role", MetricKind::kText,
     [](const Member& m) { return MetricValue(std::string(ToString(m.options().role))); },
     "what it is for: engine, or store"},
    {"zone", MetricKind::kText, [](const Member& m) { return MetricValue(m.options().zone); },
     "where it stands"},
    {"history", MetricKind::kText, [](const Member& m) { return MetricValue(Hex(m.state().history)); },
     "what the cell's revisions belong to: another one after a restore of etcd"},
    {"trouble_code", MetricKind::kText,
     [](const Member& m) { return MetricValue(std::string(CodeName(m.why().code()))); },
     "the code of why it has not joined, or etcd takes no drop; ok: it does"},
    {"trouble", MetricKind::kRemark,
     [](const Member& m) { return MetricValue(std::string(m.why().message())); },
     "why it has not joined, or etcd takes no drop; empty: it does"},
    {"joined", MetricKind::kGauge, [](const Member& m) { return MetricValue(m.joined()); },
     "whether it has joined, and has read all drops up to then"},
    {"stands", MetricKind::kGauge, [](const Member& m) { return MetricValue(m.stands()); },
     "whether its membership stands now: strict namespaces are read while it does"},
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
    {"discarded_blocks", MetricKind::kCounter, &Counters::discarded, "blocks that went with it"},
};

struct Shared {
  std::string_view name;
  MetricKind kind;
  std::uint64_t (*read)(const Sharing& sharing);
  std::string_view help;
};

constexpr Shared kShared[] = {
    {"unknown_matches", MetricKind::kCounter, [](const Sharing& s) { return s.finder().counters().unknown; },
     "matches whose rest no member is known to have: no message was sent"},
    {"asked_members", MetricKind::kCounter, [](const Sharing& s) { return s.finder().counters().asked; },
     "questions for the rest of a match to another member"},
    {"stale_answers", MetricKind::kCounter, [](const Sharing& s) { return s.finder().counters().stale; },
     "of these, members that had nothing of it any more"},
    {"failed_answers", MetricKind::kCounter, [](const Sharing& s) { return s.finder().counters().failed; },
     "of these, members that did not answer in time, or with an error"},
    {"peer_found_blocks", MetricKind::kCounter,
     [](const Sharing& s) { return s.peer_blocks().counters().found.value(); },
     "blocks of matched chains that another member had, behind those that are here"},
    {"peer_read_blocks", MetricKind::kCounter,
     [](const Sharing& s) { return s.reader().counters().blocks.value(); },
     "blocks that were read from another member"},
    {"peer_read_bytes", MetricKind::kCounter,
     [](const Sharing& s) { return s.reader().counters().bytes.value(); }, "bytes of their bodies"},
    {"peer_late_blocks", MetricKind::kCounter,
     [](const Sharing& s) { return s.peer_blocks().counters().late.value(); },
     "blocks that were asked for and would not have come, or did not come, in time"},
    {"peer_failed_batches", MetricKind::kCounter,
     [](const Sharing& s) { return s.reader().counters().failed.value(); },
     "batches of blocks that a member did not answer"},
    {"peer_landing_bytes", MetricKind::kGauge, [](const Sharing& s) { return s.reader().landing_bytes(); },
     "on their way from other members now"},
    {"peer_paced_batches", MetricKind::kCounter,
     [](const Sharing& s) { return s.peers().bandwidth().waits().value(); },
     "batches of blocks that waited, before they were asked for, because of cell_bandwidth"},
    {"given_blocks", MetricKind::kCounter,
     [](const Sharing& s) { return s.giver().counters().blocks.value(); },
     "blocks that other members have taken from this one while it drained"},
    {"given_bytes", MetricKind::kCounter, [](const Sharing& s) { return s.giver().counters().bytes.value(); },
     "of their bodies in the full group"},
    {"refused_gifts", MetricKind::kCounter,
     [](const Sharing& s) { return s.giver().counters().refused.value(); },
     "offers of blocks to a member that it did not take, or not all of them"},
    {"failed_gifts", MetricKind::kCounter,
     [](const Sharing& s) { return s.giver().counters().failed.value(); },
     "of these, offers that were not answered"},
    {"left_blocks", MetricKind::kCounter, [](const Sharing& s) { return s.giver().counters().left.value(); },
     "blocks that memory alone had and no other member took"},
    {"copied_blocks", MetricKind::kCounter,
     [](const Sharing& s) { return s.spreader().counters().copied_blocks.value(); },
     "blocks that other members lacked and have taken, since several are to have them"},
    {"copied_bytes", MetricKind::kCounter,
     [](const Sharing& s) { return s.spreader().counters().copied_bytes.value(); },
     "of their bodies in the full group"},
    {"warmed_blocks", MetricKind::kCounter,
     [](const Sharing& s) { return s.spreader().counters().warmed_blocks.value(); },
     "blocks that members have taken which joined with room"},
    {"warmed_bytes", MetricKind::kCounter,
     [](const Sharing& s) { return s.spreader().counters().warmed_bytes.value(); },
     "of their bodies in the full group"},
    {"stored_blocks", MetricKind::kCounter,
     [](const Sharing& s) { return s.spreader().counters().stored_blocks.value(); },
     "blocks that had cooled here and that members have taken whose role is to store"},
    {"stored_bytes", MetricKind::kCounter,
     [](const Sharing& s) { return s.spreader().counters().stored_bytes.value(); },
     "of their bodies in the full group"},
    {"refused_copies", MetricKind::kCounter,
     [](const Sharing& s) { return s.spreader().counters().refused.value(); },
     "of all these, offers that a member did not take, or not all of them"},
    {"failed_copies", MetricKind::kCounter,
     [](const Sharing& s) { return s.spreader().counters().failed.value(); },
     "of these, offers that were not answered"},
    {"newcomers", MetricKind::kGauge,
     [](const Sharing& s) { return std::uint64_t{s.spreader().newcomers()}; },
     "members that have joined with room and are offered blocks, or will be"},
    {"taken_blocks", MetricKind::kCounter,
     [](const Sharing& s) { return s.taker().counters().blocks.value(); },
     "blocks that were taken of what other members offered"},
    {"taken_bytes", MetricKind::kCounter, [](const Sharing& s) { return s.taker().counters().bytes.value(); },
     "of their bodies"},
    {"refused_offers", MetricKind::kCounter,
     [](const Sharing& s) { return s.taker().counters().refused.value(); },
     "offers that were not taken, or not all of them: no room, or it drains itself"},
    {"taken_namespaces", MetricKind::kCounter,
     [](const Sharing& s) { return s.taker().counters().namespaces.value(); },
     "namespaces that nobody had attached here and that came with blocks that were taken"},
    {"closed_to", MetricKind::kGauge, [](const Sharing& s) { return s.peers().Open(); },
     "members that are not asked now, because they did not answer"},
    {"samples", MetricKind::kGauge, [](const Sharing& s) { return s.feed().samples(); },
     "of this node's blocks, that the others are told of"},
    {"index_samples", MetricKind::kGauge, [](const Sharing& s) { return s.index().entries(); },
     "of the others' blocks, that are known here"},
    {"index_bytes", MetricKind::kGauge, [](const Sharing& s) { return s.index().bytes(); }, "that they take"},
};

constexpr MetricMember<RailCounters, SharedCounter> kServed[] = {
    {"served_blocks", MetricKind::kCounter, &RailCounters::blocks,
     "blocks that other members have read from this one"},
    {"served_bytes", MetricKind::kCounter, &RailCounters::bytes, "bytes of their bodies"},
    {"served_below", MetricKind::kCounter, &RailCounters::fetched,
     "of these, blocks that were fetched from flash for it"},
    {"served_gave_way", MetricKind::kCounter, &RailCounters::gave_way,
     "blocks that gave their slot to another one while they were sent"},
};

}  // namespace

void AddWaits(MetricRegistry& registry, const CellParts& cell) {
  static const Histogram kNone;  // for the name alone
  registry.Add("waits", "peer",
               "a batch of blocks' way from another node into memory, of at most 512 KiB or one block",
               cell.sharing == nullptr ? kNone : cell.sharing->reader().counters().batch_ns);
}

void AddMetrics(MetricRegistry& registry, const CellParts& cell) {
  const Member* const member = cell.member;
  for (const Said& said : kSaid)
    registry.Add("cell", {said.name, said.kind, said.help},
                 [member, read = said.read] { return read(*member); });
  registry.Add("cell",
               {"certificate_ends", MetricKind::kGauge,
                "when the first certificate ends that others accept it by, in Unix seconds; 0: it has keys"},
               [end = cell.certificate_ends] { return MetricValue(end); });
  registry.Add(
      "cell",
      {"name_conflicts", MetricKind::kGauge, "names of namespaces that stand for another list in the cell"},
      [conflicts = cell.conflicts] { return MetricValue(std::uint64_t{conflicts->size()}); });
  registry.Add(
      "cell",
      {"name_conflict", MetricKind::kRemark, "the first of them, and both lists; empty: there is none"},
      [conflicts = cell.conflicts] {
        return MetricValue(conflicts->empty() ? std::string() : conflicts->begin()->second);
      });
  AddFields(registry, "cell", kCounted,
            [local = cell.local]() -> const Counters& { return local->counters(); });
  for (const Shared& shared : kShared)
    registry.Add("cell", {shared.name, shared.kind, shared.help},
                 [sharing = cell.sharing, read = shared.read] { return MetricValue(read(*sharing)); });
  AddFields(registry, "cell", kServed,
            [rails = cell.rails]() -> const RailCounters& { return rails->counters(); });
  registry.Add(
      "cell",
      {"rail_threads", MetricKind::kGauge, "threads that carry blocks to other members and from them"},
      [rails = cell.rails] { return MetricValue(std::uint64_t{rails->threads()}); });
  registry.Add("cell",
               {"without_rail", MetricKind::kGauge,
                "members of which nothing could be read lately: no connection for blocks to them was open"},
               [rails = cell.rails] { return MetricValue(std::uint64_t{rails->WithoutRail()}); });
  registry.Add(
      "cell",
      {"served_paced", MetricKind::kCounter, "sends to other members that waited, because of cell_bandwidth"},
      [rails = cell.rails] { return MetricValue(rails->waits().value()); });
  registry.Add(
      "cell",
      {"rdma", MetricKind::kText, "the device that reads blocks from other nodes' memory; empty: none"},
      [rails = cell.rails] { return MetricValue(rails->fabric_name()); });
  registry.Add("cell",
               {"no_rdma", MetricKind::kText, "why there is none; empty: there is, or none was looked for"},
               [rails = cell.rails] { return MetricValue(std::string(rails->no_fabric().message())); });
  registry.Add("cell", {"rdma_bytes", MetricKind::kCounter, "of blocks that it has read there"},
               [rails = cell.rails] { return MetricValue(rails->counters().rdma_bytes.value()); });
}

}  // namespace cistern::mesh
