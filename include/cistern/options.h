// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/policy.h"

namespace cistern {

// A random token from the node that stands for one engine. Its other processes present it at connect to use
// the owner's leases and to publish what they wrote. All zero: become an owner.
using OwnerToken = std::array<std::byte, 16>;

// Flash below memory: a directory of a file system that has O_DIRECT, or a whole block device. In a directory
// the node makes `<path>/<tenant>/flash`, real from the start; of a block device nothing else is left.
struct FlashVolume {
  std::string path;
  std::uint64_t size_bytes = 0;  // a directory needs one; of a block device 0: all of it
};

// A node inside this process. Its memory lies in `memory_dir` and outlives the process: the next Open of the
// same directory is warm. Validated at Open; a wrong field is kInvalid and named. A child that this process
// forks and that runs no other program has its directories' locks too: where this process is killed, the next
// Open is kBusy, and names the child, until that has ended.
struct OpenOptions {
  std::uint64_t memory_bytes = 0;  // of arenas; 0: a quarter of the cgroup's or the host's, or what fits
  std::string memory_dir;          // empty: /dev/shm/cistern-UID; created if its parent exists
  std::string tenant = "default";
  std::uint32_t alignment = 4096;  // of records: 512 or 4096; fixed when the arena is created
  std::uint64_t max_blocks = 0;    // blocks in memory at most; 0: what fits
  EvictionPolicy eviction = EvictionPolicy::kReuse;
  // For replays: the milliseconds by which ages of blocks are told, never less than the call before gave;
  // asked by the node's own thread. Empty: time as it passes.
  std::function<std::uint64_t()> eviction_time_ms{};
  std::uint32_t movers = 1;    // threads that move bytes
  std::uint32_t poll_us = 50;  // core and movers poll this long before they sleep
  std::string loop = "auto";   // auto, io_uring, epoll

  // With flash memory is where blocks land and are read from, and flash keeps more of them, through a reboot
  // as well. Striped over the volumes.
  std::vector<FlashVolume> flash;
  // Where the journal lies, in `<journal_dir>/<tenant>`: what must not come back and must not be forgotten.
  // Flash is believed only together with it. Empty: the first directory of `flash`, without flash memory_dir;
  // where all flash is block devices it must be named.
  std::string journal_dir;
  WriteRule flash_write;  // this and flash_admit: where a namespace does not say
  Admission flash_admit = Admission::kWorth;
  Promotion flash_promote = Promotion::kWorth;
  std::uint64_t flash_budget_bytes_a_day = 0;        // endurance: what is written a day; 0: without a limit
  std::uint64_t flash_read_ahead_bytes = 16u << 20;  // of a chain that was matched; 0: none
  bool discard_foreign = false;                      // format volumes that hold something else
  std::uint64_t scrub_bytes_per_s = 8u << 20;        // read again and checked in the background; 0: never
};

// A node's way out of service (Store::Drain).
struct DrainOptions {
  bool on = true;  // false: in service again, and the others are not looked at
  // The host's memory goes too, so that what memory alone has is written to flash. False: memory's files
  // outlive the node, as in an upgrade of it.
  bool memory_goes = true;
  // The node does not come back, and its flash is of no use to it: in a cell, the other nodes are offered
  // what lies there alone too, behind what memory has. Implies memory_goes.
  bool flash_goes = false;
  bool then_stop = false;  // the node ends by itself when it has drained, or when its time has passed
  std::int64_t within_us = 600'000'000;  // that all of it may take, an hour at most
};

struct ConnectOptions {
  // Empty: cistern.sock in /run (root), /run/user/UID or /tmp/cistern-UID, where a node of this user listens.
  std::string socket;
  std::string tenant = "default";
  OwnerToken owner{};
  std::uint64_t staging_bytes = 0;       // at connect, more on demand; 0: 1 MiB
  std::int64_t deadline_us = 5'000'000;  // of the handshake
  // Who may listen there beside this user and root: a user's number, or "any", which is for a socket in a
  // directory that only the node's operator can write, as where it is mounted into a container.
  std::string node_user{};
  // What the engine that this process belongs to is called where people look, and where one engine's reads or
  // writes are switched off (Store::SwitchEngineReads): 1 to 64 visible ASCII characters. All processes of an
  // engine say the same, and it again after a restart. It shares nothing and proves nothing. Empty: none.
  std::string engine_name{};
};

// No call without a deadline, in microseconds from submit. The default serves people and batch jobs; an
// engine gives its own.
inline constexpr std::int64_t kDefaultDeadlineUs = 10'000'000;
inline constexpr std::int64_t kNoWorthLimit = INT64_MAX;
inline constexpr std::int64_t kMaxLeaseUs = 60'000'000;

struct MatchOptions {
  std::int64_t hold_us = 0;  // over 0: what matched is leased that long, at most kMaxLeaseUs
  std::int64_t deadline_us = kDefaultDeadlineUs;
  // Of the prompt whose chain this is, where it is known: what leaves memory is chosen better with it. Taken
  // in with the first write of what did not match, or the touch of the whole chain where all did.
  PromptHints hints;
  bool partial = false;  // the last block is not full: the next turn of the session has another one there
};

struct AcquireOptions {
  std::int64_t lease_us = 1'000'000;
  std::int64_t deadline_us = kDefaultDeadlineUs;
  std::int64_t worth_us = kNoWorthLimit;  // as ReadOptions
};

struct ReadOptions {
  std::int64_t deadline_us = kDefaultDeadlineUs;
  // From submit: what lies below memory and would be ready later, by an eighth as estimates err, is not
  // fetched but kTooLate; what is fetched and is not ready by then is too. 0: only what is in memory.
  std::int64_t worth_us = kNoWorthLimit;
  bool touch = true;  // count as a use for eviction
};

struct WriteOptions {
  std::uint32_t ttl_s = 0;          // a hard limit from the put; 0: none
  bool held = false;                // stays pending until Publish or Abandon by the same owner
  std::string_view conversation{};  // whose blocks these are, 1 to 256 bytes; empty: nobody's
  std::int64_t deadline_us = kDefaultDeadlineUs;
};

}  // namespace cistern
