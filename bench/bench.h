// SPDX-License-Identifier: Apache-2.0
// The measurements behind `cistern bench`. Each row is a ratio to a limit that was measured in the same run,
// interleaved with it, over a working set larger than the last-level cache. Nothing here asserts a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cistern/status.h"

namespace cistern {

struct BenchRow {
  std::string name;        // "get_copy_2MiB_door"
  double value = 0;        // median over rounds, in `unit`
  std::string unit;        // GB/s (1e9 bytes), us, s, %
  std::string limit;       // what it is measured against: "memcpy", "futex round trip"
  double limit_value = 0;  // in `unit`, of the same rounds; 0: there is none
  double ratio = 0;        // median over rounds of value / limit_value of that round
  double ratio_low = 0;    // its spread: smallest and largest round
  double ratio_high = 0;
  double p50_us = 0;  // of single calls, over all rounds
  double p99_us = 0;
  double limit_p50_us = 0;
  double limit_p99_us = 0;
  std::string destination;  // of a copy: what it is copied to, for ours and the limit's
};

struct BenchOptions {
  std::uint64_t rounds = 9;
  std::uint64_t working_set_bytes = 1u << 30;
  std::uint64_t million = 1'000'000;  // blocks of the match and restart rows
  std::string copy;    // the one copy kernel of all rows; empty: the fastest, and the copy rows have each
  std::string daemon;  // path of cisternd
  std::string memory_dir = "/dev/shm";
  std::string flash_dir;  // for the flash rows; empty: they are left out
  // Called with what is being measured, and with each row as soon as it is there.
  std::function<void(const std::string& text)> progress;
  std::function<void(const BenchRow& row)> row;
  // Bytes that differed from what their key must hold, over all rows so far; must stay 0.
  std::uint64_t bytes_verified = 0;
  std::uint64_t wrong_bytes = 0;
};

// In the order of the report. `name` is what --only selects by.
struct BenchGroup {
  std::string name;
  std::string about;
  Status (*run)(BenchOptions& options);
};
std::span<const BenchGroup> BenchGroups();

Status BenchCopies(BenchOptions& options);
Status BenchGets(BenchOptions& options);
Status BenchPuts(BenchOptions& options);
Status BenchViews(BenchOptions& options);
Status BenchMatchAndRestart(BenchOptions& options);
Status BenchLeases(BenchOptions& options);
Status BenchStrangers(BenchOptions& options);
Status BenchPages(BenchOptions& options);
Status BenchFlashReads(BenchOptions& options);
Status BenchFlashWorth(BenchOptions& options);
Status BenchFlashWrites(BenchOptions& options);
Status BenchFlashPuts(BenchOptions& options);
Status BenchFlashRestart(BenchOptions& options);
Status BenchNet(BenchOptions& options);
Status BenchCellReads(BenchOptions& options);
Status BenchCellMatches(BenchOptions& options);
Status BenchCellFlash(BenchOptions& options);
Status BenchCellLoad(BenchOptions& options);
Status BenchCellIndex(BenchOptions& options);
Status BenchCellSnapshot(BenchOptions& options);
Status BenchCellLoss(BenchOptions& options);
Status BenchCellDrops(BenchOptions& options);
Status BenchHttp(BenchOptions& options);
Status BenchIndex(BenchOptions& options);
Status BenchTraces(BenchOptions& options);

}  // namespace cistern
