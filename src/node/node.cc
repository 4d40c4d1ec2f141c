// SPDX-License-Identifier: Apache-2.0
#include "node/node.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "arena/words.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/format.h"
#include "base/log.h"
#include "base/task_group.h"
#include "base/units.h"
#include "door/door.h"
#include "io/loop.h"
#include "memory/arena_file.h"
#include "memory/movers.h"
#include "memory/slots.h"
#include "memory/staging.h"
#include "node/status.h"
#include "store/block_store.h"
#include "store/journal.h"

namespace cistern {
namespace {

// Leases and expiries are noticed within this; promise 4 allows a second.
constexpr std::int64_t kTickUs = 50'000;

LoopKind KindOf(std::string_view name) {
  if (name == "io_uring") return LoopKind::kUring;
  if (name == "epoll") return LoopKind::kEpoll;
  return LoopKind::kProbe;
}

void FillRandom(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t n = getrandom(bytes.data(), bytes.size(), 0);
    CISTERN_ASSERT(n > 0);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

std::uint64_t RandomNumber() {
  std::uint64_t number = 0;
  FillRandom(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

}  // namespace

// Made by Start's thread as far as it blocks, then run by the core's thread, which makes and ends what
// belongs to it. Members are in the order in which they stand on each other.
class Node::Core {
 public:
  static Result<std::unique_ptr<Core>> Make(NodeOptions options) {
    if (Status status = ResolveNodeOptions(options); !status.ok()) return Error(status);
    auto core = std::unique_ptr<Core>(new Core(std::move(options)));
    if (Status status = core->Open(); !status.ok()) return Error(status);
    core->thread_ = std::thread([raw = core.get()] { raw->Run(); });
    if (Status status = core->AwaitStart(); !status.ok()) return Error(status);
    return core;
  }

  ~Core() { Stop(0); }

  void Stop(std::int64_t drain_us) {
    if (!thread_.joinable()) return;
    drain_us_ = drain_us;
    loop_->Stop();
    thread_.join();
  }

  Result<Fd> ClientEnd() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return Error(Code::kIoError, Text("socketpair: ", ErrnoText(errno)));
    }
    loop_->PostRemote([this, inside = Fd(ends[0])]() mutable { parts_->door->Adopt(std::move(inside)); });
    return Fd(ends[1]);
  }

 private:
  // What lives on the core's thread.
  struct Parts {
    std::unique_ptr<Slots> slots;
    std::unique_ptr<ThreadMovers> movers;
    std::unique_ptr<Journal> journal;
    std::unique_ptr<BlockStore> store;
    std::unique_ptr<Door> door;
    std::unique_ptr<TaskGroup> tasks;
  };

  explicit Core(NodeOptions options) : options_(std::move(options)), started_at_(clock_.Now()) {}

  Status Open();
  Status AwaitStart();
  void Run();
  Task<Status> SetUp(Executor& executor);
  Task<void> Tick(Executor& executor);
  void NoteLingering(Instant now);
  Task<void> TearDown(Executor& executor);
  std::string StatusText();

  NodeOptions options_;
  SystemClock clock_;
  Instant started_at_;
  std::unique_ptr<Logger> log_;
  RealWords words_;
  std::optional<ArenaFile> file_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<FaultIn> fault_in_;
  std::optional<Parts> parts_;
  std::int64_t warm_us_ = 0;
  Instant alone_since_ = started_at_;  // when the last client was seen
  std::int64_t drain_us_ = 0;
  std::optional<CancelToken> stop_ticking_;  // while it serves

  std::mutex mutex_;
  std::condition_variable started_;
  std::optional<Status> start_status_;
  std::thread thread_;
};

Status Node::Core::Open() {
  Result<LogLevel> level = ParseLogLevel(options_.log_level);
  if (!level) return level.error();
  log_ = Logger::ToStderr(*level);

  ArenaOptions arena;
  arena.memory_dir = options_.memory_dir;
  arena.tenant = options_.tenant;
  arena.memory_bytes = options_.memory_bytes;
  arena.alignment = options_.alignment;
  Result<ArenaFile> file = ArenaFile::Open(arena, clock_);
  if (!file) return file.error();
  file_.emplace(std::move(*file));
  for (const std::string& note : file_->notes()) log_->Log(LogLevel::kWarning, note);

  LoopOptions loop;
  loop.kind = KindOf(options_.loop);
  loop.poll_us = options_.poll_us;
  Result<std::unique_ptr<Loop>> made = MakeLoop(clock_, loop);
  if (!made) return made.error();
  loop_ = std::move(*made);
  return loop_->HoldLock(file_->lock_fd());
}

Status Node::Core::AwaitStart() {
  std::unique_lock lock(mutex_);
  started_.wait(lock, [&] { return start_status_.has_value(); });
  if (start_status_->ok()) return Status();
  lock.unlock();
  thread_.join();
  return *start_status_;
}

void Node::Core::Run() {
  parts_.emplace();
  Status status = loop_->BlockOn(SetUp(loop_->executor()));
  {
    std::lock_guard lock(mutex_);
    start_status_ = status;
  }
  const bool ok = status.ok();
  started_.notify_one();
  if (ok) {
    file_->SetAlive(true);
    parts_->tasks->Spawn(Tick(loop_->executor()));
    loop_->Run();
  }
  loop_->BlockOn(TearDown(loop_->executor()));
  if (ok) file_->SetAlive(false);
  stop_ticking_.reset();
  parts_.reset();
}

Task<Status> Node::Core::SetUp(Executor& executor) {
  Parts& parts = *parts_;
  parts.tasks = std::make_unique<TaskGroup>(executor);
  stop_ticking_.emplace(executor);
  parts.slots = std::make_unique<Slots>(words_, file_->arena());
  ThreadMoversOptions movers;
  movers.threads = options_.movers;
  movers.poll_us = options_.poll_us;
  if (Status status = movers.Validate(); !status.ok()) co_return status;
  parts.movers =
      std::make_unique<ThreadMovers>(words_, clock_, movers, [this](Work& job) { loop_->PostRemote(job); });
  parts.journal = std::make_unique<Journal>(*loop_, file_->directory(), RandomNumber());

  BlockStoreOptions store;
  store.max_blocks = options_.max_blocks;
  parts.store =
      std::make_unique<BlockStore>(BlockStore::Parts{executor, clock_, words_, *parts.slots, file_->index(),
                                                     *parts.movers, *parts.journal, *log_},
                                   store);
  if (Status status = co_await parts.store->Recover(); !status.ok()) co_return status;
  warm_us_ = clock_.Now().UsSince(started_at_);
  // Only now: what is recovered is in memory already, the rest can be touched beside the first calls.
  fault_in_ = std::make_unique<FaultIn>(file_->arena());

  DoorOptions door;
  door.socket = options_.socket;
  door.tenant = options_.tenant;
  door.staging_budget_bytes = file_->arena().geometry().slots_bytes() / kStagingFraction;
  Result<std::unique_ptr<Door>> opened =
      Door::Open({*loop_, *parts.store, *log_, file_->arena_fd(), file_->index_fd(), file_->boot_count(),
                  FillRandom, [this] { return StatusText(); }},
                 door);
  if (!opened) co_return opened.error();
  parts.door = std::move(*opened);
  log_->Log(LogLevel::kInfo, "node ready: ", RoughSizeText(file_->arena().geometry().slots_bytes()), " in ",
            file_->directory(), options_.socket.empty() ? "" : ", socket " + options_.socket, ", ",
            loop_->name(), ", ", parts.store->occupancy().records, " records warm after ",
            DurationText(static_cast<std::uint64_t>(warm_us_)));
  co_return Status();
}

Task<void> Node::Core::Tick(Executor& executor) {
  while (true) {
    Status slept = co_await SleepUntil(executor.Now().PlusUs(kTickUs), *stop_ticking_);
    if (!slept.ok()) co_return;
    while (parts_->store->Tick()) co_await Yield();
    NoteLingering(executor.Now());
  }
}

void Node::Core::NoteLingering(Instant now) {
  if (options_.linger_us == 0 || !options_.on_lingered) return;
  if (parts_->door->counters().sessions > 0) {
    alone_since_ = now;
  } else if (now.UsSince(alone_since_) >= static_cast<std::int64_t>(options_.linger_us)) {
    log_->Log(LogLevel::kInfo, "node ends: no client for ", DurationText(options_.linger_us));
    std::exchange(options_.on_lingered, nullptr)();
  }
}

Task<void> Node::Core::TearDown(Executor& executor) {
  if (stop_ticking_) stop_ticking_->Cancel(Status(Code::kGone, "the node ends"));
  if (parts_->door) co_await parts_->door->Drain(executor.Now().PlusUs(drain_us_));
  co_await parts_->tasks->Close();
  fault_in_.reset();
}

std::string Node::Core::StatusText() {
  NodeFacts facts;
  facts.tenant = options_.tenant;
  facts.directory = file_->directory();
  facts.socket = options_.socket;
  facts.loop = loop_->name();
  facts.copy = BestKernels().name;
  facts.pid = static_cast<std::uint64_t>(getpid());
  facts.boot_count = file_->boot_count();
  facts.memory_bytes = file_->arena().geometry().slots_bytes();
  facts.uptime_us = clock_.Now().UsSince(started_at_);
  facts.warm_us = warm_us_;
  facts.loop_sleeps = loop_->sleeps();
  return StatusJson(facts, parts_->store->occupancy(), parts_->store->counters(), parts_->slots->counts(),
                    parts_->door->counters());
}

Node::Node(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Node::~Node() = default;

Result<std::unique_ptr<Node>> Node::Start(NodeOptions options) {
  Result<std::unique_ptr<Core>> core = Core::Make(std::move(options));
  if (!core) return Error(core.error());
  return std::unique_ptr<Node>(new Node(std::move(*core)));
}

void Node::Stop(std::int64_t drain_us) { core_->Stop(drain_us); }
Result<Fd> Node::ClientEnd() { return core_->ClientEnd(); }

}  // namespace cistern
