// SPDX-License-Identifier: Apache-2.0
#include "io/simulated_loop.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <limits>

#include "base/format.h"

namespace cistern {
namespace {

// Above any real descriptor, so that one taken for the other is an error and not a wrong file.
constexpr int kFirstFd = 1 << 24;
// What a device takes for an operation, from a fast flash read to a slow sync.
constexpr std::uint64_t kLeastNs = 5'000;
constexpr std::uint64_t kMostNs = 200'000;

}  // namespace

Result<std::unique_ptr<SimulatedLoop>> SimulatedLoop::Make(SimulatedClock& clock, SimulatedDisk& disk,
                                                           std::uint64_t seed, const LoopOptions& options) {
  Status valid = options.Validate();
  if (!valid.ok()) return Error(std::move(valid));
  Result<Fd> wake = MakeEventFd();
  if (!wake) return Error(std::move(wake.error()));
  Result<EpollSet> set = EpollSet::Make(wake->get());
  if (!set) return Error(std::move(set.error()));
  LoopOptions simulated = options;
  simulated.poll_us = 0;  // time stands still while it polls
  return std::unique_ptr<SimulatedLoop>(
      new SimulatedLoop(clock, disk, seed, simulated, std::move(*wake), std::move(*set)));
}

SimulatedLoop::SimulatedLoop(SimulatedClock& clock, SimulatedDisk& disk, std::uint64_t seed,
                             const LoopOptions& options, Fd wake, EpollSet set)
    : Loop(clock, options, std::move(wake)),
      clock_(clock),
      disk_(disk),
      random_(seed),
      set_(std::move(set)),
      next_fd_(kFirstFd) {}

SimulatedLoop::~SimulatedLoop() = default;

Status SimulatedLoop::HoldLock(int fd) {
  if (locks_.size() == kMaxLocks) {
    return Status(Code::kBusy, Text("locks: ", kMaxLocks, " are held and that is the limit"));
  }
  Fd held(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!held.valid()) return Status(Code::kIoError, Text("hold lock: ", ErrnoText(errno)));
  locks_.push_back(std::move(held));
  return Status();
}

void SimulatedLoop::Submit(IoOp& op) {
  auto file = files_.find(op.request().fd);
  CISTERN_ASSERT(file != files_.end());
  Pending pending{clock_.Now(), order_++, &op, file->second, disk_.AskFault(op.request(), *file->second), 0};
  pending.writes = SimulatedDisk::WritesSoFar(*pending.inode);
  pending.when = pending.when.PlusNs(static_cast<std::int64_t>(random_.Between(kLeastNs, kMostNs)));
  if (pending.fault.kind == FaultKind::kDelay) {
    pending.when = pending.when.PlusUs(static_cast<std::int64_t>(pending.fault.value));
  }
  pending_.push_back(std::move(pending));
  std::push_heap(pending_.begin(), pending_.end(), std::greater());
}

std::int64_t SimulatedLoop::Carry(const Pending& pending) {
  const IoRequest& request = pending.op->request();
  bool failed = pending.fault.kind == FaultKind::kIoError;
  if (request.kind == IoRequest::Kind::kSync) {
    disk_.Sync(*pending.inode, pending.writes, failed);
    return failed ? -EIO : 0;
  }
  if (failed) return -EIO;
  std::uint64_t size = request.size;
  if (pending.fault.kind == FaultKind::kShort) size = std::min(size, pending.fault.value);
  return request.kind == IoRequest::Kind::kRead ? disk_.Read(*pending.inode, request, size)
                                                : disk_.Write(*pending.inode, request, size);
}

bool SimulatedLoop::Harvest() {
  bool any = false;
  while (!pending_.empty() && pending_.front().when <= clock_.Now()) {
    std::pop_heap(pending_.begin(), pending_.end(), std::greater());
    Pending pending = std::move(pending_.back());
    pending_.pop_back();
    Ended(*pending.op, Carry(pending));
    any = true;
  }
  if (watched_ == 0) return any;
  // A wake alone is nothing to do, else RunUntilIdle would depend on when another thread signalled.
  set_.Poll();
  for (EpollSet::Ready ready = set_.Next(); ready.watch != nullptr; ready = set_.Next()) {
    Called(*ready.watch, ready.events);
    any = true;
  }
  return any;
}

bool SimulatedLoop::MoveTime(Instant until) {
  Instant next = pending_.empty() ? until : std::min(until, pending_.front().when);
  if (next.IsNever()) return false;
  clock_.AdvanceTo(next);
  return true;
}

void SimulatedLoop::Wait(Instant until) {
  if (MoveTime(until)) return;
  set_.Wait(std::numeric_limits<std::int64_t>::max());
  if (watched_ == 0) set_.Poll();  // takes the wake-up, which Harvest leaves
}

void SimulatedLoop::RunUntilIdle() {
  while (PollOnce() || has_remote() || MoveTime(executor().next_timer())) {
  }
}

void SimulatedLoop::Crash() {
  // In order of submission, because the heap's own order is not told to anyone.
  std::sort(pending_.begin(), pending_.end(),
            [](const Pending& a, const Pending& b) { return a.order < b.order; });
  for (Pending& pending : pending_) {
    if (pending.op->request().kind == IoRequest::Kind::kWrite) {
      disk_.LeaveInDoubt(*pending.inode, pending.op->request());
    }
    Abandon(*pending.op);
  }
  pending_.clear();
  disk_.Crash();
}

Result<int> SimulatedLoop::OpenFd(const std::string& path, OpenMode mode) {
  Result<SimulatedDisk::InodePtr> inode = disk_.Open(path, mode);
  if (!inode) return Error(std::move(inode.error()));
  files_[next_fd_] = std::move(*inode);
  return next_fd_++;
}

void SimulatedLoop::CloseFd(int fd) { files_.erase(fd); }

Result<std::uint64_t> SimulatedLoop::SizeOf(int fd, const std::string&) {
  return files_.at(fd)->bytes.size();
}

Status SimulatedLoop::PreallocateFd(int fd, const std::string&, std::uint64_t size_bytes) {
  SimulatedDisk::Inode& inode = *files_.at(fd);
  if (inode.bytes.size() < size_bytes) inode.bytes.resize(size_bytes);
  if (inode.durable.size() < size_bytes) inode.durable.resize(size_bytes);
  return Status();
}

Status SimulatedLoop::StartWatch(WatchState& watch) {
  Status status = set_.Add(watch);
  if (status.ok()) ++watched_;
  return status;
}

void SimulatedLoop::EndWatch(WatchState& watch) {
  --watched_;
  set_.Remove(watch);
  Forget(watch);
}

}  // namespace cistern
