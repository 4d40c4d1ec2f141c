// SPDX-License-Identifier: Apache-2.0
// What a device can do, by fio: the limit of the flash rows. fio reads the tier's own file, never writes it;
// for writes it has a file of its own beside it, written through once before.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cistern/status.h"

namespace cistern {

struct FioJob {
  std::string file;
  bool write = false;
  bool random = true;  // each block once, in random order; else one after the other
  std::uint64_t block_bytes = 1u << 20;
  std::uint32_t depth = 32;
  std::uint64_t bytes = 512u << 20;  // of transfers
  std::uint64_t file_bytes = 0;      // of the file, from its start
  std::string engine = "io_uring";
};

struct FioResult {
  double bytes_per_s = 0;
  double p50_us = 0;
  double p99_us = 0;
};

// Whether there is a fio to ask. kMiss says how to get one.
Status FindFio();
Result<FioResult> RunFio(const FioJob& job);
// The arguments, as a person would give them.
std::vector<std::string> FioCommand(const FioJob& job);

}  // namespace cistern
