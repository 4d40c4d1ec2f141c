// SPDX-License-Identifier: Apache-2.0
// A tenant's directory of shared memory: `<memory_dir>/<tenant>/` with the files `arena`, `index` and `lock`.
// The files outlive the node and keep their inode, so that a restarted node is warm and the mappings of
// running clients stay right. They are whole from the start: never sparse, never punched, never truncated.
//
// An arena keeps the size and alignment with which it was made. A node that asks for another gets the one
// that is there, with a note that says so and the way out: `cistern forget`, which loses the cache.
//
// These calls block; they are for start and end.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "arena/geometry.h"
#include "arena/index.h"
#include "base/clock.h"
#include "base/mapping_guard.h"
#include "cistern/status.h"
#include "io/files.h"
#include "memory/directory_lock.h"

namespace cistern::memory {

struct ArenaOptions {
  std::string memory_dir;                 // made if its parent exists
  std::string tenant = "default";         // 1 to 63 of a-z 0-9 - _ .
  std::uint64_t memory_bytes = 0;         // of the arena file; rounded down to whole chunks of 32 MiB
  std::uint32_t alignment = 4096;         // 512 or 4096
  std::int64_t lock_wait_us = 2'000'000;  // R8: how long a dead node's last I/O is waited for

  Status Validate() const;
};

class ArenaFile final {
 public:
  // Takes the lock, then opens or makes the files. kBusy: held by a living node (at once, with its pid), or
  // by what a dead one left behind (after lock_wait_us), or not enough memory (needed and available).
  // kMismatch: another format version.
  static Result<ArenaFile> Open(const ArenaOptions& options, const Clock& clock);

  ArenaFile(ArenaFile&&) noexcept;
  ArenaFile& operator=(ArenaFile&&) noexcept;
  ~ArenaFile();  // gives the lock back

  arena::ArenaSpace arena() const;
  arena::IndexSpace index() const;
  // For sessions: opened O_RDONLY, so no client can make them writable (R12).
  int arena_fd() const { return arena_read_fd_.get(); }
  int index_fd() const { return index_read_fd_.get(); }
  // To be registered with every loop that does I/O into this arena (R8).
  int lock_fd() const { return lock_.fd(); }

  // Whether there was nothing to recover.
  bool fresh() const { return fresh_; }
  std::uint64_t boot_count() const { return boot_count_; }
  // What an operator should know about this start, one sentence each.
  const std::vector<std::string>& notes() const { return notes_; }
  const std::string& directory() const { return directory_; }

  // Whether another process has cut the arena or the index short, or memory of it failed: from then on
  // nothing in them counts. Known once this process has touched what is missing, which became zeros.
  bool lost() const { return arena_guard_.lost() || index_guard_.lost(); }

  // Of a start that failed: what it made goes again; what was there before stays.
  void GiveBack();
  // The header says that a node serves, or that it ended in order.
  void SetAlive(bool alive);
  // Removes the files of an arena that was lost, so that the next start makes others.
  void Discard();

 private:
  ArenaFile() = default;
  Status OpenArena(const ArenaOptions& options);
  Status OpenIndex();
  Status MakeArena(const ArenaOptions& options, const std::string& path);

  std::string directory_;
  DirectoryLock lock_;
  Fd arena_read_fd_, index_read_fd_;
  Mapping arena_map_, index_map_;
  MappingGuard arena_guard_, index_guard_;
  arena::Geometry geometry_;
  bool fresh_ = false;
  std::uint64_t boot_count_ = 0;
  std::vector<std::string> notes_;
};

// Removes the files of a node that is gone and returns the bytes that this frees once the last client has
// unmapped them. Running clients of it find nothing any more. kBusy while a node holds the directory; kMiss
// where there is none.
Result<std::uint64_t> ForgetArena(const std::string& memory_dir, const std::string& tenant,
                                  const Clock& clock);

// Touches an arena's memory in the order in which chunks are carved and moves it into huge pages, on a thread
// of its own, so that no copy into it pays for first touch, and a transfer of a device is of a few long
// pieces. Ends with the object.
class FaultIn final {
 public:
  explicit FaultIn(arena::ArenaSpace arena);
  ~FaultIn();
  std::uint32_t headers_done() const { return done_.load(std::memory_order_relaxed); }

 private:
  void Work();
  arena::ArenaSpace arena_;
  std::atomic<std::uint32_t> done_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace cistern::memory
