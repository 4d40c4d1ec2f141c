// SPDX-License-Identifier: Apache-2.0
// A tenant's directory of shared memory: `<memory_dir>/<tenant>/` with the files `arena`, `index` and `lock`.
// The files outlive the node and keep their inode, so that a restarted node is warm and the mappings of
// running clients stay right. What the arena serves is whole: never sparse, never punched, and no file is
// truncated. Behind that an arena has room to grow into: addresses, and no memory
// (docs/decisions/0021-memory-resized.md). A start takes a first piece of memory, and the rest behind its
// back (0032-start-with-a-piece.md).
//
// An arena keeps the alignment and the room with which it was made. A node that asks for another alignment,
// or for more than there is room for, gets what is there, with a note that says so and the way out: `cistern
// forget`, which loses the cache. One that asks for less has what was there, until it shrinks while it runs.
//
// These calls block; they are for start and end, and those of ArenaBacking for a mover of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "arena/geometry.h"
#include "arena/index.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/mapping_guard.h"
#include "cistern/status.h"
#include "io/files.h"
#include "memory/arena_backing.h"
#include "memory/directory_lock.h"
#include "memory/huge_page_process.h"
#include "memory/memory_nodes.h"
#include "memory/node_plan.h"

namespace cistern::memory {

// Room of a new arena that a node makes, times its memory: as much as its index, which is made for slots of
// the smallest size, serves at the same load with slots of 64 KiB (R3).
inline constexpr std::uint64_t kRoomShare = 8;

// Of slots, that a node has when it begins to serve: a fraction of a second on any host, and hundreds of the
// largest blocks that engines usually have.
inline constexpr std::uint64_t kFirstBytes = 256u << 20;

struct ArenaOptions {
  std::string memory_dir;          // made if its parent exists
  std::string tenant = "default";  // 1 to 63 of a-z 0-9 - _ .
  std::uint64_t memory_bytes = 0;  // of the arena; rounded down to whole chunks of 32 MiB
  std::uint64_t room_bytes = 0;    // of a new one, that memory_bytes may grow to; less: memory_bytes
  std::uint64_t first_bytes = 0;   // of slots that Open takes at least; 0: all that was asked for
  std::uint32_t alignment = 4096;  // 512 or 4096
  std::int64_t lock_wait_us = kLockWaitUs;
  // Path of a program that moves the arena into huge pages as a process of its own (huge_page_process.h).
  // Empty: this process does, whose other threads then wait where they map memory.
  std::string huge_page_program;
  // Memory nodes that the arena is to be divided among (ArenaNodes, node_plan.h); less than two: it lies
  // where the system puts it.
  std::vector<MemoryNode> nodes{};

  Status Validate() const;
};

class ArenaFile final : public ArenaBacking {
 public:
  // Takes the lock, then opens or makes the files. kBusy: held by a living node (at once, with its pid), or
  // by what a dead one left behind (after lock_wait_us), or not enough memory for all that was asked for
  // (needed and available), also where less is taken at first.
  // kMismatch: another format version.
  static Result<ArenaFile> Open(const ArenaOptions& options, const Clock& clock);
  // What Open would refuse of the directories, of an arena that is there and of the file of one that is not.
  // Nothing is made; whether a node holds it, and what memory is available by now, is not asked. Root's look
  // leaves open whose it all is.
  static Status Check(const ArenaOptions& options);

  ArenaFile(ArenaFile&&) noexcept;
  ArenaFile& operator=(ArenaFile&&) noexcept;
  ~ArenaFile() override;  // gives the lock back

  arena::ArenaSpace arena() const;
  arena::IndexSpace index() const;
  // For sessions: opened O_RDONLY, so no client can make them writable (R12).
  int arena_fd() const { return arena_read_fd_.get(); }
  int index_fd() const { return index_read_fd_.get(); }
  // To be registered with every loop that does I/O into this arena (R8).
  int lock_fd() const { return lock_.fd(); }

  // How it is divided among memory nodes, which are by index in it.
  const NodePlan& plan() const { return plan_; }
  const std::vector<MemoryNode>& nodes() const { return nodes_; }

  // Headers that were asked for, as far as there is room.
  std::uint32_t asked_headers() const { return asked_headers_; }
  // Headers that an arena of so many bytes has. kInvalid: fewer than one, or more than there is room for; the
  // message names the limit and the way out.
  Result<std::uint32_t> HeadersOf(std::uint64_t memory_bytes) const;
  // kBusy, with the numbers: the host has not the memory for so many headers, of which it serves `served`.
  Status CheckGrowth(std::uint32_t served, std::uint32_t headers) const;

  Status Reserve(std::uint32_t header) override;
  // Into huge pages.
  void Improve(std::uint32_t header) override { MakePresent(header); }
  void Release(const HeaderRange& range) override;

  // The header and its slots, which have memory, are present in this process, and the slots in huge pages as
  // far as the system gives them. Stops early where `stop` says so. From any thread.
  void MakePresent(std::uint32_t header, const std::atomic<bool>* stop = nullptr) const;
  // The same, and nothing is moved.
  void Touch(std::uint32_t header, const std::atomic<bool>* stop = nullptr) const;
  // Null: there is none, and this process moves pages, or nobody does (`notes`).
  HugePageProcess* huge_page_process() const { return huge_page_process_.get(); }

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
  // Of an arena that is there: what it serves has memory, and nothing else.
  Status MakeWhole(const std::string& path);
  // Of the same: as far as Open takes at once, if the host has all that was asked for.
  Status Grow(const ArenaOptions& options, const std::string& path);
  std::uint32_t served() const;
  // From now on memory of the slots comes from their nodes.
  void Divide(std::byte* base);
  // What lies elsewhere of a header's slots moves to their node.
  void MoveToNode(std::uint32_t header) const;
  void StartHugePages(const std::string& program);

  std::string directory_;
  DirectoryLock lock_;
  Fd arena_fd_;
  Fd arena_read_fd_, index_read_fd_;
  Mapping arena_map_, index_map_;
  MappingGuard arena_guard_, index_guard_;
  arena::Geometry geometry_;
  std::uint64_t index_buckets_ = 0;
  std::uint32_t asked_headers_ = 0;
  NodePlan plan_;
  std::vector<MemoryNode> nodes_;
  bool fresh_ = false;
  bool moves_here_ = true;
  std::unique_ptr<HugePageProcess> huge_page_process_;
  std::uint64_t boot_count_ = 0;
  std::vector<std::string> notes_;
};

// Removes the files of a node that is gone and returns the bytes that this frees once the last client has
// unmapped them. Running clients of it find nothing any more. kBusy while a node holds the directory; kMiss
// where there is none.
Result<std::uint64_t> ForgetArena(const std::string& memory_dir, const std::string& tenant,
                                  const Clock& clock);

// Touches the first `headers` of an arena and their slots in the order in which chunks are carved, and moves
// them into huge pages, on a thread of its own, so that no copy into them pays for first touch, and a
// transfer of a device is of a few long pieces. Where a process moves them, all are touched first, and the
// thread looks after that process. Ends with the object.
class FaultIn final {
 public:
  // `say` is told once, on that thread, how the process ended that nobody told to. Throws std::system_error
  // where the system starts no more threads.
  FaultIn(const ArenaFile& file, std::uint32_t headers, std::function<void(const Status&)> say = nullptr);
  ~FaultIn();
  // Headers that are done, or were left out.
  std::uint32_t headers_done() const { return done_.load(std::memory_order_relaxed); }
  std::uint32_t headers_left() const { return headers_ - headers_done(); }
  // Leaves out headers from this one on; a few megabytes of one may still be touched after the call.
  void EndAt(std::uint32_t headers) { end_.store(headers, std::memory_order_relaxed); }

 private:
  void Work();
  template <class Call>
  void ForEach(Call call) const;

  const ArenaFile& file_;
  const std::uint32_t headers_;
  const std::function<void(const Status&)> say_;
  std::atomic<std::uint32_t> end_;
  std::atomic<std::uint32_t> done_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace cistern::memory
