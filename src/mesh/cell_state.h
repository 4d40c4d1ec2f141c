// SPDX-License-Identifier: Apache-2.0
// What the parts of a member share: what it has seen of its cell, and how far it has come.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/event.h"
#include "etcd/etcd.h"
#include "mesh/cell_drop.h"
#include "mesh/cell_keys.h"
#include "mesh/cell_view.h"
#include "mesh/drop_list.h"
#include "mesh/drop_pace.h"

namespace cistern::mesh {

struct CellLimits {
  static constexpr std::int64_t kLeaseS = 10;
  static constexpr std::int64_t kKeepAliveUs = 3'000'000;
  static constexpr std::int64_t kLookUs = 2'000'000;  // how often it is proven that the watch lives
  static constexpr std::int64_t kCallUs = 1'500'000;  // of one question to etcd
  // How long a member keeps its lease that cannot read etcd, or whose store makes nothing durable: the drops
  // of its cell wait for it.
  static constexpr std::int64_t kUnfitUs = 2 * kLeaseS * 1'000'000;
  // Of drops in one answer of etcd, and of ends: if they are as large as can be, and if they are small.
  static constexpr std::int64_t kPageKeys = 64, kMostPageKeys = 4'096;
  // How long who trims a batch has seen it: by then each member that reaches etcd has looked whether that is
  // the one that it was.
  static constexpr std::int64_t kTrimAgeUs = kLeaseS * 1'000'000;
  static constexpr std::int64_t kKeepDropsUs = 24ll * 3600 * 1'000'000, kKeepEndsUs = 3600ll * 1'000'000;
  static constexpr std::uint64_t kKeepBytes = 256u << 20;  // of drops, and of ends
};
// A page of each is one answer, in base64, beside all that is small.
static_assert(2 * CellLimits::kPageKeys * DropLimits::kBatchBytes * 4 / 3 < etcd::Limits::kAnswerBytes / 2);

// A key of etcd that was seen and that only a trim deletes: etcd without it is not the one that was seen.
struct Witness {
  std::string key;
  std::int64_t revision = 0;
  bool of_end = false;
};

struct CellState {
  explicit CellState(std::uint64_t seed) : list(seed) {}
  Answered own() const { return {history, applied, last_applied}; }

  bool reading = false;  // it has its key, and reads what it is to have seen before it has joined

  EtcdPast past;
  Witness witness;
  std::uint64_t history = 0;          // that all below belongs to; 0: none yet
  std::int64_t history_revision = 0;  // of its key
  DropList list;
  std::int64_t seen = 0;     // every drop up to here has begun to take effect
  std::int64_t applied = 0;  // the same, durable
  KnownBatches known;
  BatchMark last_seen, last_applied;  // the last batch up to `seen`, up to `applied`
  CellFloor floor;
  std::int64_t floor_revision = 0;  // of its key; 0: there is none
  CellView view;
  std::uint64_t views = 0;                  // how often its members were others
  std::map<std::uint64_t, Answered> heard;  // by process number, this one's too
  Retention kept_drops{CellLimits::kKeepDropsUs, CellLimits::kKeepBytes};
  Retention kept_ends{CellLimits::kKeepEndsUs, CellLimits::kKeepBytes};
  bool joined = false;  // and has read to the revision of its own key: it shares
  Status trouble;       // why it is not joined, or does not reach etcd
  Status refused;       // why etcd took no drop when it was last asked to; ok: it did
  Event changed;        // pulsed after each change of what stands above
};

}  // namespace cistern::mesh
