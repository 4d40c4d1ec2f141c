// SPDX-License-Identifier: Apache-2.0
// The loop that a core thread runs: an executor, a clock, files, descriptors, other threads' messages, and
// when to sleep. Three bodies: io_uring, epoll with a few threads for files, and simulated
// (io/simulated_loop.h). A loop belongs to the thread that turns it; only Stop and PostRemote may be called
// from another, and a Visit made there. It must outlive its files, watches, pollers and tasks, and no file
// operation may be in flight when it goes.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/executor.h"
#include "base/limits.h"
#include "base/metrics.h"
#include "base/remote_queue.h"
#include "base/spin.h"
#include "base/task.h"
#include "cistern/status.h"
#include "io/files.h"
#include "io/turns.h"

namespace cistern::io {

class Loop;

// Pieces that one write moves at most.
inline constexpr std::size_t kMaxPieces = 1024;

// What a file operation asks for.
struct IoRequest {
  enum class Kind : std::uint8_t { kRead, kWrite, kSync };
  Kind kind;
  int fd;
  std::byte* data = nullptr;
  std::uint32_t size = 0;  // of all pieces, where there are some
  std::uint64_t offset = 0;
  const iovec* pieces = nullptr;  // instead of data, of a write
  std::uint32_t piece_count = 0;
};

// A file opened by a loop; closes itself. It must stay until its operations have ended. Reads and writes
// keep the caller's bytes until they end, and cannot be interrupted: a deadline cannot take a buffer from a
// device (R6). Offsets and lengths are bytes. Of a file opened with kDirect they keep to its DirectLimits,
// and kInvalid names what does not.
class File {
 public:
  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  bool valid() const { return loop_ != nullptr; }
  const std::string& path() const { return path_; }
  Executor& executor() const;

  // One operation: how many bytes moved, which may be fewer than asked, and 0 at the end of the file.
  // kBusy when LoopOptions::max_io are in flight, kIoError otherwise.
  Task<Result<std::uint32_t>> Read(std::span<std::byte> into, std::uint64_t offset);
  Task<Result<std::uint32_t>> Write(std::span<const std::byte> from, std::uint64_t offset);
  // All of it: goes on after a short operation; the end of the file is kIoError.
  Task<Status> ReadAll(std::span<std::byte> into, std::uint64_t offset);
  Task<Status> WriteAll(std::span<const std::byte> from, std::uint64_t offset);
  // The same for bytes that lie in pieces, one after the other in the file; the caller keeps the pieces too.
  Task<Status> WriteAllV(std::span<const std::span<const std::byte>> pieces, std::uint64_t offset);
  // What was written before is durable (fdatasync). After a failure nothing is known of what was written.
  Task<Status> Sync();
  // Blocks, briefly. Of a block device, its capacity.
  Result<std::uint64_t> Size() const;
  // Whether a name still leads to it: no once somebody has removed it, or put another one in its place.
  // Always of a block device, and where nobody can tell.
  bool Named() const;
  // The alignment that kDirect asks of offsets, sizes and memory on this file, however it was opened.
  Result<DirectLimits> Direct() const;

 private:
  friend class Loop;
  File(Loop& loop, int fd, std::string path, const DirectLimits& direct)
      : loop_(&loop), fd_(fd), path_(std::move(path)), direct_(direct) {}
  Task<Result<std::uint32_t>> WritePieces(std::span<const iovec> pieces, std::uint32_t size,
                                          std::uint64_t offset);
  Status CheckDirect(std::string_view what, std::span<const iovec> pieces, std::uint64_t offset) const;
  // Bytes of a short operation of `moved` that the next one may start behind (aligned, with kDirect).
  std::uint32_t Usable(std::uint32_t moved) const;

  Loop* loop_ = nullptr;
  int fd_ = -1;
  std::string path_;
  DirectLimits direct_;  // zeros unless it was opened past the page cache
};

enum class WatchMode : std::uint8_t {
  kLevel,   // called again and again while the descriptor is ready: the callback reads it dry
  kEdge,    // called after each time that it becomes ready: an eventfd needs no reading, each signal calls
  kDuplex,  // as kEdge, and called each time that it becomes writable: a socket that is written to as well
};
// Gets poll(2)'s POLLIN, POLLOUT, POLLHUP, POLLERR bits. May destroy any watch, its own too.
using WatchCallback = std::move_only_function<void(std::uint32_t events)>;

struct WatchState;  // io/watch_state.h, for the bodies

// A descriptor that the loop watches for readability and hang-up, as its mode says (socket, eventfd, pidfd),
// one watch each. Ends when destroyed: the callback is not called again, and the descriptor may then be
// closed.
class FdWatch {
 public:
  FdWatch() = default;
  FdWatch(FdWatch&& other) noexcept : loop_(other.loop_), state_(std::exchange(other.state_, nullptr)) {}
  FdWatch& operator=(FdWatch&& other) noexcept;
  ~FdWatch() { End(); }
  void End();

 private:
  friend class Loop;
  FdWatch(Loop& loop, WatchState& state) : loop_(&loop), state_(&state) {}
  Loop* loop_ = nullptr;
  WatchState* state_ = nullptr;
};

// Something in memory that the loop polls as long as it is awake, such as rings shared with clients. Leaves
// the loop when destroyed.
class Poller : public ListNode<Poller> {
 public:
  // Looks once and handles what is there, within one core step; whether there was anything.
  virtual bool Poll() = 0;
  // The loop would sleep: say so where the other side looks before it decides whether to signal. A full
  // fence and one more Poll follow, so that either the loop sees the other side's work or the other side
  // sees the flag. Awake follows in any case.
  virtual void AboutToSleep() {}
  virtual void Awake() {}

 protected:
  ~Poller() = default;
};

enum class LoopKind : std::uint8_t { kProbe, kUring, kEpoll };

struct LoopOptions {
  LoopKind kind = LoopKind::kProbe;  // kProbe: io_uring where it works, else epoll
  std::int64_t poll_us = 50;         // how long it polls after its last work before it sleeps; 0 to 1,000,000
  std::uint32_t max_io = 1024;       // file operations in flight, past it kBusy; 1 to 16,384
  std::uint32_t io_threads = 4;      // of the epoll body, for files, more where all wait; 1 to 64

  Status Validate() const;
};

// One file operation, in the frame of the task that waits for it: co_await gives the bytes moved, or a
// negative errno.
class [[nodiscard]] IoOp final : public Work {
 public:
  IoOp(Loop& loop, const IoRequest& request) : loop_(loop), request_(request) {}
  ~IoOp() override { CISTERN_ASSERT(!in_flight_); }

  bool await_ready() const { return false; }
  template <std::derived_from<PromiseBase> P>
  bool await_suspend(std::coroutine_handle<P> handle) {
    return Start(handle.promise());
  }
  std::int64_t await_resume() const { return result_; }

  const IoRequest& request() const { return request_; }
  // For a body whose operations end on another thread: leaves the result here and posts this as Work.
  void set_result(std::int64_t result) { result_ = result; }
  void Run() override;

 private:
  friend class Loop;
  bool Start(PromiseBase& promise);

  Loop& loop_;
  const IoRequest request_;
  std::int64_t result_ = 0;
  bool in_flight_ = false;
  PromiseBase* waiter_ = nullptr;
};

// A visit: another thread of the process runs one step on the core's state, between two turns of the loop or
// while the loop sleeps and goes on to sleep. Its code waits for nothing, starts no file operation and begins
// or ends no watch. Work that it makes ready and timers that it sets are the loop's, which is woken for
// them.
//
//   Visit visit(loop);
//   if (!visit) ...  // the loop is in a long turn: ask by message
class Visit final {
 public:
  explicit Visit(Loop& loop);
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  explicit operator bool() const { return loop_ != nullptr; }

 private:
  Loop* loop_;
};

class Loop {
 public:
  // Descriptors for HoldLock and Lock: those of a node's directories and of all its flash devices.
  static constexpr std::size_t kMaxLocks = 32;

  virtual ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  Executor& executor() { return executor_; }
  const Executor& executor() const { return executor_; }
  const Clock& clock() const { return executor_.clock(); }
  // "io_uring", "epoll" or "simulated".
  virtual std::string_view name() const = 0;

  // Turns until Stop. A Stop that came before counts.
  void Run();
  // One turn: everything that is there, or, after poll_us without any, sleep until something comes; at once
  // where others compute on its processor.
  void Turn();
  // Everything that is there, bounded, without sleeping: messages, completions, timers, pollers, ready work.
  // Returns whether there was anything.
  bool PollOnce();
  // Makes Run return, from any thread.
  void Stop();
  // Turns until the task is done; its result. Not from within a task.
  template <class T>
  T BlockOn(Task<T> task) {
    while (!task.done()) Turn();
    return task.Take();
  }

  // From any thread: runs on the loop's thread, in order of posting, and wakes it if it sleeps. Work stays
  // the poster's until it has run; a callback that never ran is destroyed with the loop.
  void PostRemote(Work& work);
  void PostRemote(Callback callback);

  Result<FdWatch> Watch(int fd, WatchMode mode, WatchCallback callback);
  // Polled in order of adding.
  void AddPoller(Poller& poller) { pollers_[poller_list_].PushBack(poller); }

  // R8: the lock that this open descriptor carries stays held until the last file operation of this loop has
  // ended in the kernel, even when the process is killed, whatever the caller closes. kBusy past kMaxLocks.
  virtual Status HoldLock(int fd) = 0;
  // The exclusive flock of this open file, from now until it is closed; when the process is killed, until
  // the last file operation of this loop has ended in the kernel. So the operations that it guards end before
  // it is closed. kBusy when another open file holds it, or past kMaxLocks.
  Status Lock(File& file);

  // Opening, renaming and removing block, briefly: for start, end and rare changes.
  Result<File> Open(const std::string& path, OpenMode mode);
  // Grows the file to at least this, all of it real. It may take long, and be called from another thread, as
  // long as the file stays open.
  Status Preallocate(File& file, std::uint64_t size_bytes);
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status Remove(const std::string& path) = 0;
  // Creations, renames and removals in the directory are durable.
  Task<Status> SyncDirectory(std::string path);

  // How often it slept.
  std::uint64_t sleeps() const { return sleeps_; }
  // How long pieces of ready work took, each of which is a step of the core; of one in eight.
  const Histogram& step_ns() const { return step_ns_; }

 protected:
  // Ready work that runs between two looks at the outside, by number and by what it did: a call of many
  // steps keeps nobody waiting for longer than so many of them, or one step too long, to be seen.
  static constexpr std::size_t kReadyPerPoll = 16;
  static constexpr std::uint64_t kWorkPerPoll = kStepTouches;

  // `wake` is an eventfd that a body's Wait must notice; nobody drains it.
  Loop(const Clock& clock, const LoopOptions& options, Fd wake);

  // Submits; ends later with Ended, never at once. The base has counted it.
  virtual void Submit(IoOp& op) = 0;
  // Completions and readiness that are there, without waiting; whether there were any.
  virtual bool Harvest() = 0;
  // Waits for completions, readiness, the wake descriptor or the time; may return early.
  virtual void Wait(Instant until) = 0;
  virtual Result<int> OpenFd(const std::string& path, OpenMode mode) = 0;
  virtual void CloseFd(int fd) = 0;
  virtual Result<std::uint64_t> SizeOf(int fd, const std::string& path) = 0;
  virtual bool IsNamed(int fd) = 0;
  virtual Result<DirectLimits> DirectOf(int fd, const std::string& path) = 0;
  virtual Status LockFd(int fd, const std::string& path) = 0;
  virtual Status PreallocateFd(int fd, const std::string& path, std::uint64_t size_bytes) = 0;
  virtual Status StartWatch(WatchState& watch) = 0;
  // The base has marked it removed. The body calls Forget when the kernel no longer knows it.
  virtual void EndWatch(WatchState& watch) = 0;

  // The operation has ended: bytes moved or a negative errno. Its task goes on from the ready queue.
  void Ended(IoOp& op, std::int64_t result);
  // The operation will never end: a simulated crash. Its task can then be dropped.
  void Abandon(IoOp& op);
  void Forget(WatchState& watch);
  // Calls it back, unless it was removed; whether it is still watched, if not it may be gone.
  bool Called(WatchState& watch, std::uint32_t events);
  int wake_fd() const { return wake_.get(); }
  bool has_remote() const { return !remote_.empty(); }
  const LoopOptions& options() const { return options_; }
  std::uint32_t in_flight() const { return in_flight_; }

 private:
  friend class File;
  friend class FdWatch;
  friend class IoOp;
  friend class Visit;

  template <class F>
  void EachPoller(F&& visit);
  bool RunPollers();
  // Ready work, bounded; whether there was any.
  bool RunSteps();
  void Sleep();
  void Signal();

  LoopOptions options_;
  Executor executor_;
  RemoteQueue remote_;
  Fd wake_;
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stop_{false};
  Turns turns_;
  Instant sleeps_until_;     // what the last sleep waits for at the latest
  List<Poller> pollers_[2];  // those not yet polled in this turn, and those polled
  int poller_list_ = 0;
  List<WatchState> watches_;
  std::size_t watched_ = 0;  // those of watches_ that were not removed
  PoliteSpin spin_{8};
  bool idle_ = false;
  Instant idle_since_;
  Instant polls_again_;  // until then it sleeps at once
  std::uint32_t in_flight_ = 0;
  std::uint64_t sleeps_ = 0;
  Histogram step_ns_;
};

// The clock is borrowed. kInvalid for options; kIoError when the kind asked for does not work here; kBusy
// where the system has no thread for it.
Result<std::unique_ptr<Loop>> MakeLoop(const Clock& clock, const LoopOptions& options = {});
// Whether io_uring works for this process, and if not why (a container's filter, a sysctl, an old kernel).
Status ProbeUring();

}  // namespace cistern::io
