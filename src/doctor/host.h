// SPDX-License-Identifier: Apache-2.0
// Facts of a host that decide how well a node does there, read once. Nothing is judged here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory/host_memory.h"
#include "memory/memory_nodes.h"
#include "node/flash_places.h"
#include "node/options.h"

namespace cistern::doctor {

struct FileSystemFacts {
  enum class Kind : std::uint8_t { kTmpfs, kHugetlbfs, kOther };
  std::string path;
  Kind kind = Kind::kOther;
  std::uint64_t bytes = 0;       // 0: it has no size
  std::uint64_t free_bytes = 0;  // for this user
  std::string refused;           // what a start says of it that refuses it; empty: none does
};

struct VolumeFacts {
  std::string path;
  std::string direct_error;        // why it cannot be opened past the page cache; empty: it can
  std::string refused;             // what a start says of it that refuses it; empty: none does
  std::uint64_t device_bytes = 0;  // of a block device that can be opened
  bool absent = false;             // the start does without it
};

struct ArenaFacts {
  std::string directory;  // of the tenant
  std::uint64_t bytes = 0;
  bool in_use = false;  // a node holds its lock
};

struct MappedArena {  // discarded, and kept in memory by a process that still maps it
  std::uint64_t pid = 0;
  std::uint64_t bytes = 0;
};

struct HostFacts {
  std::string kernel;  // release, as uname has it
  memory::HostMemory memory;
  std::optional<std::uint64_t> memlock_bytes;  // none: no limit
  bool rdma = false;                           // there is a device that registers memory
  FileSystemFacts memory_dir;
  std::string shmem_huge;   // transparent_hugepage/shmem_enabled; empty: the kernel has none
  std::string uring_error;  // why io_uring does not work for this process; empty: it does
  std::vector<VolumeFacts> flash;
  std::vector<node::Lost> lost_at_reboot;  // of flash and its journal
  std::vector<memory::MemoryNode> numa;
  std::vector<std::string> kernels;  // copy kernels that this processor runs, fastest first
  std::uint32_t uid = 0;
  bool removes_ipc = false;  // logind removes what an ordinary user has in /dev/shm after its last logout
  std::uint32_t processes_of_uid = 0;            // without this one and the node
  std::vector<ArenaFacts> arenas;                // below memory_dir and in /dev/shm
  std::vector<MappedArena> mapped;               // by processes of this user
  std::int64_t unix_seconds = 0;                 // by its clock
  std::string clock_source;                      // empty: not said
  std::optional<bool> clock_synchronised;        // none: the kernel does not say
  std::optional<std::uint64_t> node_huge_bytes;  // of shared memory that the node maps in huge pages
};

struct LookAt {
  std::string memory_dir;
  std::vector<std::string> flash;  // paths
  std::string journal;             // the directory of a running node's; empty: where a start would have it
  // Resolved settings of a node that is to start, whose start is asked what it would refuse of these; null:
  // none is.
  const node::NodeOptions* starts = nullptr;
  std::uint64_t node_pid = 0;  // its limits and its cgroup are meant; 0, or not to be seen: this process's
  std::string root;            // stands before /proc, /sys, /etc and the like: tests have their own
};

// Whose node has its memory there; where nobody's does, this process's user.
std::uint32_t OwnerOf(const std::string& memory_dir, const std::string& tenant);

// What cannot be read is left as it is above; kIoError where /proc says nothing at all.
Result<HostFacts> ReadHostFacts(const LookAt& at);

}  // namespace cistern::doctor
