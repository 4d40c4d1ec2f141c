// SPDX-License-Identifier: Apache-2.0
// The io_uring body. One ring; the thread that first turns the loop is its only submitter, and completions
// are taken when that thread asks (DEFER_TASKRUN), so nothing interrupts a core step.
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/format.h"
#include "io/system_loop.h"
#include "io/watch_state.h"

namespace cistern::io {
namespace {

constexpr unsigned kQueued = 1024;  // submissions between two looks; a full queue is submitted at once
constexpr unsigned kBatch = kHarvestedPerPoll;

// A write as large as that is submitted by a worker of the kernel's: to pin its pages and make the device's
// requests of them takes some 30 us a MiB, which nobody's write waits for and the core's next step would. Not
// a read: somebody waits for it, and a worker comes later.
constexpr std::uint32_t kSubmittedByWorker = 128u << 10;

// What a completion is for: an IoOp, a WatchState with kWatchTag, or one of two numbers that are no address.
constexpr std::uint64_t kWatchTag = 1;
constexpr std::uint64_t kWake = 2;
constexpr std::uint64_t kNobody = 4;

class Ring {
 public:
  Ring() = default;
  ~Ring() {
    if (made_) ::io_uring_queue_exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  Status Make(unsigned queued, unsigned completions) {
    io_uring_params params{};
    // Disabled until the thread that will run it is there: enabling makes it the single issuer.
    params.flags = IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                   IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CQSIZE;
    params.cq_entries = completions;
    int error = ::io_uring_queue_init_params(queued, &ring_, &params);
    if (error < 0) return Status(Code::kIoError, Text("io_uring: ", ErrnoText(-error)));
    made_ = true;
    return Status();
  }
  // Makes this thread the ring's. The system call itself, because liburing 2.3 declares io_uring_enable_rings
  // and does not export it.
  Status Enable() {
    if (::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) != 0) {
      return Status(Code::kIoError, Text("io_uring enable: ", ErrnoText(errno)));
    }
    // The kernel's own limit is four a CPU: on two CPUs the eight writes of one device that hangs would hold
    // up every sync of another.
    unsigned workers[] = {kMaxWaitingIo, 0};  // at files, at anything else (0: as it is)
    int error = ::io_uring_register_iowq_max_workers(&ring_, workers);
    if (error < 0) return Status(Code::kIoError, Text("io_uring workers: ", ErrnoText(-error)));
    return Status();
  }
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
  bool made_ = false;
};

class UringLoop final : public SystemLoop {
 public:
  UringLoop(const Clock& clock, const LoopOptions& options, Fd wake, std::unique_ptr<Ring> ring)
      : SystemLoop(clock, options, std::move(wake)), owned_(std::move(ring)), ring_(owned_->get()) {
    locks_.fill(kFree);
    ArmWake();
  }

  std::string_view name() const override { return "io_uring"; }

 private:
  static constexpr int kFree = -1;
  static constexpr int kForGood = -2;

  // A fixed file of the ring, which the kernel gives up after the ring's last request.
  Status Hold(int fd, bool ours) override {
    auto slot = std::ranges::find(locks_, kFree);
    if (slot == locks_.end()) {
      return Status(Code::kBusy, Text("locks: ", kMaxLocks, " are held and that is the limit"));
    }
    int done = ::io_uring_register_files_update(ring_, SlotOf(slot), &fd, 1);
    if (done != 1) return Status(Code::kIoError, Text("hold lock in io_uring: ", ErrnoText(-done)));
    *slot = ours ? fd : kForGood;
    return Status();
  }

  void LetGo(int fd) override {
    auto slot = std::ranges::find(locks_, fd);
    CISTERN_ASSERT(slot != locks_.end());
    int none = -1;
    // Only the ring's thread may. A file closed by another one, after that one ended, leaves its slot taken
    // until the ring goes; the lock itself has been given back.
    bool done = ::io_uring_register_files_update(ring_, SlotOf(slot), &none, 1) == 1;
    *slot = done ? kFree : kForGood;
  }

  unsigned SlotOf(const int* slot) const { return static_cast<unsigned>(slot - locks_.data()); }

  void Enable() {
    if (enabled_) return;
    CISTERN_ASSERT(owned_->Enable().ok());
    enabled_ = true;
  }

  void SubmitQueued() {
    Enable();
    int done = ::io_uring_submit(ring_);
    // The kernel may be short of memory or have completions of ours to deliver: the rest stays queued.
    CISTERN_ASSERT(done >= 0 || done == -EINTR || done == -EAGAIN || done == -EBUSY);
  }

  io_uring_sqe* Next() {
    for (;;) {
      if (io_uring_sqe* sqe = ::io_uring_get_sqe(ring_)) return sqe;
      SubmitQueued();
    }
  }

  void Submit(IoOp& op) override {
    const IoRequest& request = op.request();
    io_uring_sqe* sqe = Next();
    switch (request.kind) {
      case IoRequest::Kind::kRead:
        ::io_uring_prep_read(sqe, request.fd, request.data, request.size, request.offset);
        break;
      case IoRequest::Kind::kWrite:
        if (request.pieces != nullptr) {
          ::io_uring_prep_writev(sqe, request.fd, request.pieces, request.piece_count, request.offset);
        } else {
          ::io_uring_prep_write(sqe, request.fd, request.data, request.size, request.offset);
        }
        if (request.size >= kSubmittedByWorker) sqe->flags |= IOSQE_ASYNC;
        break;
      case IoRequest::Kind::kSync: ::io_uring_prep_fsync(sqe, request.fd, IORING_FSYNC_DATASYNC); break;
    }
    ::io_uring_sqe_set_data64(sqe, std::bit_cast<std::uint64_t>(&op));
  }

  bool Harvest() override {
    Enable();
    bool any = ::io_uring_sq_ready(ring_) > 0;
    if (any) SubmitQueued();
    io_uring_cqe* ready[kBatch];
    unsigned n = ::io_uring_peek_batch_cqe(ring_, ready, kBatch);
    // Copied out first, because what they wake may submit and so turn the ring.
    std::array<io_uring_cqe, kBatch> batch;
    for (unsigned i = 0; i < n; ++i) batch[i] = *ready[i];
    ::io_uring_cq_advance(ring_, n);
    for (unsigned i = 0; i < n; ++i) Handle(batch[i].user_data, batch[i].res, batch[i].flags);
    return any || n > 0;
  }

  void Handle(std::uint64_t data, int result, unsigned flags) {
    bool more = (flags & IORING_CQE_F_MORE) != 0;
    if (data == kNobody) return;
    if (data == kWake) {
      if (!more) ArmWake();
    } else if ((data & kWatchTag) != 0) {
      HandleWatch(*std::bit_cast<WatchState*>(data & ~kWatchTag), result, more);
    } else {
      Ended(*std::bit_cast<IoOp*>(data), result);
    }
  }

  void HandleWatch(WatchState& watch, int result, bool more) {
    watch.armed = more;
    if (watch.removed) {
      if (!more) Forget(watch);
      return;
    }
    bool failed = result < 0;
    std::uint32_t events = failed ? std::uint32_t{POLLERR | POLLNVAL} : static_cast<std::uint32_t>(result);
    if (Called(watch, events) && !watch.armed && !failed) Arm(watch);
  }

  void Wait(Instant until) override {
    Enable();
    io_uring_cqe* cqe = nullptr;
    if (until.IsNever()) {
      ::io_uring_submit_and_wait_timeout(ring_, &cqe, 1, nullptr, nullptr);
      return;
    }
    std::int64_t ns = std::max<std::int64_t>(0, until.NsSince(clock().Now()));
    __kernel_timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
    ::io_uring_submit_and_wait_timeout(ring_, &cqe, 1, &time, nullptr);
  }

  Status StartWatch(WatchState& watch) override {
    Arm(watch);
    return Status();
  }

  void EndWatch(WatchState& watch) override {
    if (!watch.armed) {
      Forget(watch);
      return;
    }
    io_uring_sqe* sqe = Next();
    ::io_uring_prep_poll_remove(sqe, DataOf(watch));
    ::io_uring_sqe_set_data64(sqe, kNobody);
  }

  // Level: one shot, armed again after the callback, which finds at once what was left. Edge: multishot.
  void Arm(WatchState& watch) {
    watch.armed = true;
    io_uring_sqe* sqe = Next();
    if (watch.mode == WatchMode::kEdge) {
      ::io_uring_prep_poll_multishot(sqe, watch.fd, POLLIN | POLLRDHUP);
    } else if (watch.mode == WatchMode::kDuplex) {
      ::io_uring_prep_poll_multishot(sqe, watch.fd, POLLIN | POLLRDHUP | POLLOUT);
    } else {
      ::io_uring_prep_poll_add(sqe, watch.fd, POLLIN | POLLRDHUP);
    }
    ::io_uring_sqe_set_data64(sqe, DataOf(watch));
  }

  void ArmWake() {
    io_uring_sqe* sqe = Next();
    ::io_uring_prep_poll_multishot(sqe, wake_fd(), POLLIN);
    ::io_uring_sqe_set_data64(sqe, kWake);
  }

  static std::uint64_t DataOf(WatchState& watch) { return std::bit_cast<std::uint64_t>(&watch) | kWatchTag; }

  std::unique_ptr<Ring> owned_;
  io_uring* ring_;
  std::array<int, kMaxLocks> locks_;  // what a fixed file is: an open file of Lock, kFree or kForGood
  bool enabled_ = false;
};

}  // namespace

Status ProbeUring() {
  Ring ring;
  Status made = ring.Make(4, 8);
  if (!made.ok()) return made;
  // A filter may allow the set-up and forbid its use.
  Status enabled = ring.Enable();
  if (!enabled.ok()) return enabled;
  ::io_uring_prep_nop(::io_uring_get_sqe(ring.get()));
  int error = ::io_uring_submit_and_wait(ring.get(), 1);
  if (error < 0) return Status(Code::kIoError, Text("io_uring enter: ", ErrnoText(-error)));
  return Status();
}

Result<std::unique_ptr<Loop>> MakeUringLoop(const Clock& clock, const LoopOptions& options) {
  Result<Fd> wake = MakeEventFd();
  if (!wake) return Error(std::move(wake.error()));
  auto ring = std::make_unique<Ring>();
  Status made = ring->Make(kQueued, 4 * std::max<unsigned>(options.max_io, kQueued));
  if (!made.ok()) return Error(std::move(made));
  int error = ::io_uring_register_files_sparse(ring->get(), Loop::kMaxLocks);
  if (error < 0) return Error(Code::kIoError, Text("io_uring fixed files: ", ErrnoText(-error)));
  return std::make_unique<UringLoop>(clock, options, std::move(*wake), std::move(ring));
}

}  // namespace cistern::io
