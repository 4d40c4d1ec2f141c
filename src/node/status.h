// SPDX-License-Identifier: Apache-2.0
// The node's state as one JSON object. docs/status.md names the fields; scripts rely on them.
#pragma once

#include <string>
#include <string_view>

#include "flash/flash_tier.h"
#include "memory/slots.h"
#include "memory/staging.h"
#include "server/server.h"
#include "store/block_store.h"

namespace cistern::node {

struct NodeFacts {
  std::string_view tenant;
  std::string_view directory;
  std::string_view socket;
  std::string_view loop;  // io_uring or epoll
  std::string_view copy;  // the kernel that moves bytes
  std::uint64_t pid = 0;
  std::uint64_t boot_count = 0;
  std::uint64_t memory_bytes = 0;  // of the arena's slots
  std::int64_t uptime_us = 0;
  std::int64_t warm_us = 0;  // from start until what was there was found again
  std::uint64_t loop_sleeps = 0;
  std::string_view journal;  // the directory in which it lies
  std::uint64_t budget_bytes_a_day = 0;
};

// `tier` is null where memory is all.
std::string StatusJson(const NodeFacts& facts, const store::BlockStore::Occupancy& occupancy,
                       const catalog::StoreCounters& counters, const memory::Slots::Counts& slots,
                       const server::ServerCounters& server, const flash::FlashTier* tier);

}  // namespace cistern::node
