// SPDX-License-Identifier: Apache-2.0
#include "node/node.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "admin/heartbeat.h"
#include "admin/http_server.h"
#include "admin/pages.h"
#include "admin/status_text.h"
#include "admin/trace_sender.h"
#include "arena/protocol.h"
#include "arena/words.h"
#include "base/assert.h"
#include "base/boot_clock.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/format.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/metric_registry.h"
#include "base/slow_calls.h"
#include "base/task_group.h"
#include "base/units.h"
#include "catalog/journal.h"
#include "flash/flash_tier.h"
#include "io/loop.h"
#include "memory/arena_file.h"
#include "memory/directory_lock.h"
#include "memory/memory_nodes.h"
#include "memory/movers.h"
#include "memory/node_movers.h"
#include "memory/slots.h"
#include "memory/staging.h"
#include "mesh/registered_arena.h"
#include "node/cell.h"
#include "node/cell_options.h"
#include "node/client_rules.h"
#include "node/flash_options.h"
#include "node/flash_places.h"
#include "node/journal_place.h"
#include "node/kernel_random.h"
#include "node/lingering.h"
#include "node/node_metrics.h"
#include "node/reports.h"
#include "node/stage_watch.h"
#include "residency/resizer.h"
#include "server/server.h"
#include "store/block_store.h"
#include "store/drain.h"
#include "store/tick_until.h"
#include "wire/protocol.h"

namespace cistern::node {
namespace {

// Leases and expiries are noticed within this; promise 4 allows a second.
constexpr std::int64_t kTickUs = 50'000;
// Of each list in the status that a client of the socket asks for: it has to fit the session's area.
constexpr std::size_t kStatusRows = 128;
// Between two looks at what an end waits for.
constexpr std::int64_t kLookUs = 1'000'000;
// For etcd's answer that a member leaves; without it the membership lapses by itself.
constexpr std::int64_t kLeaveUs = 1'000'000;

io::LoopKind KindOf(std::string_view name) {
  if (name == "io_uring") return io::LoopKind::kUring;
  if (name == "epoll") return io::LoopKind::kEpoll;
  return io::LoopKind::kProbe;
}

io::LoopOptions LoopOptionsOf(const NodeOptions& options) {
  io::LoopOptions loop{.kind = KindOf(options.loop), .poll_us = options.poll_us};
  // Beside the devices' the journal has what a node without flash has.
  loop.max_io += static_cast<std::uint32_t>(options.flash.size()) * flash::MaxDeviceIo({});
  return loop;
}

// But for max_lower_blocks.
catalog::StoreOptions StoreOptionsOf(const NodeOptions& options) {
  catalog::StoreOptions store;
  store.max_blocks = options.max_blocks;
  store.eviction = options.eviction;
  store.eviction_time_ms = options.eviction_time_ms;
  store.lower = {
      .write = options.flash_write, .admit = options.flash_admit, .promote = options.flash_promote};
  store.read_ahead_bytes = options.flash_read_ahead_bytes;
  store.scrub_bytes_per_s = options.scrub_bytes_per_s;
  store.quotas = policy::QuotaTable(options.quotas);
  return store;
}

// By OpenTelemetry's names.
admin::TraceResource TraceResourceOf(const NodeOptions& options) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return {{"service.name", "cistern"},
          {"service.instance.id", Text(host.data(), ":", options.socket)},
          {"host.name", host.data()},
          {"process.pid", Text(static_cast<std::uint64_t>(getpid()))},
          {"cistern.tenant", options.tenant}};
}

// Where the system has no thread for what `start` starts, that is a start error.
template <class Start>
Status StartingThreads(Start start) {
  try {
    start();
    return Status();
  } catch (const std::system_error& error) {
    return Status(Code::kBusy, Text("a thread cannot be started: ", error.what(),
                                    "; raise the limit of processes (ulimit -u)"));
  }
}

std::string PathsOf(const FlashPlaces& places) {
  return Joined(places.devices, ", ", &flash::FlashDeviceOptions::path);
}

}  // namespace

// Made by Start's thread as far as it blocks, then run by the core's thread, which makes and ends what
// belongs to it. Members are in the order in which they stand on each other.
class Node::Core {
 public:
  static Result<std::unique_ptr<Core>> Make(NodeOptions options) {
    if (Status status = ResolveNodeOptions(options); !status.ok()) return Error(status);
    auto core = std::unique_ptr<Core>(new Core(std::move(options)));
    Status opened;
    Status status = StartingThreads([&] {
      opened = core->Open();
      if (opened.ok()) core->thread_ = std::thread([raw = core.get()] { raw->Run(); });
    });
    if (status.ok()) status = std::move(opened);
    if (status.ok()) status = core->AwaitStart();
    if (!status.ok()) {
      if (core->file_) core->file_->GiveBack();
      return Error(status);
    }
    core->watch_.reset();
    return core;
  }

  ~Core() { Stop(0); }

  void Stop(std::int64_t drain_us) {
    if (!thread_.joinable()) return;
    drain_us_ = drain_us;
    loop_->Stop();
    thread_.join();
  }

  Executor& executor() { return loop_->executor(); }  // for its tasks

  std::string http() const { return facts_.http; }
  Result<Reloaded> Reload(Result<NodeOptions> read);

  Result<Fd> ClientEnd() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return Error(Code::kIoError, Text("socketpair: ", ErrnoText(errno)));
    }
    loop_->PostRemote([this, inside = Fd(ends[0])]() mutable { parts_->server->Adopt(std::move(inside)); });
    return Fd(ends[1]);
  }

  std::optional<std::uint64_t> AcquireAtOnce(std::uint64_t session, std::uint32_t slot,
                                             std::uint64_t incarnation, std::span<const BlockRef> blocks,
                                             std::int64_t lease_us, std::span<wire::ViewItem> views) {
    const io::Visit visit(*loop_);
    if (!visit) return std::nullopt;
    return parts_->server->AcquireAtOnce(session, slot, incarnation, blocks, lease_us, views);
  }
  bool ReleaseAtOnce(std::uint64_t session, std::uint64_t lease) {
    const io::Visit visit(*loop_);
    if (visit) parts_->server->ReleaseAtOnce(session, lease);
    return static_cast<bool>(visit);
  }

 private:
  // What lives on the core's thread.
  struct Parts {
    std::unique_ptr<memory::Slots> slots;
    std::unique_ptr<memory::Movers> movers;
    std::unique_ptr<memory::ThreadMovers> blocked;  // what takes long and moves no bytes of clients
    std::unique_ptr<memory::ThreadMovers> devices;  // what a device may keep waiting; null: there is no flash
    std::unique_ptr<catalog::Journal> journal;
    std::unique_ptr<store::BlockStore> store;
    std::unique_ptr<Cell> cell;                         // null: the node is in none
    std::unique_ptr<mesh::RegisteredArena> registered;  // null: no device reads its memory
    std::unique_ptr<server::Server> server;
    std::unique_ptr<TaskGroup> tasks;
  };

  explicit Core(NodeOptions options) : options_(std::move(options)), started_at_(clock_.Now()) {}

  Status Open();
  Status OpenArena();
  Status AwaitStart();
  void Run();
  Task<Status> SetUp(Executor& executor);
  void MakeMovers(const memory::ThreadMoversOptions& movers);
  Task<Status> RecoverStore();
  Task<Result<std::unique_ptr<tier::Tier>>> OpenTier(tier::JournalView journal);
  Task<Status> JoinCell();
  Status OpenDoor();
  Status OpenHttp();
  void NoteSlowCalls();
  void FillRegistry();
  // Of the HTTP thread.
  bool AskForMetrics(std::function<void(MetricSnapshot)> done);
  Result<std::string> Ready() const;
  Task<void> ReadFor(Executor& executor, std::function<void(MetricSnapshot)> done);
  Task<void> Tick(Executor& executor);
  void NoteLingering(Instant now);
  void NoteLoss();
  void NoteRemoval();
  void EndItself(const Status& why);
  Task<void> TearDown(Executor& executor);
  Task<void> TellWhatIsAwaited(CancelToken& closed);
  // What memory has of what it is to have. From any thread, while it serves.
  std::string MemoryText() const;
  std::uint64_t PreparedBytes() const;
  std::string FlashText() const;
  // Takes a device of flash out of service or brings it back.
  Task<Status> ChangeDevice(std::string path, bool back);
  Task<Result<std::size_t>> FindDeviceBeside(std::string path);
  Task<Status> BringBack(std::size_t number);
  // Not on the core's thread.
  Task<Status> AwaitDevice(std::function<Status()> call);
  Task<Result<server::ReportPage>> Report(std::uint64_t what, std::uint64_t from, std::size_t most_bytes);
  // As ServerParts::drop: where the node is in a cell, the cell's.
  std::function<Task<Result<std::string>>(const server::ChainQuestion&)> InquireRoute();
  std::function<Task<Result<server::Dropped>>(const server::DropRequest&)> DropRoute();
  std::function<std::uint8_t(std::int32_t)> NodeOfCall();
  std::function<Task<Status>(const NamespaceSpec&, Instant)> AgreeRoute();
  std::function<Task<void>(const NamespaceSpec&, bool, Instant)> AgreedRoute();
  // As ServerParts::drain; the work of it.
  Task<Status> Drain(server::DrainRequest request);
  Task<void> DrainFor(Executor& executor, store::DrainOrder order, bool then_stop);
  // Sets memory on its way to that size.
  Task<Result<std::uint64_t>> Resize(std::uint64_t memory_bytes);
  // The headers that it is, if this arena and this host can have it; and on its way to these.
  Task<Result<std::uint32_t>> CheckMemory(std::uint64_t memory_bytes);
  void SetMemory(std::uint32_t headers);
  Task<void> ReloadFor(Executor& executor, NodeOptions read, std::promise<Result<Reloaded>>& done);
  Reloaded Apply(const NodeOptions& read);

  NodeOptions options_;
  FlashPlaces places_;
  std::vector<Fd> claims_;              // on devices, none on those that are files or out of service
  bool brings_back_ = false;            // one of them
  memory::DirectoryLock journal_lock_;  // where the journal has a directory of its own
  JournalPlace journal_;
  std::vector<net::CellKey> cell_keys_;
  SystemClock clock_;
  BootClock boot_;
  Instant started_at_;
  std::unique_ptr<Logger> log_;
  std::optional<StageWatch> watch_;  // until it serves
  std::optional<SlowCalls> slow_calls_;
  std::unique_ptr<admin::TraceSender> traces_;  // null: nobody takes them
  arena::RealWords words_;
  std::optional<memory::ArenaFile> file_;
  std::unique_ptr<io::Loop> loop_;
  std::unique_ptr<memory::FaultIn> fault_in_;
  std::optional<Parts> parts_;
  flash::FlashTier* flash_ = nullptr;  // the store's lower tier, from its opening on; null: memory is all
  NodeFacts facts_;
  MetricRegistry registry_;
  admin::Heartbeat heartbeat_;
  Histogram tick_late_ns_;
  enum class Stage : std::uint8_t { kStarts, kServes, kEnds };
  std::atomic<Stage> stage_{Stage::kStarts};
  std::atomic<bool> drains_{false};
  std::atomic<std::uint32_t> wanted_headers_{0};
  std::unique_ptr<admin::HttpServer> http_;
  Lingering lingering_{started_at_};
  bool lost_ = false;     // of its arena
  bool removed_ = false;  // its files were, from their directory
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
  watch_.emplace(*log_, "node start");
  NoteSlowCalls();
  watch_->NowDoing("opening what --memory-dir, --journal-dir and --flash name");

  // First of all: what is wrong with these is said before memory is reserved.
  if (Status status = OpenHttp(); !status.ok()) return status;
  Result<std::vector<net::CellKey>> keys = ReadCellKeys(options_);
  if (!keys) return keys.error();
  cell_keys_ = std::move(*keys);
  Result<FlashPlaces> places = FindFlashPlaces(options_);
  if (!places) return places.error();
  places_ = std::move(*places);
  if (Status status = CheckFlashQuotas(options_, places_); !status.ok()) return status;
  if (Status status = OpenArena(); !status.ok()) return status;
  if (!places_.journal_directory.empty()) {
    Result<memory::DirectoryLock> lock =
        memory::LockDirectory(places_.journal_directory, kLockWaitUs, clock_);
    if (!lock) return lock.error();
    journal_lock_ = std::move(*lock);
  }
  // After the locks: an earlier node of the same is gone by now.
  for (std::size_t i = 0; i < places_.devices.size(); ++i) {
    Result<Fd> claim = ClaimDevice(options_.flash[i], places_.devices[i]);
    if (!claim) return claim.error();
    claims_.push_back(std::move(*claim));
  }

  Result<std::unique_ptr<io::Loop>> made = io::MakeLoop(clock_, LoopOptionsOf(options_));
  if (!made) return made.error();
  loop_ = std::move(*made);
  if (Status status = loop_->HoldLock(file_->lock_fd()); !status.ok()) return status;
  return journal_lock_.fd() < 0 ? Status() : loop_->HoldLock(journal_lock_.fd());
}

void Node::Core::NoteSlowCalls() {
  slow_calls_.emplace(clock_, *log_);
  slow_calls_->SetBound(static_cast<std::int64_t>(options_.slow_calls_us));
  if (options_.otlp.empty()) return;
  traces_ = std::make_unique<admin::TraceSender>(options_.otlp, TraceResourceOf(options_), *log_);
  slow_calls_->ListenTo([this](const SlowCall& call) { traces_->Add(call); });
}

Status Node::Core::OpenHttp() {
  if (options_.http.empty()) return Status();
  Result<admin::HttpAddress> address = admin::ParseHttpAddress("http", options_.http);
  if (!address) return address.error();
  Result<std::unique_ptr<admin::HttpServer>> opened = admin::HttpServer::Open(
      *address, admin::MakePages({.registry = registry_,
                                  .read = [this](auto done) { return AskForMetrics(std::move(done)); },
                                  .alive = [this] { return heartbeat_.Check(clock_.Now()); },
                                  .ready = [this] { return Ready(); }}));
  if (!opened) return opened.error();
  http_ = std::move(*opened);
  facts_.http = http_->address().ToText();
  return Status();
}

Status Node::Core::OpenArena() {
  memory::ArenaOptions arena;
  arena.memory_dir = options_.memory_dir;
  arena.tenant = options_.tenant;
  arena.memory_bytes = options_.memory_bytes;
  arena.room_bytes = memory::kRoomShare * options_.memory_bytes;
  arena.first_bytes = memory::kFirstBytes;
  arena.alignment = options_.alignment;
  arena.huge_page_program = options_.huge_page_program;
  arena.nodes = memory::ArenaNodes(memory::AllowedNodes(memory::ReadMemoryNodes()));
  Result<memory::ArenaFile> file = memory::ArenaFile::Open(arena, clock_);
  if (!file) return file.error();
  file_.emplace(std::move(*file));
  for (const std::string& note : file_->notes()) log_->Log(LogLevel::kWarning, note);
  return Status();
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
    stage_ = Stage::kServes;
    loop_->Run();
  }
  stage_ = Stage::kEnds;
  loop_->BlockOn(TearDown(loop_->executor()));
  http_.reset();  // what it writes out is of the parts
  slow_calls_->ListenTo(nullptr);
  traces_.reset();
  if (ok) file_->SetAlive(false);
  stop_ticking_.reset();
  parts_.reset();
  flash_ = nullptr;
}

Task<Status> Node::Core::SetUp(Executor& executor) {
  Parts& parts = *parts_;
  parts.tasks = std::make_unique<TaskGroup>(executor);
  stop_ticking_.emplace(executor);
  parts.slots = std::make_unique<memory::Slots>(words_, file_->arena(), file_->plan());
  memory::ThreadMoversOptions movers;
  movers.threads = options_.movers;
  movers.poll_us = options_.poll_us;
  if (Status status = movers.Validate(); !status.ok()) co_return status;
  if (Status status = StartingThreads([&] { MakeMovers(movers); }); !status.ok()) co_return status;
  Status recovered = co_await RecoverStore();
  if (!recovered.ok()) co_return recovered;
  facts_.warm_us = clock_.Now().UsSince(started_at_);
  // Only now: what is recovered is in memory already, the rest can be touched beside the first calls.
  const auto no_more = [this](const Status& gone) {
    log_->Log(LogLevel::kWarning, "huge pages: memory gets no more of them: ", gone.message());
  };
  Status touching = StartingThreads(
      [&] { fault_in_ = std::make_unique<memory::FaultIn>(*file_, parts.slots->headers(), no_more); });
  if (!touching.ok()) co_return touching;
  // Said before anybody asks what may be put here; it grows when it serves.
  SetMemory(file_->asked_headers());
  if (!options_.cell.empty()) {
    Status joined = co_await JoinCell();
    if (!joined.ok()) co_return joined;
  }
  if (options_.on_serves) std::exchange(options_.on_serves, nullptr)();
  if (Status status = OpenDoor(); !status.ok()) co_return status;
  memory::ArenaBacking& backing =
      parts.registered ? *parts.registered : static_cast<memory::ArenaBacking&>(*file_);
  parts.tasks->Spawn(parts.store->resizer().Run(backing, *parts.blocked));
  FillRegistry();
  log_->Log(LogLevel::kInfo, "node ready: ", MemoryText(), " in ", file_->directory(), FlashText(),
            options_.socket.empty() ? "" : ", socket " + options_.socket,
            facts_.http.empty() ? "" : ", http " + facts_.http, ", ", loop_->name(), ", ",
            parts.store->occupancy().records, " records warm",
            parts.store->tier() == nullptr ? "" : Text(" of ", parts.store->occupancy().blocks, " blocks"),
            " after ", DurationText(static_cast<std::uint64_t>(facts_.warm_us)));
  co_return Status();
}

void Node::Core::MakeMovers(const memory::ThreadMoversOptions& movers) {
  Parts& parts = *parts_;
  const auto done = [this](Work& job) { loop_->PostRemote(job); };
  if (file_->plan().near() == 1) {
    parts.movers = std::make_unique<memory::ThreadMovers>(words_, clock_, movers, done);
  } else {
    parts.movers = std::make_unique<memory::NodeMovers>(
        memory::NodeMovers::Parts{words_, clock_, file_->arena(), file_->plan(), file_->nodes()}, movers,
        done);
  }
  constexpr memory::ThreadMoversOptions kOneThread{.threads = 1, .poll_us = 0};
  parts.blocked = std::make_unique<memory::ThreadMovers>(words_, clock_, kOneThread, done);
  if (!places_.devices.empty())
    parts.devices = std::make_unique<memory::ThreadMovers>(words_, clock_, kOneThread, done);
}

Task<Status> Node::Core::RecoverStore() {
  Parts& parts = *parts_;
  watch_->NowDoing("looking for its journal");
  Result<JournalPlace> journal = co_await FindJournal(*loop_, file_->directory(), places_.journal_directory);
  if (!journal) co_return journal.error();
  journal_ = std::move(*journal);
  if (!journal_.note.empty()) log_->Log(LogLevel::kWarning, journal_.note);
  parts.journal = std::make_unique<catalog::Journal>(*loop_, journal_.directory, RandomNumber());

  catalog::StoreOptions store = StoreOptionsOf(options_);
  store.max_lower_blocks = MaxLowerBlocks(places_, file_->arena().geometry().alignment);
  store::BlockStore::Parts below{executor(),    clock_,         words_, *parts.slots, file_->index(),
                                 *parts.movers, *parts.journal, *log_,  nullptr,      &*slow_calls_};
  below.boot = &boot_;
  if (!places_.devices.empty()) {
    below.open_tier = [this](tier::JournalView view) { return OpenTier(std::move(view)); };
  } else if (Status status = LeaveObsoleteJournal(journal_); !status.ok()) {
    co_return status;
  }
  parts.store = std::make_unique<store::BlockStore>(below, store);
  watch_->NowDoing(Text("reading the journal in ", journal_.directory));
  Status recovered = co_await parts.store->Recover();
  const std::uint64_t refused = parts.store->counters().recovery_refused.value();
  if (recovered.ok() && journal_.fresh && refused > 0) {
    log_->Log(
        LogLevel::kWarning, "journal: there was none in ", journal_.directory, ", so ", refused,
        " records that memory held were not believed; a node with flash keeps it there: start with the same "
        "--flash or --journal-dir");
  }
  co_return recovered;
}

Task<Result<std::unique_ptr<tier::Tier>>> Node::Core::OpenTier(tier::JournalView journal) {
  flash::FlashOptions flash;
  flash.devices = places_.devices;
  flash.unit = file_->arena().geometry().alignment;
  flash.budget_bytes_a_day = options_.flash_budget_bytes_a_day;
  flash.discard_foreign = options_.discard_foreign;
  journal.missed_drops = journal_.missed_drops;
  const flash::FlashTier::Parts parts{
      *loop_, *log_, RandomNumber,
      [this](std::function<Status()> call) { return AwaitDevice(std::move(call)); },
      [this](std::size_t device) { claims_[device] = Fd(); }};
  watch_->NowDoing(Text("opening flash (", PathsOf(places_), ")"));
  Result<std::unique_ptr<flash::FlashTier>> tier =
      co_await flash::FlashTier::Open(parts, flash, std::move(journal));
  if (!tier) co_return std::unexpected(std::move(tier.error()));
  // Flash is there, and the journal has not been written yet.
  if (Status status = LeaveObsoleteJournal(journal_); !status.ok()) {
    co_await (*tier)->Close();
    co_return Error(std::move(status));
  }
  watch_->NowDoing(Text("reading what memory and flash hold (", PathsOf(places_), ")"));
  flash_ = tier->get();
  co_return std::unique_ptr<tier::Tier>(std::move(*tier));
}

Task<Status> Node::Core::JoinCell() {
  watch_->NowDoing(Text("joining its cell at ", Joined(options_.cell, ",")));
  const arena::Reader<arena::Words> reader(words_, file_->arena(), file_->index());
  auto cell = Cell::Start(
      {*loop_, *parts_->store, clock_, reader, LoopOptionsOf(options_), *log_, RandomNumber, boot_}, options_,
      cell_keys_);
  if (!cell) co_return cell.error();
  parts_->cell = std::move(*cell);
  parts_->cell->SetMemory(std::uint64_t{wanted_headers_} * arena::kHeaderSpanBytes);
  parts_->store->drain().SetHandOver(&parts_->cell->hand_over());
  if (net::Libfabric* const fabric = parts_->cell->fabric(); fabric != nullptr) {
    Status registering = StartingThreads([&] {
      parts_->registered = std::make_unique<mesh::RegisteredArena>(
          mesh::RegisteredArena::Parts{*file_, file_->arena(), *fabric}, parts_->store->resizer().served());
    });
    if (!registering.ok()) co_return registering;
  }
  co_return co_await parts_->cell->AwaitJoin(clock_.Now().PlusUs(Cell::kJoinUs));
}

Status Node::Core::OpenDoor() {
  server::ServerOptions server;
  server.socket = options_.socket;
  server.tenant = options_.tenant;
  server.peers = PeerRulesOf(options_.clients);
  const std::uint64_t memory_bytes = std::uint64_t{file_->asked_headers()} * arena::kHeaderSpanBytes;
  server.staging_budget_bytes = facts_.staging_budget_bytes = memory_bytes / memory::kStagingFraction;
  server.max_sessions = server::MaxSessions(memory_bytes);
  Result<std::unique_ptr<server::Server>> opened = server::Server::Open(
      {*loop_,
       *parts_->store,
       *parts_->movers,
       *log_,
       file_->arena_fd(),
       file_->index_fd(),
       file_->boot_count(),
       FillRandom,
       [this] { return admin::StatusTextInSteps(executor(), registry_, kStatusRows); },
       [this](std::string path, bool back) { return ChangeDevice(std::move(path), back); },
       [this](std::uint64_t what, std::uint64_t from, std::size_t most_bytes) {
         return Report(what, from, most_bytes);
       },
       DropRoute(),
       [this](std::uint64_t bytes) { return Resize(bytes); },
       parts_->cell ? &parts_->cell->blocks() : nullptr,
       [this](const server::DrainRequest& request) { return Drain(request); },
       InquireRoute(),
       &*slow_calls_,
       NodeOfCall(),
       AgreeRoute(),
       AgreedRoute()},
      server);
  if (!opened) return opened.error();
  parts_->server = std::move(*opened);
  return Status();
}

std::function<std::uint8_t(std::int32_t)> Node::Core::NodeOfCall() {
  if (file_->plan().near() == 1) return nullptr;
  return [this](std::int32_t pid) {
    const std::optional<std::size_t> node = memory::NodeOfProcess(file_->nodes(), pid);
    return node ? static_cast<memory::NodeIndex>(*node) : memory::kAnyNode;
  };
}

std::function<Task<Result<server::Dropped>>(const server::DropRequest&)> Node::Core::DropRoute() {
  if (parts_->cell == nullptr) return nullptr;
  return [this](const server::DropRequest& request) { return parts_->cell->Drop(request); };
}

std::function<Task<Status>(const NamespaceSpec&, Instant)> Node::Core::AgreeRoute() {
  if (parts_->cell == nullptr) return nullptr;
  return [this](const NamespaceSpec& spec, Instant deadline) { return parts_->cell->Agree(spec, deadline); };
}

std::function<Task<void>(const NamespaceSpec&, bool, Instant)> Node::Core::AgreedRoute() {
  if (parts_->cell == nullptr) return nullptr;
  return [this](const NamespaceSpec& spec, bool attached, Instant deadline) {
    return parts_->cell->Agreed(spec, attached, deadline);
  };
}

std::function<Task<Result<std::string>>(const server::ChainQuestion&)> Node::Core::InquireRoute() {
  if (parts_->cell == nullptr) return nullptr;
  return [this](const server::ChainQuestion& question) { return parts_->cell->Inquire(question); };
}

std::string Node::Core::FlashText() const {
  return flash_ == nullptr ? std::string() : Text(", ", RoughSizeText(flash_->capacity_bytes()), " of flash");
}

std::uint64_t Node::Core::PreparedBytes() const {
  const std::uint64_t improved = parts_->store->resizer().improved();
  const std::uint64_t left = fault_in_ == nullptr ? 0 : fault_in_->headers_left();
  return (improved - std::min(left, improved)) * arena::kHeaderSpanBytes;
}

std::string Node::Core::MemoryText() const {
  arena::RealWords words;
  const std::uint64_t has = arena::ServedHeaders(words, file_->arena()), wanted = wanted_headers_;
  const std::string size = RoughSizeText(has * arena::kHeaderSpanBytes);
  return has >= wanted ? size : Text(size, " of ", RoughSizeText(wanted * arena::kHeaderSpanBytes));
}

Task<Status> Node::Core::ChangeDevice(std::string path, bool back) {
  std::optional<std::size_t> number = DeviceNamed(options_, places_, path);
  if (!number) {
    Result<std::size_t> found = co_await FindDeviceBeside(std::move(path));
    if (!found) co_return found.error();
    number = *found;
  }
  if (!back) co_return flash_->TakeOut(places_.devices[*number].path);
  if (brings_back_)
    co_return Status(Code::kBusy, "flash: a device is being brought back; try again when that has ended");
  brings_back_ = true;
  Status status = co_await BringBack(*number);
  brings_back_ = false;
  co_return status;
}

Task<Result<std::size_t>> Node::Core::FindDeviceBeside(std::string path) {
  Result<std::size_t> found = Error(Code::kMiss, "");
  if (places_.devices.empty()) co_return FindDevice(options_, places_, path);
  // A reload may change the node's options meanwhile.
  const NodeOptions options = options_;
  (void)co_await AwaitDevice([&] {
    found = FindDevice(options, places_, path);
    return Status();
  });
  co_return found;
}

Task<Status> Node::Core::BringBack(std::size_t number) {
  const flash::FlashDeviceOptions& device = places_.devices[number];
  if (flash_->devices()[number].in_service) co_return co_await flash_->BringBack(device.path);  // says so
  // Another one may be there by now.
  claims_[number] = Fd();
  const FlashVolume volume = options_.flash[number];
  Result<Fd> claim = Fd();
  (void)co_await AwaitDevice([&] {
    claim = ClaimDevice(volume, device);
    return Status();
  });
  if (!claim) co_return claim.error();
  claims_[number] = std::move(*claim);
  Status brought = co_await flash_->BringBack(device.path);
  if (!brought.ok()) {
    if (!flash_->devices()[number].in_service) claims_[number] = Fd();
    co_return brought;
  }
  // So that a restart believes what will be on it.
  co_return co_await parts_->journal->PutDevices(flash_->media_ids());
}

Task<Status> Node::Core::AwaitDevice(std::function<Status()> call) {
  memory::CallJob job(*parts_->devices, std::move(call));
  co_return co_await job;
}

Task<Result<server::ReportPage>> Node::Core::Report(std::uint64_t what, std::uint64_t from,
                                                    std::size_t most_bytes) {
  if (what == wire::kConfigurationList)
    co_return server::ReportPage{SettingsText(options_), wire::kReportEnds};
  if (what == wire::kCellList) {
    if (parts_->cell == nullptr)
      co_return Error(Code::kMiss, "cell: this node is in none; start it with --cell (docs/cell.md)");
    co_return MembersPage(parts_->cell->member(), parts_->cell->sharing(), from, executor().Now());
  }
  // A list that goes on is of one walk.
  store::Survey::Uses uses = from == 0 ? nullptr : parts_->store->last_survey();
  if (uses == nullptr) uses = co_await parts_->store->SurveyNamespaces();
  co_return co_await NamespacesPage(executor(), std::move(uses), from, most_bytes);
}

Result<Reloaded> Node::Core::Reload(Result<NodeOptions> read) {
  Status status = read ? ResolveNodeOptions(*read) : read.error();
  Result<Reloaded> reloaded = Error(status);
  if (status.ok()) {
    std::promise<Result<Reloaded>> applied;
    loop_->PostRemote(
        [this, &applied, &read] { parts_->tasks->Spawn(ReloadFor(executor(), std::move(*read), applied)); });
    reloaded = applied.get_future().get();
  }
  if (!reloaded)
    log_->Log(LogLevel::kError, "reload refused, the settings stay: ", reloaded.error().message());
  return reloaded;
}

// What may be refused comes first.
Task<void> Node::Core::ReloadFor(Executor&, NodeOptions read, std::promise<Result<Reloaded>>& done) {
  if (Status status = CheckFlashQuotas(read, places_); !status.ok()) {
    done.set_value(Error(std::move(status)));
    co_return;
  }
  if (read.memory_bytes != options_.memory_bytes) {
    const Result<std::uint32_t> headers = co_await CheckMemory(read.memory_bytes);
    if (!headers) {
      done.set_value(Error(headers.error()));
      co_return;
    }
    SetMemory(*headers);
  }
  done.set_value(Apply(read));
}

Task<Result<std::uint64_t>> Node::Core::Resize(std::uint64_t memory_bytes) {
  if (Status status = CheckMemoryBytes(options_, memory_bytes); !status.ok()) co_return Error(status);
  const Result<std::uint32_t> headers = co_await CheckMemory(memory_bytes);
  if (!headers) co_return Error(headers.error());
  // A reload may have brought other reserves meanwhile.
  if (Status status = CheckMemoryBytes(options_, memory_bytes); !status.ok()) co_return Error(status);
  SetMemory(*headers);
  options_.memory_bytes = memory_bytes;
  options_.origins["memory"] = "cistern admin memory";
  co_return std::uint64_t{*headers} * arena::kHeaderSpanBytes;
}

Task<Status> Node::Core::Drain(server::DrainRequest request) {
  if (request.then_stop && !options_.on_ends)
    co_return Status(Code::kInvalid,
                     "drain: this node is a part of another program, which ends it; drain it without --stop");
  if (request.lower_tier_goes && parts_->cell == nullptr)
    co_return Status(
        Code::kInvalid,
        "drain: a node that leaves hands its flash over to its cell, and this one is in none; what "
        "flash has stays there, so drain it for reboot");
  drains_ = request.on;
  if (request.on) {
    const store::DrainOrder order{.memory_goes = request.memory_goes,
                                  .lower_tier_goes = request.lower_tier_goes,
                                  .deadline = request.deadline};
    parts_->tasks->Spawn(DrainFor(executor(), order, request.then_stop));
  } else {
    co_await parts_->store->drain().End();
  }
  co_return Status();
}

Task<void> Node::Core::DrainFor(Executor&, store::DrainOrder order, bool then_stop) {
  const bool drained = co_await parts_->store->drain().Run(order);
  if (drained && then_stop) EndItself(Status());
}

Task<Result<std::uint32_t>> Node::Core::CheckMemory(std::uint64_t memory_bytes) {
  const Result<std::uint32_t> headers = file_->HeadersOf(memory_bytes);
  if (!headers) co_return Error(headers.error());
  const std::uint32_t served = parts_->store->resizer().served();
  memory::CallJob check(*parts_->blocked,
                        [this, served, &headers] { return file_->CheckGrowth(served, *headers); });
  Status fits = co_await check;
  if (!fits.ok()) co_return Error(std::move(fits));
  fits = co_await parts_->store->CheckHeaders(*headers);
  if (!fits.ok()) co_return Error(std::move(fits));
  co_return *headers;
}

void Node::Core::SetMemory(std::uint32_t headers) {
  fault_in_->EndAt(headers);
  wanted_headers_ = headers;
  parts_->store->resizer().Want(headers);
  if (parts_->cell) parts_->cell->SetMemory(std::uint64_t{headers} * arena::kHeaderSpanBytes);
}

Reloaded Node::Core::Apply(const NodeOptions& read) {
  Reloaded reloaded = node::Reload(options_, read);
  const bool budget = reloaded.options.flash_budget_bytes_a_day != options_.flash_budget_bytes_a_day;
  options_ = reloaded.options;
  if (const Result<LogLevel> level = ParseLogLevel(options_.log_level)) log_->SetLevel(*level);
  slow_calls_->SetBound(static_cast<std::int64_t>(options_.slow_calls_us));
  parts_->store->SetOptions(StoreOptionsOf(options_));
  if (parts_->cell) parts_->cell->SetCopies(options_.cell_copies);
  if (flash_ != nullptr && budget) flash_->SetBudget(options_.flash_budget_bytes_a_day);
  facts_.budget_bytes_a_day = options_.flash_budget_bytes_a_day;
  for (const std::string& changed : reloaded.changed) log_->Log(LogLevel::kInfo, "reload: ", changed);
  for (const std::string& kept : reloaded.kept) log_->Log(LogLevel::kWarning, "reload: ", kept);
  if (reloaded.changed.empty()) log_->Log(LogLevel::kInfo, "reload: nothing has changed");
  return reloaded;
}

Task<void> Node::Core::Tick(Executor& executor) {
  for (bool more = false;;) {
    const Instant due = executor.Now().PlusUs(more ? 0 : kTickUs);
    Status slept = co_await SleepUntil(due, *stop_ticking_);
    if (!slept.ok()) co_return;
    const Instant now = executor.Now();
    tick_late_ns_.Record(static_cast<std::uint64_t>(std::max<std::int64_t>(now.NsSince(due), 0)));
    heartbeat_.Beat(now);
    parts_->server->Tick();
    more = co_await store::TickUntil(executor, *parts_->store, executor.Now().PlusUs(kTickUs));
    if (parts_->cell) parts_->cell->NoteChanges();
    NoteLoss();
    NoteRemoval();
    NoteLingering(executor.Now());
  }
}

void Node::Core::EndItself(const Status& why) {
  if (options_.on_ends) std::exchange(options_.on_ends, nullptr)(why);
}

void Node::Core::NoteLoss() {
  if (lost_ || !file_->lost()) return;
  lost_ = true;
  // Clients find nothing there from now on, and a successor begins with new files.
  file_->SetAlive(false);
  file_->Discard();
  const Status why(
      Code::kIoError,
      Text(
          "arena in ", file_->directory(),
          " was cut short by another process, or its memory failed: what memory held is lost, the node ends; "
          "start it again, and let no other program write there"));
  log_->Log(LogLevel::kError, why.message());
  EndItself(why);
}

// Its files are there as long as it has them open, so who is connected notices nothing.
void Node::Core::NoteRemoval() {
  struct stat lock;
  if (removed_ || ::fstat(file_->lock_fd(), &lock) != 0 || lock.st_nlink > 0) return;
  removed_ = true;
  log_->Log(
      LogLevel::kError, "memory_dir: the files in ", file_->directory(),
      " were removed by another program, as logind does after a user's last logout (cistern doctor): this "
      "node goes on for its clients, the next one finds nothing of its memory");
}

void Node::Core::NoteLingering(Instant now) {
  if (!lingering_.IsOver(now, parts_->server->empty(), options_.linger_us) || !options_.on_ends) return;
  log_->Log(LogLevel::kInfo, "node ends: no client for ", DurationText(options_.linger_us));
  // In this step: the end comes when another thread has its turn, and who came in until then would have a
  // node that goes.
  parts_->server->CloseDoor();
  EndItself(Status());
}

Task<void> Node::Core::TearDown(Executor& executor) {
  if (stop_ticking_) stop_ticking_->Cancel(Status(Code::kGone, "the node ends"));
  if (parts_->cell) {
    parts_->cell->EndDrops();
    parts_->cell->EndReads();
  }
  if (parts_->store) {
    parts_->store->resizer().Stop();
    parts_->store->drain().Stop();
  }
  // What grows waits for it.
  if (memory::HugePageProcess* process = file_->huge_page_process()) process->End();
  if (parts_->server) co_await parts_->server->Drain(executor.Now().PlusUs(drain_us_));
  co_await parts_->tasks->Close();
  parts_->registered.reset();
  if (parts_->cell) co_await parts_->cell->Leave(kLeaveUs);
  if (parts_->store) {
    CancelToken closed(executor);
    Task<void> telling = TellWhatIsAwaited(closed);
    co_await parts_->store->Close();
    closed.Cancel(Status(Code::kGone, "the store is closed"));
    co_await telling;
  }
  fault_in_.reset();
}

// What a device has may still land in memory (R6).
Task<void> Node::Core::TellWhatIsAwaited(CancelToken& closed) {
  if (flash_ == nullptr) co_return;
  std::optional<StageWatch> watch;
  if (!StartingThreads([&] { watch.emplace(*log_, "node end"); }).ok()) co_return;
  for (;;) {
    std::vector<flash::FlashDeviceState> busy = flash_->devices();
    std::erase_if(busy, [](const flash::FlashDeviceState& device) { return device.in_flight == 0; });
    watch->NowDoing(
        Text("waiting for transfers of flash (", Joined(busy, ", ", &flash::FlashDeviceState::path), ")"));
    const Status slept = co_await SleepUntil(clock_.Now().PlusUs(kLookUs), closed);
    if (!slept.ok()) co_return;
  }
}

void Node::Core::FillRegistry() {
  facts_.tenant = options_.tenant;
  facts_.directory = file_->directory();
  facts_.socket = options_.socket;
  facts_.loop = loop_->name();
  facts_.copy = record::ChosenKernels().name;
  facts_.pid = static_cast<std::uint64_t>(getpid());
  facts_.boot_count = file_->boot_count();
  facts_.journal = journal_.directory;
  facts_.budget_bytes_a_day = options_.flash_budget_bytes_a_day;
  const Parts& parts = *parts_;
  AddAllMetrics(registry_, {.facts = facts_,
                            .uptime_us = [this] { return clock_.Now().UsSince(started_at_); },
                            .sleeps = [this] { return loop_->sleeps(); },
                            .prepared_bytes = [this] { return PreparedBytes(); },
                            .tick_late_ns = tick_late_ns_,
                            .step_ns = loop_->step_ns(),
                            .slow_calls = &*slow_calls_,
                            .traces = traces_.get(),
                            .counters = parts.store->counters(),
                            .slots = parts.slots.get(),
                            .nodes = file_->nodes(),
                            .store = parts.store.get(),
                            .server = parts.server.get(),
                            .has_flash = flash_ != nullptr,
                            .flash = flash_,
                            .has_cell = parts.cell != nullptr,
                            .cell = parts.cell ? parts.cell->counted() : mesh::CellParts()});
}

bool Node::Core::AskForMetrics(std::function<void(MetricSnapshot)> done) {
  if (stage_ != Stage::kServes) return false;
  loop_->PostRemote([this, done = std::move(done)]() mutable {
    if (stage_ == Stage::kServes) parts_->tasks->Spawn(ReadFor(executor(), std::move(done)));
  });
  return true;
}

Task<void> Node::Core::ReadFor(Executor& runs_on, std::function<void(MetricSnapshot)> done) {
  done(co_await ReadMetrics(runs_on, registry_));
}

Result<std::string> Node::Core::Ready() const {
  switch (stage_.load()) {
    case Stage::kStarts: return Error(Code::kBusy, "the node starts: it looks for what was there");
    case Stage::kEnds: return Error(Code::kGone, "the node ends");
    case Stage::kServes: break;
  }
  if (drains_)
    return Error(Code::kBusy,
                 "the node drains, or has: it takes no puts; `cistern admin drain off` undoes it");
  if (Status alive = heartbeat_.Check(clock_.Now()); !alive.ok()) return Error(std::move(alive));
  return Text("ready: memory has ", MemoryText());
}

Node::Node(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Node::~Node() = default;

Result<std::unique_ptr<Node>> Node::Start(NodeOptions options) {
  Result<std::unique_ptr<Core>> core = Core::Make(std::move(options));
  if (!core) return Error(core.error());
  return std::unique_ptr<Node>(new Node(std::move(*core)));
}

void Node::Stop(std::int64_t drain_us) { core_->Stop(drain_us); }
std::string Node::http() const { return core_->http(); }
Result<Reloaded> Node::Reload(Result<NodeOptions> read) { return core_->Reload(std::move(read)); }
Result<Fd> Node::ClientEnd() { return core_->ClientEnd(); }
std::optional<std::uint64_t> Node::AcquireAtOnce(std::uint64_t session, std::uint32_t slot,
                                                 std::uint64_t incarnation, std::span<const BlockRef> blocks,
                                                 std::int64_t lease_us, std::span<wire::ViewItem> views) {
  return core_->AcquireAtOnce(session, slot, incarnation, blocks, lease_us, views);
}
bool Node::ReleaseAtOnce(std::uint64_t session, std::uint64_t lease) {
  return core_->ReleaseAtOnce(session, lease);
}

}  // namespace cistern::node
