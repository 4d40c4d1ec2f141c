// SPDX-License-Identifier: Apache-2.0
// The loop's simulated body: time moves only when nothing else is left to do, files are those of a
// SimulatedDisk, and operations take a time, and so end in an order, that the seed decides, or the disk's
// time hook (io/simulated_speed.h). A run with a seed replays exactly as long as only this thread takes part.
//
// Watches take real descriptors (eventfds, socket pairs), which the same thread signals, so the code under
// test is the product's. When nothing is left that could ever happen, a turn waits for another thread to
// post, as a real loop would; RunUntilIdle returns instead.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "io/epoll_set.h"
#include "io/loop.h"
#include "io/simulated_disk.h"

namespace cistern::io {

// What a killed process left in the kernel. It may still reach the disk, and memory that outlived the
// process, piece by piece and in any order, until it is empty. Dropped earlier, the rest never lands. Of no
// use after a crash of the disk.
class LateIo {
 public:
  LateIo() = default;
  LateIo(LateIo&&) = default;
  LateIo& operator=(LateIo&&) = default;
  bool empty() const { return operations_.empty(); }
  std::size_t size() const { return operations_.size(); }
  // What the kernel had not begun when the process went never happens: some, by chance.
  void CancelSome(Random& random);
  // One operation or more, by chance.
  void LandSome(Random& random);
  void LandAll();
  // Those of files whose path begins so, in the order of their submission.
  void LandAll(std::string_view path_prefix);

 private:
  friend class SimulatedLoop;
  struct Operation {
    IoRequest request;  // its pieces are `pieces`
    std::vector<iovec> pieces;
    std::vector<std::vector<std::byte>> own;  // memory in place of what went with the process
    SimulatedDisk::InodePtr inode;
    Fault fault;
    std::uint64_t writes;
  };
  explicit LateIo(SimulatedDisk& disk) : disk_(&disk) {}
  void Add(const IoRequest& request, const std::function<bool(const void*, std::size_t)>& outlives,
           SimulatedDisk::InodePtr inode, const Fault& fault, std::uint64_t writes);
  void Land(std::size_t which);

  SimulatedDisk* disk_ = nullptr;
  std::vector<Operation> operations_;
  std::vector<std::shared_ptr<int>> locks_;
};

class SimulatedLoop final : public Loop {
 public:
  // Clock and disk are borrowed and outlive it, as time and disks outlive a process. Of the options only
  // max_io has a meaning. Fails only for want of descriptors.
  static Result<std::unique_ptr<SimulatedLoop>> Make(SimulatedClock& clock, SimulatedDisk& disk,
                                                     std::uint64_t seed, const LoopOptions& options = {});
  ~SimulatedLoop() override;

  std::string_view name() const override { return "simulated"; }
  Status HoldLock(int fd) override;
  Status Rename(const std::string& from, const std::string& to) override { return disk_.Rename(from, to); }
  Status Remove(const std::string& path) override { return disk_.Remove(path); }

  // When it has something to do, at the latest now where it has already; Never: only if something comes. For
  // who turns several on one clock.
  Instant next() const;

  // Turns until nothing is left to do: no work, no timer, no operation, no readiness. Time has moved to
  // the last of what happened.
  void RunUntilIdle();

  // kill -9 with power loss: operations in flight never end, their tasks wait for ever and can be dropped;
  // writes in flight and unsynced are kept, lost or torn by chance. The loop may then only be destroyed.
  void Crash();

  // kill -9 without power loss: what was written is there, and operations in flight, whose tasks can be
  // dropped, may still land. A write's bytes in memory that does not outlive the process are copied now, else
  // read when it lands; a read lands only in memory that outlives it. Locks taken by Lock are free once the
  // result is empty. The loop may then only be destroyed.
  LateIo Kill(const std::function<bool(const void* data, std::size_t bytes)>& outlives);

 private:
  struct InFlight {
    Instant when;
    std::uint64_t order;
    IoOp* op;
    SimulatedDisk::InodePtr inode;
    Fault fault;
    std::uint64_t writes;   // of a sync: the writes that it makes durable
    std::uint64_t unhangs;  // of one that hangs: those so far
    friend bool operator>(const InFlight& a, const InFlight& b) {
      return a.when != b.when ? a.when > b.when : a.order > b.order;
    }
  };

  SimulatedLoop(SimulatedClock& clock, SimulatedDisk& disk, std::uint64_t seed, const LoopOptions& options,
                Fd wake, EpollSet set);

  void Submit(IoOp& op) override;
  bool Harvest() override;
  void Wait(Instant until) override;
  Result<int> OpenFd(const std::string& path, OpenMode mode) override;
  void CloseFd(int fd) override;
  Result<std::uint64_t> SizeOf(int fd, const std::string& path) override;
  bool IsNamed(int fd) override;
  Result<DirectLimits> DirectOf(int fd, const std::string& path) override;
  Status LockFd(int fd, const std::string& path) override;
  Status PreallocateFd(int fd, const std::string& path, std::uint64_t size_bytes) override;
  Status StartWatch(WatchState& watch) override;
  void EndWatch(WatchState& watch) override;

  void Queue(InFlight pending);
  // What hangs no more is queued; whether there was any.
  bool TakeUnhung();
  // All operations, in order of submission.
  std::vector<InFlight> TakeInFlight();
  bool MoveTime(Instant until);

  SimulatedClock& clock_;
  SimulatedDisk& disk_;
  Random random_;
  EpollSet set_;
  struct Opened {
    SimulatedDisk::InodePtr inode;
    std::shared_ptr<int> lock;  // held if not null
  };
  std::map<int, Opened> files_;
  int next_fd_;
  std::vector<InFlight> pending_;  // a heap, the next to end first
  std::vector<InFlight> hung_;
  std::uint64_t order_ = 0;
  std::vector<Fd> locks_;
  std::uint32_t watched_ =
      0;  // descriptors other than the wake-up: without any there is nothing to ask the kernel
};

}  // namespace cistern::io
