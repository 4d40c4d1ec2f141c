// SPDX-License-Identifier: Apache-2.0
// A trace with real bytes through a store: match, read and compare what is there, write what is missing.
// One request at a time. Hits then equal the simulator's exactly, when the store keeps at most as many
// blocks, all in memory, evicts by the same policy, and takes its time from the trace.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/metrics.h"
#include "cistern/store.h"
#include "workload/request.h"

namespace cistern::workload {

struct ReplayOptions {
  std::uint64_t block_bytes = 64u << 10;
  std::uint64_t seed = 1;           // of keys and contents
  std::uint32_t batch_blocks = 16;  // a call
  // A request's chain is leased while it runs, so that nothing of it goes. A hold is of what the node itself
  // has.
  bool hold = true;
  // Set to the time of each request, in ms, before its first call: OpenOptions::eviction_time_ms of the store
  // reads it. Null: the store's time is its own.
  std::atomic<std::uint64_t>* time_ms = nullptr;
  // Called now and then with what happened so far.
  std::function<void(const struct ReplayReport&)> progress;
};

// Written by the replay alone; any thread or process that shares its memory may read it meanwhile.
struct ReplayReport {
  Counter requests;
  Counter accesses;
  Counter hits;        // blocks that were read and compared
  Counter hits_flash;  // of these, the ones that the match found on flash
  Counter hits_peer;   // and at another node of the cell
  Counter hit_tokens;  // prefill that need not be computed
  Counter input_tokens;
  Counter blocks_written;
  Counter blocks_refused;  // kBusy: of a chain longer than the store, or worth less than all that is there
  Counter bytes_read;
  Counter bytes_written;
  Counter bytes_verified;
  Counter wrong_bytes;
  Counter read_ns;          // in Read calls
  Counter write_ns;         // in Write calls
  Histogram match_ns;       // a call
  Histogram read_batch_ns;  // a call of batch_blocks
  Histogram write_batch_ns;

  double hit_rate() const {
    return accesses.value() ? static_cast<double>(hits.value()) / static_cast<double>(accesses.value()) : 0.0;
  }
};

class Replay final {
 public:
  // All but the options are borrowed. `ns` has one full group of one part; the report is added to.
  Replay(Store& store, const Namespace& ns, const ReplayOptions& options, ReplayReport& report);
  ~Replay();

  // One request, to its end; its chain is touched leaf to root, as the simulator does. Not ok when the store
  // failed; a miss or kBusy is not a failure.
  Status Submit(const Request& request);

 private:
  Status ReadHits(const MatchResult& match);
  Status WriteMissing(std::uint64_t hits);

  Store& store_;
  const Namespace& ns_;
  const ReplayOptions options_;
  ReplayReport& report_;
  TraceTime time_;
  std::vector<BlockKey> chain_;
  std::vector<Where> where_;  // of each block that matched
  std::vector<std::byte> buffer_;
  Staging staging_;
};

// The namespace that a replay of this block size uses.
NamespaceSpec ReplayNamespace(std::uint64_t block_bytes);

// All of `requests`, or as many as come before `stop` says so: then it is kGone.
Status ReplayAll(RequestSource& requests, Replay& replay, const std::function<bool()>& stop = nullptr);

}  // namespace cistern::workload
