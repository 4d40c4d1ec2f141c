// SPDX-License-Identifier: Apache-2.0
#include "io/simulated_loop.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/format.h"

namespace cistern::io {
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
  const SimulatedDisk::InodePtr& inode = file->second.inode;
  InFlight pending{.when = clock_.Now(),
                   .order = order_++,
                   .op = &op,
                   .inode = inode,
                   .fault = disk_.AskFault(op.request(), *inode),
                   .writes = SimulatedDisk::WritesSoFar(*inode),
                   .unhangs = disk_.Unhangs(*inode)};
  if (pending.fault.kind == FaultKind::kHang) {
    hung_.push_back(std::move(pending));
  } else {
    Queue(std::move(pending));
  }
}

void SimulatedLoop::Queue(InFlight pending) {
  const Instant now = clock_.Now();
  if (disk_.time_) {
    pending.when = std::max(now, disk_.time_(pending.op->request(), pending.inode->path, now));
  } else {
    pending.when = now.PlusNs(static_cast<std::int64_t>(random_.Between(kLeastNs, kMostNs)));
  }
  if (pending.fault.kind == FaultKind::kDelay) {
    pending.when = pending.when.PlusUs(static_cast<std::int64_t>(pending.fault.value));
  }
  pending_.push_back(std::move(pending));
  std::push_heap(pending_.begin(), pending_.end(), std::greater());
}

bool SimulatedLoop::TakeUnhung() {
  std::vector<InFlight> hung = std::exchange(hung_, {});
  const std::size_t before = hung.size();
  for (InFlight& pending : hung) {
    if (disk_.Unhangs(*pending.inode) == pending.unhangs) {
      hung_.push_back(std::move(pending));
    } else {
      Queue(std::move(pending));
    }
  }
  return hung_.size() < before;
}

bool SimulatedLoop::Harvest() {
  bool any = !hung_.empty() && TakeUnhung();
  while (!pending_.empty() && pending_.front().when <= clock_.Now()) {
    std::pop_heap(pending_.begin(), pending_.end(), std::greater());
    InFlight pending = std::move(pending_.back());
    pending_.pop_back();
    Ended(*pending.op, disk_.Carry(*pending.inode, pending.op->request(), pending.fault, pending.writes));
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

Instant SimulatedLoop::next() const {
  if (executor().has_ready() || has_remote()) return clock_.Now();
  const Instant timer = executor().next_timer();
  return pending_.empty() ? timer : std::min(timer, pending_.front().when);
}

void SimulatedLoop::RunUntilIdle() {
  while (PollOnce() || has_remote() || MoveTime(executor().next_timer())) {
  }
}

// In order of submission, because the heap's own order is not told to anyone.
std::vector<SimulatedLoop::InFlight> SimulatedLoop::TakeInFlight() {
  std::vector<InFlight> taken = std::exchange(pending_, {});
  std::ranges::move(std::exchange(hung_, {}), std::back_inserter(taken));
  std::ranges::sort(taken, {}, &InFlight::order);
  return taken;
}

void SimulatedLoop::Crash() {
  for (InFlight& pending : TakeInFlight()) {
    if (pending.op->request().kind == IoRequest::Kind::kWrite) {
      disk_.LeaveInDoubt(*pending.inode, pending.op->request());
    }
    Abandon(*pending.op);
  }
  for (auto& [fd, opened] : files_) opened.lock.reset();
  disk_.Crash();
}

LateIo SimulatedLoop::Kill(const std::function<bool(const void* data, std::size_t bytes)>& outlives) {
  LateIo late(disk_);
  for (InFlight& pending : TakeInFlight()) {
    late.Add(pending.op->request(), outlives, pending.inode, pending.fault, pending.writes);
    Abandon(*pending.op);
  }
  for (auto& [fd, opened] : files_) {
    std::shared_ptr<int> lock = std::exchange(opened.lock, nullptr);
    if (lock != nullptr && !late.empty()) late.locks_.push_back(std::move(lock));
  }
  return late;
}

void LateIo::Add(const IoRequest& request, const std::function<bool(const void*, std::size_t)>& outlives,
                 SimulatedDisk::InodePtr inode, const Fault& fault, std::uint64_t writes) {
  Operation operation{request, {}, {}, std::move(inode), fault, writes};
  if (request.pieces != nullptr) {
    operation.pieces.assign(request.pieces, request.pieces + request.piece_count);
  } else if (request.size > 0) {
    operation.pieces.push_back({request.data, request.size});
  }
  bool stays = false;
  for (iovec& piece : operation.pieces) {
    if (outlives(piece.iov_base, piece.iov_len)) {
      stays = true;
      continue;
    }
    const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
    operation.own.emplace_back(bytes, bytes + piece.iov_len);
    piece.iov_base = operation.own.back().data();
  }
  // Nobody would see where it lands.
  if (request.kind == IoRequest::Kind::kRead && !stays) return;
  operations_.push_back(std::move(operation));
}

void LateIo::Land(std::size_t which) {
  Operation operation = std::move(operations_[which]);
  operations_.erase(operations_.begin() + static_cast<std::ptrdiff_t>(which));
  operation.request.pieces = operation.pieces.data();
  operation.request.piece_count = static_cast<std::uint32_t>(operation.pieces.size());
  disk_->Carry(*operation.inode, operation.request, operation.fault, operation.writes);
  if (operations_.empty()) locks_.clear();
}

void LateIo::CancelSome(Random& random) {
  std::erase_if(operations_, [&random](const Operation&) { return random.Below(4) == 0; });
  if (operations_.empty()) locks_.clear();
}

void LateIo::LandSome(Random& random) {
  if (empty()) return;
  for (std::uint64_t n = random.Between(1, size()); n > 0; --n) Land(random.Below(size()));
}

void LateIo::LandAll() {
  while (!empty()) Land(0);
}

void LateIo::LandAll(std::string_view path_prefix) {
  for (std::size_t i = 0; i < operations_.size();) {
    if (operations_[i].inode->path.starts_with(path_prefix)) {
      Land(i);
    } else {
      ++i;
    }
  }
}

Result<int> SimulatedLoop::OpenFd(const std::string& path, OpenMode mode) {
  Result<SimulatedDisk::InodePtr> inode = disk_.Open(path, mode);
  if (!inode) return Error(std::move(inode.error()));
  files_[next_fd_] = {std::move(*inode), nullptr};
  return next_fd_++;
}

void SimulatedLoop::CloseFd(int fd) { files_.erase(fd); }

Result<std::uint64_t> SimulatedLoop::SizeOf(int fd, const std::string&) {
  return files_.at(fd).inode->bytes.size();
}

bool SimulatedLoop::IsNamed(int fd) { return disk_.IsNamed(*files_.at(fd).inode); }

Result<DirectLimits> SimulatedLoop::DirectOf(int, const std::string&) {
  return DirectLimits{.memory_align = 512, .offset_align = 512, .block_device = false};
}

Status SimulatedLoop::LockFd(int fd, const std::string& path) {
  Opened& file = files_.at(fd);
  if (file.lock != nullptr) return Status();
  if (!file.inode->lock.expired()) {
    return Status(Code::kBusy, Text("lock ", path, ": another process holds it"));
  }
  file.lock = std::make_shared<int>(fd);
  file.inode->lock = file.lock;
  return Status();
}

Status SimulatedLoop::PreallocateFd(int fd, const std::string&, std::uint64_t size_bytes) {
  SimulatedDisk::Inode& inode = *files_.at(fd).inode;
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

}  // namespace cistern::io
