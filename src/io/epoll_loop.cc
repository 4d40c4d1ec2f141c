// SPDX-License-Identifier: Apache-2.0
// The epoll body: descriptors through epoll, file operations by a few threads, and more where these are all
// busy: those that wait for a device that hangs must not keep what another device would do. It serves where
// io_uring is forbidden, as default container filters do.
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/format.h"
#include "base/start_threads.h"
#include "io/epoll_set.h"
#include "io/system_loop.h"

namespace cistern::io {
namespace {

std::int64_t Carry(const IoRequest& request) {
  ssize_t result = 0;
  auto offset = static_cast<off_t>(request.offset);
  auto count = static_cast<int>(request.piece_count);
  do {
    switch (request.kind) {
      case IoRequest::Kind::kRead: result = ::pread(request.fd, request.data, request.size, offset); break;
      case IoRequest::Kind::kWrite:
        result = request.pieces != nullptr ? ::pwritev(request.fd, request.pieces, count, offset)
                                           : ::pwrite(request.fd, request.data, request.size, offset);
        break;
      case IoRequest::Kind::kSync: result = ::fdatasync(request.fd); break;
    }
  } while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : result;
}

class EpollLoop final : public SystemLoop {
 public:
  EpollLoop(const Clock& clock, const LoopOptions& options, Fd wake, EpollSet set)
      : SystemLoop(clock, options, std::move(wake)), set_(std::move(set)) {
    for (std::uint32_t i = 0; i < options.io_threads; ++i) {
      threads_.emplace_back([this](std::stop_token stop) { CarryOut(stop); });
    }
  }

  std::string_view name() const override { return "epoll"; }

 private:
  // The kernel gives up a process's descriptors after its last thread, so after its threads' I/O.
  Status Hold(int fd, bool ours) override {
    if (locks_.size() == kMaxLocks) {
      return Status(Code::kBusy, Text("locks: ", kMaxLocks, " are held and that is the limit"));
    }
    Fd held(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!held.valid()) return Status(Code::kIoError, Text("hold lock: ", ErrnoText(errno)));
    locks_.push_back({ours ? fd : -1, std::move(held)});
    return Status();
  }

  void LetGo(int fd) override {
    std::erase_if(locks_, [fd](const Held& held) { return held.of == fd; });
  }

  void Submit(IoOp& op) override {
    bool all_busy;
    {
      std::lock_guard lock(mutex_);
      queue_.PushBack(op);
      ++queued_;
      all_busy = queued_ > idle_;
    }
    if (all_busy && threads_.size() < kMaxWaitingIo) AddThread();
    work_.notify_one();
  }

  bool Harvest() override {
    bool any = set_.Poll();
    for (EpollSet::Ready ready = set_.Next(); ready.watch != nullptr; ready = set_.Next()) {
      Called(*ready.watch, ready.events);
    }
    return any;
  }

  void Wait(Instant until) override {
    if (until.IsNever()) {
      set_.Wait(std::numeric_limits<std::int64_t>::max());
    } else {
      set_.Wait(std::max<std::int64_t>(0, until.NsSince(clock().Now())));
    }
  }

  Status StartWatch(WatchState& watch) override { return set_.Add(watch); }
  void EndWatch(WatchState& watch) override {
    set_.Remove(watch);
    Forget(watch);
  }

  // Where the system has no more, what is queued waits for those that there are.
  void AddThread() {
    try {
      threads_.emplace_back([this](std::stop_token stop) { CarryOut(stop); });
    } catch (const std::system_error&) {
    }
  }

  void CarryOut(std::stop_token stop) {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      const bool any = work_.wait(lock, stop, [this] { return !queue_.empty(); });
      --idle_;
      if (!any) return;
      IoOp& op = static_cast<IoOp&>(*queue_.PopFront());
      --queued_;
      lock.unlock();
      op.set_result(Carry(op.request()));
      PostRemote(op);
      lock.lock();
    }
  }

  EpollSet set_;
  struct Held {
    int of;  // the open file of Lock, or -1
    Fd fd;
  };
  std::vector<Held> locks_;
  std::mutex mutex_;
  std::condition_variable_any work_;
  List<Work> queue_;                   // under mutex_
  std::size_t queued_ = 0;             // of it, under mutex_
  std::size_t idle_ = 0;               // threads that wait, under mutex_
  std::vector<std::jthread> threads_;  // last, so that they end before what they use
};

}  // namespace

Result<std::unique_ptr<Loop>> MakeEpollLoop(const Clock& clock, const LoopOptions& options) {
  Result<Fd> wake = MakeEventFd();
  if (!wake) return Error(std::move(wake.error()));
  Result<EpollSet> set = EpollSet::Make(wake->get());
  if (!set) return Error(std::move(set.error()));
  std::unique_ptr<Loop> loop;
  Status started = StartingThreads(
      [&] { loop = std::make_unique<EpollLoop>(clock, options, std::move(*wake), std::move(*set)); });
  if (!started.ok()) return Error(std::move(started));
  return loop;
}

}  // namespace cistern::io
