// SPDX-License-Identifier: Apache-2.0
// The runs of a match as its reply has them: a MatchReply, then so many MatchRunItems.
// docs/formats/session.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/codec.h"
#include "base/format.h"
#include "cistern/status.h"
#include "cistern/where.h"
#include "wire/protocol.h"

namespace cistern::wire {

// The runs of a match, the next behind those before: what follows in the same place is one run, ready when
// the later of both is. No run is empty.
inline void AddRun(std::vector<MatchRun>& runs, const MatchRun& next) {
  if (next.blocks == 0) return;
  if (runs.empty() || runs.back().where != next.where) {
    runs.push_back(next);
    return;
  }
  runs.back().blocks += next.blocks;
  runs.back().ready_in_us = std::max(runs.back().ready_in_us, next.ready_in_us);
}

// What is past the first `most` runs joins the last of them: that one lies where the furthest of them does.
// most > 0.
inline void FoldRuns(std::vector<MatchRun>& runs, std::size_t most) {
  if (runs.size() <= most) return;
  MatchRun& last = runs[most - 1];
  for (const MatchRun& run : std::span(runs).subspan(most)) {
    last.blocks += run.blocks;
    last.where = std::max(last.where, run.where);
    last.ready_in_us = std::max(last.ready_in_us, run.ready_in_us);
  }
  runs.resize(most);
}

inline MatchRunItem ItemOf(const MatchRun& run) {
  return {
      .blocks = run.blocks, .where = static_cast<std::uint32_t>(run.where), .ready_in_us = run.ready_in_us};
}

// What a reply says. A node of before there were tiers gives one run, empty where nothing matched. kMismatch:
// no such reply, runs that do not add up to its blocks, or a place that is not known here.
inline Result<std::vector<MatchRun>> ReadMatchReply(std::span<const std::byte> reply) {
  if (reply.size() < sizeof(MatchReply))
    return Error(Code::kMismatch, Text("a match reply of ", reply.size(), " bytes"));
  const auto head = LoadAt<MatchReply>(reply.data(), 0);
  const std::span<const std::byte> items = reply.subspan(sizeof(head));
  if (head.runs != items.size() / sizeof(MatchRunItem) || items.size() % sizeof(MatchRunItem) != 0)
    return Error(Code::kMismatch,
                 Text("a match reply of ", reply.size(), " bytes with ", head.runs, " runs"));
  std::vector<MatchRun> runs;
  std::uint64_t blocks = 0;  // so far, never over the head's
  for (std::size_t at = 0; at < items.size(); at += sizeof(MatchRunItem)) {
    const auto run = LoadAt<MatchRunItem>(items.data(), at);
    if (run.where > static_cast<std::uint32_t>(Where::kObject))
      return Error(Code::kMismatch, Text("a match reply with blocks in tier ", run.where,
                                         ": the node speaks of a tier that this client does not know"));
    if (run.ready_in_us < 0 || run.blocks > head.blocks - blocks) {
      blocks = UINT64_MAX;
      break;
    }
    blocks += run.blocks;
    const Where where{static_cast<std::uint8_t>(run.where)};
    AddRun(
        runs,
        {.blocks = run.blocks, .where = where, .ready_in_us = where == Where::kMemory ? 0 : run.ready_in_us});
  }
  if (blocks != head.blocks)
    return Error(Code::kMismatch, Text("a match reply of ", head.blocks, " blocks whose ", head.runs,
                                       " runs do not add up to them"));
  return runs;
}

}  // namespace cistern::wire
