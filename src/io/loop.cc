// SPDX-License-Identifier: Apache-2.0
#include "io/loop.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/format.h"
#include "base/spin.h"
#include "io/watch_state.h"

namespace cistern::io {
namespace {

// No errno reaches this: the operation was refused for LoopOptions::max_io.
constexpr std::int64_t kRefused = -4096;
// What one operation moves at most; a longer one is short.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

// A yield that took so long gave the processor to somebody who computes for as long as he may. A thread that
// polls gets it back behind him each time, one that sleeps is woken before him: so it sleeps for a while.
constexpr std::int64_t kTakenUs = 2'000, kNoPollUs = 50'000;

Status Failed(std::string_view what, const std::string& path, std::int64_t result, std::uint32_t size,
              std::uint64_t offset) {
  std::string thing = Text(what, " ", path);
  if (size > 0) thing += Text(" (", size, " bytes at ", Hex(offset), ")");
  if (result == kRefused)
    return Status(Code::kBusy, thing + ": the loop's file operations are at their limit");
  return Status(Code::kIoError, thing + ": " + ErrnoText(static_cast<int>(-result)));
}

Status EndsEarly(const std::string& path, std::uint64_t offset, std::uint64_t left) {
  return Status(Code::kIoError,
                Text("read ", path, ": it ends at ", Hex(offset), ", ", left, " bytes early"));
}

Status NothingWritten(const std::string& path, std::uint64_t offset, std::uint64_t left) {
  return Status(Code::kIoError, Text("write ", path, ": nothing written at ", Hex(offset), " of ", left));
}

// What one operation takes of the pieces from byte `skip` on.
struct Gathered {
  std::vector<iovec> pieces;
  std::uint32_t size = 0;
};

Gathered Gather(std::span<const std::span<const std::byte>> from, std::uint64_t skip) {
  Gathered out;
  std::size_t left = kMaxTransfer;
  for (std::span<const std::byte> piece : from) {
    if (skip >= piece.size()) {
      skip -= piece.size();
      continue;
    }
    if (left == 0 || out.pieces.size() == kMaxPieces) break;
    piece = piece.subspan(skip, std::min<std::size_t>(piece.size() - skip, left));
    skip = 0;
    // A write does not store through the pointer.
    out.pieces.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
    out.size += static_cast<std::uint32_t>(piece.size());
    left -= piece.size();
  }
  return out;
}

std::uint64_t SizeOfAll(std::span<const std::span<const std::byte>> pieces) {
  std::uint64_t size = 0;
  for (std::span<const std::byte> piece : pieces) size += piece.size();
  return size;
}

Status OutOfRange(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  return Status(Code::kInvalid, Text(name, " is ", value, " and must be from ", low, " to ", high));
}

}  // namespace

Status LoopOptions::Validate() const {
  if (poll_us < 0 || poll_us > 1'000'000) return OutOfRange("poll_us", poll_us, 0, 1'000'000);
  if (max_io < 1 || max_io > 16'384) return OutOfRange("max_io", max_io, 1, 16'384);
  if (io_threads < 1 || io_threads > 64) return OutOfRange("io_threads", io_threads, 1, 64);
  return Status();
}

File::File(File&& other) noexcept
    : loop_(std::exchange(other.loop_, nullptr)),
      fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      direct_(other.direct_) {}

File& File::operator=(File&& other) noexcept {
  File old(std::move(*this));
  loop_ = std::exchange(other.loop_, nullptr);
  fd_ = std::exchange(other.fd_, -1);
  path_ = std::move(other.path_);
  direct_ = other.direct_;
  return *this;
}

File::~File() {
  if (loop_ != nullptr) loop_->CloseFd(fd_);
}

Executor& File::executor() const { return loop_->executor(); }

// Not left to the kernel, because some file systems then go through the page cache and say nothing.
Status File::CheckDirect(std::string_view what, std::span<const iovec> pieces, std::uint64_t offset) const {
  if (direct_.offset_align == 0) return Status();
  std::uint64_t size = 0;
  std::uint64_t memory = 0;
  for (const iovec& piece : pieces) {
    size += piece.iov_len;
    memory |= std::bit_cast<std::uintptr_t>(piece.iov_base) | piece.iov_len;
  }
  if (((offset | size) & (direct_.offset_align - 1)) != 0) {
    return Status(Code::kInvalid,
                  Text(what, " ", path_, " (", size, " bytes at ", Hex(offset),
                       "): direct, so size and offset must be multiples of ", direct_.offset_align));
  }
  if ((memory & (direct_.memory_align - 1)) == 0) return Status();
  return Status(
      Code::kInvalid,
      Text(what, " ", path_, " (", size, " bytes at ", Hex(offset),
           "): direct, so each piece of memory must begin and end at a multiple of ", direct_.memory_align));
}

std::uint32_t File::Usable(std::uint32_t moved) const {
  return direct_.offset_align == 0 ? moved : moved & ~(direct_.offset_align - 1);
}

Task<Result<std::uint32_t>> File::Read(std::span<std::byte> into, std::uint64_t offset) {
  auto size = static_cast<std::uint32_t>(std::min(into.size(), kMaxTransfer));
  const iovec piece{into.data(), size};
  Status fits = CheckDirect("read", std::span(&piece, 1), offset);
  if (!fits.ok()) co_return Error(std::move(fits));
  std::int64_t moved =
      co_await IoOp(*loop_, IoRequest{IoRequest::Kind::kRead, fd_, into.data(), size, offset});
  if (moved < 0) co_return Error(Failed("read", path_, moved, size, offset));
  co_return static_cast<std::uint32_t>(moved);
}

Task<Result<std::uint32_t>> File::Write(std::span<const std::byte> from, std::uint64_t offset) {
  auto size = static_cast<std::uint32_t>(std::min(from.size(), kMaxTransfer));
  // Only a read stores through the pointer.
  auto* data = const_cast<std::byte*>(from.data());
  const iovec piece{data, size};
  Status fits = CheckDirect("write", std::span(&piece, 1), offset);
  if (!fits.ok()) co_return Error(std::move(fits));
  std::int64_t moved = co_await IoOp(*loop_, IoRequest{IoRequest::Kind::kWrite, fd_, data, size, offset});
  if (moved < 0) co_return Error(Failed("write", path_, moved, size, offset));
  co_return static_cast<std::uint32_t>(moved);
}

Task<Status> File::ReadAll(std::span<std::byte> into, std::uint64_t offset) {
  while (!into.empty()) {
    Result<std::uint32_t> moved = co_await Read(into, offset);
    if (!moved) co_return std::move(moved.error());
    std::uint32_t usable = Usable(*moved);
    if (usable == 0) co_return EndsEarly(path_, offset, into.size());
    into = into.subspan(usable);
    offset += usable;
  }
  co_return Status();
}

Task<Status> File::WriteAll(std::span<const std::byte> from, std::uint64_t offset) {
  while (!from.empty()) {
    Result<std::uint32_t> moved = co_await Write(from, offset);
    if (!moved) co_return std::move(moved.error());
    std::uint32_t usable = Usable(*moved);
    if (usable == 0) co_return NothingWritten(path_, offset, from.size());
    from = from.subspan(usable);
    offset += usable;
  }
  co_return Status();
}

Task<Result<std::uint32_t>> File::WritePieces(std::span<const iovec> pieces, std::uint32_t size,
                                              std::uint64_t offset) {
  Status fits = CheckDirect("write", pieces, offset);
  if (!fits.ok()) co_return Error(std::move(fits));
  if (size == 0) co_return 0u;
  IoRequest request{IoRequest::Kind::kWrite, fd_, nullptr, size, offset};
  request.pieces = pieces.data();
  request.piece_count = static_cast<std::uint32_t>(pieces.size());
  std::int64_t moved = co_await IoOp(*loop_, request);
  if (moved < 0) co_return Error(Failed("write", path_, moved, size, offset));
  co_return static_cast<std::uint32_t>(moved);
}

Task<Status> File::WriteAllV(std::span<const std::span<const std::byte>> pieces, std::uint64_t offset) {
  const std::uint64_t size = SizeOfAll(pieces);
  for (std::uint64_t done = 0; done < size;) {
    Gathered gathered = Gather(pieces, done);
    Result<std::uint32_t> moved = co_await WritePieces(gathered.pieces, gathered.size, offset + done);
    if (!moved) co_return std::move(moved.error());
    std::uint32_t usable = Usable(*moved);
    if (usable == 0) co_return NothingWritten(path_, offset + done, size - done);
    done += usable;
  }
  co_return Status();
}

Task<Status> File::Sync() {
  std::int64_t result = co_await IoOp(*loop_, IoRequest{IoRequest::Kind::kSync, fd_});
  if (result < 0) co_return Failed("sync", path_, result, 0, 0);
  co_return Status();
}

Result<std::uint64_t> File::Size() const { return loop_->SizeOf(fd_, path_); }
bool File::Named() const { return loop_->IsNamed(fd_); }
Result<DirectLimits> File::Direct() const { return loop_->DirectOf(fd_, path_); }

FdWatch& FdWatch::operator=(FdWatch&& other) noexcept {
  End();
  loop_ = other.loop_;
  state_ = std::exchange(other.state_, nullptr);
  return *this;
}

void FdWatch::End() {
  WatchState* state = std::exchange(state_, nullptr);
  if (state == nullptr) return;
  state->removed = true;
  --loop_->watched_;
  loop_->EndWatch(*state);
}

bool IoOp::Start(PromiseBase& promise) {
  if (loop_.in_flight_ >= loop_.options_.max_io) {
    result_ = kRefused;
    return false;
  }
  waiter_ = &promise;
  in_flight_ = true;
  ++loop_.in_flight_;
  loop_.Submit(*this);
  return true;
}

void IoOp::Run() { loop_.Ended(*this, result_); }

Loop::Loop(const Clock& clock, const LoopOptions& options, Fd wake)
    : options_(options), executor_(clock), wake_(std::move(wake)) {}

Loop::~Loop() {
  CISTERN_ASSERT(in_flight_ == 0 && watched_ == 0);
  while (WatchState* watch = watches_.PopFront()) delete watch;
}

void Loop::Run() {
  // Acquire: who stopped it may have left word for what comes after.
  while (!stop_.load(std::memory_order_acquire)) Turn();
  stop_.store(false, std::memory_order_relaxed);
}

void Loop::Turn() {
  turns_.Begin();
  if (PollOnce()) {
    idle_ = false;
    turns_.End();
    return;
  }
  Instant now = clock().Now();
  if (!idle_) {
    idle_ = true;
    idle_since_ = now;
  }
  const bool polls = now.NsSince(idle_since_) < options_.poll_us * 1000 && now >= polls_again_;
  if (!polls) Sleep();
  turns_.End();
  if (!polls || !spin_.Turn()) return;
  const Instant back = clock().Now();
  if (back.UsSince(now) > kTakenUs) polls_again_ = back.PlusUs(kNoPollUs);
}

bool Loop::PollOnce() {
  bool any = remote_.DrainTo(executor_);
  any |= Harvest();
  any |= executor_.FireTimers() > 0;
  any |= RunPollers();
  return RunSteps() || any;
}

// Two looks at the clock are a hundredth of a small put's steps, so one step in eight is timed: those whose
// multiple of the golden ratio falls there, which follow no rhythm that calls have.
bool Loop::RunSteps() {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
  const std::uint64_t before = executor_.work();
  bool any = false;
  for (std::size_t ran = 0; ran < kReadyPerPoll && executor_.work() - before < kWorkPerPoll; ++ran) {
    if (!executor_.has_ready()) break;
    any = true;
    const bool timed = (executor_.steps() * kGolden) >> 61 == 0;
    const Instant began = timed ? clock().Now() : Instant();
    executor_.RunReady(1);
    if (timed)
      step_ns_.Record(static_cast<std::uint64_t>(std::max<std::int64_t>(clock().Now().NsSince(began), 0)));
  }
  return any;
}

void Loop::Sleep() {
  EachPoller([](Poller& poller) { poller.AboutToSleep(); });
  sleeping_.store(true);
  FullFence();
  bool any = RunPollers();
  if (any) idle_ = false;
  if (!any && !has_remote() && !executor_.has_ready() && !stop_.load()) {
    ++sleeps_;
    sleeps_until_ = executor_.next_timer();
    turns_.End();
    Wait(sleeps_until_);
    turns_.Begin();
  }
  sleeping_.store(false, std::memory_order_relaxed);
  EachPoller([](Poller& poller) { poller.Awake(); });
}

// A poller may remove itself and others, and add some, while it is visited: those visited move to the other
// list, which then takes the first one's place.
template <class F>
void Loop::EachPoller(F&& visit) {
  List<Poller>& visited = pollers_[1 - poller_list_];
  while (Poller* poller = pollers_[poller_list_].PopFront()) {
    visited.PushBack(*poller);
    visit(*poller);
  }
  poller_list_ = 1 - poller_list_;
}

bool Loop::RunPollers() {
  bool any = false;
  EachPoller([&any](Poller& poller) { any |= poller.Poll(); });
  return any;
}

void Loop::Stop() {
  stop_.store(true);
  Signal();
}

void Loop::PostRemote(Work& work) {
  remote_.Push(work);
  Signal();
}

void Loop::PostRemote(Callback callback) {
  remote_.Push(std::move(callback));
  Signal();
}

// Whoever finds the loop asleep wakes it; the others of the same moment need not.
void Loop::Signal() {
  if (sleeping_.load() && sleeping_.exchange(false)) SignalEventFd(wake_.get());
}

Visit::Visit(Loop& loop) : loop_(loop.turns_.Enter() ? &loop : nullptr) {
  if (loop_ != nullptr) loop_->executor_.BeginStep();
}

// The loop has said that it sleeps before it let anybody in, so whoever leaves it something sees that.
Visit::~Visit() {
  if (loop_ == nullptr) return;
  const bool left = loop_->executor_.has_ready() || loop_->executor_.next_timer() < loop_->sleeps_until_;
  loop_->turns_.End();
  if (left) loop_->Signal();
}

Result<FdWatch> Loop::Watch(int fd, WatchMode mode, WatchCallback callback) {
  auto state = std::make_unique<WatchState>(fd, mode, std::move(callback));
  Status started = StartWatch(*state);
  if (!started.ok()) return Error(std::move(started));
  ++watched_;
  watches_.PushBack(*state);
  return FdWatch(*this, *state.release());
}

bool Loop::Called(WatchState& watch, std::uint32_t events) {
  if (watch.removed) return false;
  watch.calling = true;
  watch.callback(events);
  watch.calling = false;
  if (watch.forgotten) {
    delete &watch;
    return false;
  }
  return !watch.removed;
}

void Loop::Forget(WatchState& watch) {
  if (watch.calling) {
    watch.forgotten = true;
  } else {
    delete &watch;
  }
}

void Loop::Ended(IoOp& op, std::int64_t result) {
  CISTERN_ASSERT(op.in_flight_ && in_flight_ > 0);
  op.result_ = result;
  op.in_flight_ = false;
  --in_flight_;
  op.waiter_->Wake();
}

void Loop::Abandon(IoOp& op) {
  CISTERN_ASSERT(op.in_flight_ && in_flight_ > 0);
  op.in_flight_ = false;
  --in_flight_;
}

Result<File> Loop::Open(const std::string& path, OpenMode mode) {
  Result<int> fd = OpenFd(path, mode);
  if (!fd) return Error(std::move(fd.error()));
  File file(*this, *fd, path, {});
  if (mode == OpenMode::kDirect || mode == OpenMode::kDirectCreateNew) {
    Result<DirectLimits> limits = file.Direct();
    if (!limits) return Error(std::move(limits.error()));
    file.direct_ = *limits;
  }
  return file;
}

Status Loop::Lock(File& file) { return LockFd(file.fd_, file.path_); }

Status Loop::Preallocate(File& file, std::uint64_t size_bytes) {
  return PreallocateFd(file.fd_, file.path_, size_bytes);
}

Task<Status> Loop::SyncDirectory(std::string path) {
  Result<File> directory = Open(path, OpenMode::kRead);
  if (!directory) co_return std::move(directory.error());
  co_return co_await directory->Sync();
}

}  // namespace cistern::io
