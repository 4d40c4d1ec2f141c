// SPDX-License-Identifier: Apache-2.0
// ./dev run --cell N: an etcd and nodes of a cell, clients at each with a chat workload of real bytes; half
// way one node is killed and started again, and one is drained. Every byte read is compared.
#pragma once

#include <cstdint>
#include <string>

#include "base/interrupt.h"
#include "cistern/status.h"

namespace cistern {

inline constexpr std::uint64_t kMaxCellNodes = 8;

struct CellDemoOptions {
  std::uint64_t nodes = 3;    // 2 to kMaxCellNodes
  std::uint64_t clients = 4;  // of all nodes together, 16 at most
  std::string workload;       // as workload::OpenRequests has it
  std::uint64_t block_bytes = 512u << 10;
  std::uint32_t batch_blocks = 4;                   // of a call, so that all clients may be at one node
  std::uint64_t memory_bytes = 0, flash_bytes = 0;  // of each node
  std::string flash_dir;                            // as --flash-dir
  std::string daemon;
};

// Shows it, and how many bytes were wrong. Nothing is left behind, after an interrupt neither: it ends with
// kGone then.
Result<std::uint64_t> RunCellDemo(const CellDemoOptions& options, Interrupt& interrupt);

}  // namespace cistern
