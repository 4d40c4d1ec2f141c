// SPDX-License-Identifier: Apache-2.0
// A trace with real bytes through a store: match, read and compare what is there, write what is missing.
// One request at a time. Hits then equal the simulator's exactly, when the store keeps at most as many
// blocks and evicts by the same policy.
#pragma once

#include <cstdint>
#include <functional>

#include "base/metrics.h"
#include "cistern/store.h"
#include "workload/request.h"

namespace cistern {

struct ReplayOptions {
  std::uint64_t block_bytes = 64u << 10;
  std::uint64_t seed = 1;           // of keys and contents
  std::uint32_t batch_blocks = 16;  // a call
  bool keep_chain = true;           // touch leaf to root after each request, as the simulator does
  // Called now and then with what happened so far.
  std::function<void(const struct ReplayReport&)> progress;
};

struct ReplayReport {
  std::uint64_t requests = 0;
  std::uint64_t accesses = 0;
  std::uint64_t hits = 0;          // blocks that were read and compared
  std::uint64_t hit_tokens = 0;    // prefill that need not be computed
  std::uint64_t input_tokens = 0;
  std::uint64_t blocks_written = 0;
  std::uint64_t blocks_refused = 0;  // kBusy: a chain longer than the store
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_verified = 0;
  std::uint64_t wrong_bytes = 0;
  std::uint64_t read_ns = 0;         // in Read calls
  std::uint64_t write_ns = 0;        // in Write calls, copy to staging included
  Histogram match_ns;                // a call
  Histogram read_batch_ns;           // a call of batch_blocks
  Histogram write_batch_ns;

  double hit_rate() const {
    return accesses ? static_cast<double>(hits) / static_cast<double>(accesses) : 0.0;
  }
};

class Replay final {
 public:
  // `store` and `ns` (one full group of one part) are borrowed.
  Replay(Store& store, const Namespace& ns, const ReplayOptions& options);
  ~Replay();

  // One request, to its end. Not ok when the store failed; a miss or kBusy is not a failure.
  Status Submit(const Request& request);
  const ReplayReport& report() const { return report_; }

 private:
  Status ReadHits(std::uint32_t blocks);
  Status WriteMissing(std::uint32_t from);

  Store& store_;
  const Namespace& ns_;
  const ReplayOptions options_;
  ReplayReport report_;
  std::vector<BlockKey> chain_;
  std::vector<std::byte> buffer_;
  Staging staging_;
};

// The namespace that a replay of this block size uses.
NamespaceSpec ReplayNamespace(std::uint64_t block_bytes);

// All of `requests`.
Status ReplayAll(RequestSource& requests, Replay& replay);

}  // namespace cistern
