// SPDX-License-Identifier: Apache-2.0
// The start of a node: what it stands on, then on the core's thread its parts, one on the other, until its
// door is open.
#include <unistd.h>

#include <algorithm>
#include <array>

#include "admin/pages.h"
#include "admin/status_text.h"
#include "base/units.h"
#include "memory/memory_nodes.h"
#include "memory/node_movers.h"
#include "memory/staging.h"
#include "node/client_rules.h"
#include "node/core.h"
#include "node/flash_options.h"
#include "node/kernel_random.h"
#include "residency/resizer.h"

namespace cistern::node {
namespace {

// Of each list in the status that a client of the socket asks for: it has to fit the session's area.
constexpr std::size_t kStatusRows = 128;

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

std::string PathsOf(const FlashPlaces& places) {
  return Joined(places.devices, ", ", &flash::FlashDeviceOptions::path);
}

}  // namespace

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

Result<std::unique_ptr<Node::Core>> Node::Core::Make(NodeOptions options) {
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
    if (core->ground_.file) core->ground_.file->GiveBack();
    return Error(status);
  }
  core->watch_.reset();
  return core;
}

Status Node::Core::Open() {
  Result<LogLevel> level = ParseLogLevel(options_.log_level);
  if (!level) return level.error();
  log_ = Logger::ToStderr(*level);
  watch_.emplace(*log_, "node start");
  NoteSlowCalls();
  watch_->NowDoing("opening what --memory-dir, --journal-dir and --flash name");
  // First of all: what is wrong with these is said before memory is reserved.
  if (Status status = OpenHttp(); !status.ok()) return status;
  return OpenGround(options_, clock_, *log_, ground_);
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

Status Node::Core::AwaitStart() {
  std::unique_lock lock(mutex_);
  started_.wait(lock, [&] { return start_status_.has_value(); });
  if (start_status_->ok()) return Status();
  lock.unlock();
  thread_.join();
  return *start_status_;
}

Task<Status> Node::Core::SetUp(Executor& executor) {
  Parts& parts = *parts_;
  parts.lanes = std::make_unique<server::Lanes>(executor);
  parts.tasks = std::make_unique<TaskGroup>(executor);
  parts.slots = std::make_unique<memory::Slots>(words_, ground_.file->arena(), ground_.file->plan());
  memory::ThreadMoversOptions movers;
  movers.threads = options_.movers;
  movers.poll_us = options_.poll_us;
  if (Status status = movers.Validate(); !status.ok()) co_return status;
  if (Status status = StartingThreads([&] { MakeMovers(movers); }); !status.ok()) co_return status;
  Status recovered = co_await RecoverStore();
  if (!recovered.ok()) co_return recovered;
  parts.flash_devices = std::make_unique<FlashDevices>(FlashDevices::Parts{
      executor, options_, ground_.places, ground_.claims, *parts.journal, parts.devices.get(), flash_});
  facts_.warm_us = clock_.Now().UsSince(started_at_);
  // Only now: what is recovered is in memory already, the rest can be touched beside the first calls.
  const auto no_more = [this](const Status& gone) {
    log_->Log(LogLevel::kWarning, "huge pages: memory gets no more of them: ", gone.message());
  };
  Status touching = StartingThreads(
      [&] { fault_in_ = std::make_unique<memory::FaultIn>(*ground_.file, parts.slots->headers(), no_more); });
  if (!touching.ok()) co_return touching;
  // Said before anybody asks what may be put here; it grows when it serves.
  SetMemory(ground_.file->asked_headers());
  if (!options_.cell.empty()) {
    Status joined = co_await JoinCell();
    if (!joined.ok()) co_return joined;
  }
  if (options_.on_serves) std::exchange(options_.on_serves, nullptr)();
  if (Status status = OpenDoor(); !status.ok()) co_return status;
  memory::ArenaBacking& backing =
      parts.registered ? *parts.registered : static_cast<memory::ArenaBacking&>(*ground_.file);
  parts.tasks->Spawn(parts.store->resizer().Run(backing, *parts.blocked));
  parts.own_files = WatchFiles();
  FillRegistry();
  log_->Log(LogLevel::kInfo, "node ready: ", MemoryText(), " in ", ground_.file->directory(), FlashText(),
            options_.socket.empty() ? "" : ", socket " + options_.socket,
            facts_.http.empty() ? "" : ", http " + facts_.http, ", ", ground_.loop->name(), ", ",
            parts.store->occupancy().records, " records warm",
            parts.store->tier() == nullptr ? "" : Text(" of ", parts.store->occupancy().blocks, " blocks"),
            " after ", DurationText(static_cast<std::uint64_t>(facts_.warm_us)));
  co_return Status();
}

void Node::Core::MakeMovers(const memory::ThreadMoversOptions& movers) {
  Parts& parts = *parts_;
  const auto done = [this](Work& job) { ground_.loop->PostRemote(job); };
  if (ground_.file->plan().near() == 1) {
    parts.movers = std::make_unique<memory::ThreadMovers>(words_, clock_, movers, done);
  } else {
    parts.movers = std::make_unique<memory::NodeMovers>(
        memory::NodeMovers::Parts{words_, clock_, ground_.file->arena(), ground_.file->plan(),
                                  ground_.file->nodes()},
        movers, done);
  }
  constexpr memory::ThreadMoversOptions kOneThread{.threads = 1, .poll_us = 0};
  parts.blocked = std::make_unique<memory::ThreadMovers>(words_, clock_, kOneThread, done);
  if (!ground_.places.devices.empty())
    parts.devices = std::make_unique<memory::ThreadMovers>(words_, clock_, kOneThread, done);
}

Task<Status> Node::Core::RecoverStore() {
  Parts& parts = *parts_;
  watch_->NowDoing("looking for its journal");
  Result<JournalPlace> journal =
      co_await FindJournal(*ground_.loop, ground_.file->directory(), ground_.places.journal_directory);
  if (!journal) co_return journal.error();
  journal_ = std::move(*journal);
  if (!journal_.note.empty()) log_->Log(LogLevel::kWarning, journal_.note);
  parts.journal = std::make_unique<catalog::Journal>(*ground_.loop, journal_.directory, RandomNumber());

  catalog::StoreOptions store = StoreOptionsOf(options_);
  store.max_lower_blocks = MaxLowerBlocks(ground_.places, ground_.file->arena().geometry().alignment);
  store::BlockStore::Parts below{executor(),    clock_,         words_, *parts.slots, ground_.file->index(),
                                 *parts.movers, *parts.journal, *log_,  nullptr,      &*slow_calls_};
  below.boot = &boot_;
  if (!ground_.places.devices.empty()) {
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
  flash.devices = ground_.places.devices;
  flash.unit = ground_.file->arena().geometry().alignment;
  flash.budget_bytes_a_day = options_.flash_budget_bytes_a_day;
  flash.discard_foreign = options_.discard_foreign;
  journal.missed_drops = journal_.missed_drops;
  const flash::FlashParts parts{*ground_.loop, *log_, RandomNumber,
                                [this](std::function<Status()> call) {
                                  return CallDevice(executor(), *parts_->devices, std::move(call));
                                },
                                [this](std::size_t device) { ground_.claims[device] = Fd(); }};
  watch_->NowDoing(Text("opening flash (", PathsOf(ground_.places), ")"));
  Result<std::unique_ptr<flash::FlashTier>> tier =
      co_await flash::FlashTier::Open(parts, flash, std::move(journal));
  if (!tier) co_return std::unexpected(std::move(tier.error()));
  // Flash is there, and the journal has not been written yet.
  if (Status status = LeaveObsoleteJournal(journal_); !status.ok()) {
    co_await (*tier)->Close();
    co_return Error(std::move(status));
  }
  watch_->NowDoing(Text("reading what memory and flash hold (", PathsOf(ground_.places), ")"));
  flash_ = tier->get();
  co_return std::unique_ptr<tier::Tier>(std::move(*tier));
}

Task<Status> Node::Core::JoinCell() {
  watch_->NowDoing(Text("joining its cell at ", Joined(options_.cell, ",")));
  const arena::Reader<arena::Words> reader(words_, ground_.file->arena(), ground_.file->index());
  auto cell = Cell::Start({*ground_.loop, *parts_->lanes, *parts_->store, clock_, reader,
                           LoopOptionsOf(options_), *log_, RandomNumber, boot_},
                          options_, ground_.cell_keys);
  if (!cell) co_return cell.error();
  parts_->cell = std::move(*cell);
  parts_->cell->SetMemory(std::uint64_t{wanted_headers_} * arena::kHeaderSpanBytes);
  parts_->store->drain().SetHandOver(&parts_->cell->hand_over());
  if (net::Libfabric* const fabric = parts_->cell->fabric(); fabric != nullptr) {
    Status registering = StartingThreads([&] {
      parts_->registered = std::make_unique<mesh::RegisteredArena>(
          mesh::RegisteredArena::Parts{*ground_.file, ground_.file->arena(), *fabric, *log_},
          parts_->store->resizer().served());
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
  const std::uint64_t memory_bytes = std::uint64_t{ground_.file->asked_headers()} * arena::kHeaderSpanBytes;
  server.staging_budget_bytes = facts_.staging_budget_bytes = memory_bytes / memory::kStagingFraction;
  server.max_sessions = server::MaxSessions(memory_bytes);
  const auto in_cell = [this]<class Call>(Call call) {
    return parts_->cell == nullptr ? nullptr : std::function(std::move(call));
  };
  Result<std::unique_ptr<server::Server>> opened = server::Server::Open(
      {*ground_.loop,
       *parts_->lanes,
       *parts_->store,
       *parts_->movers,
       *log_,
       ground_.file->arena_fd(),
       ground_.file->index_fd(),
       ground_.file->boot_count(),
       FillRandom,
       [this] { return admin::StatusTextInSteps(executor(), registry_, kStatusRows); },
       [this](std::string path, bool back) { return parts_->flash_devices->Change(std::move(path), back); },
       [this](std::uint64_t what, std::uint64_t from, std::size_t most_bytes) {
         return Report(what, from, most_bytes);
       },
       in_cell([this](const server::DropRequest& request) { return parts_->cell->Drop(request); }),
       [this](std::uint64_t bytes) { return Resize(bytes); },
       parts_->cell ? &parts_->cell->blocks() : nullptr,
       [this](const server::DrainRequest& request) { return Drain(request); },
       in_cell([this](const server::ChainQuestion& question) { return parts_->cell->Inquire(question); }),
       &*slow_calls_,
       NodeOfCall(),
       in_cell([this](const NamespaceSpec& spec, Instant deadline) {
         return parts_->cell->Agree(spec, deadline);
       }),
       in_cell([this](const NamespaceSpec& spec, bool attached, Instant deadline) {
         return parts_->cell->Agreed(spec, attached, deadline);
       })},
      server);
  if (!opened) return opened.error();
  parts_->server = std::move(*opened);
  return Status();
}

std::unique_ptr<OwnFiles> Node::Core::WatchFiles() {
  return std::make_unique<OwnFiles>(
      OwnFiles::Parts{.log = *log_,
                      .memory_directory = ground_.file->directory(),
                      .memory_lock = ground_.file->lock_fd(),
                      .journal = *parts_->journal,
                      .journal_directory = journal_.directory,
                      .journal_lock = ground_.journal_lock.fd(),
                      .socket = options_.socket,
                      .settle = [this] { parts_->tasks->Spawn(SettleJournal(executor())); }});
}

// What comes of it the journal says itself.
Task<void> Node::Core::SettleJournal(Executor&) { (void)co_await parts_->journal->Settle(); }

std::function<std::uint8_t(std::int32_t)> Node::Core::NodeOfCall() {
  if (ground_.file->plan().near() == 1) return nullptr;
  return [this](std::int32_t pid) {
    const std::optional<std::size_t> node = memory::NodeOfProcess(ground_.file->nodes(), pid);
    return node ? static_cast<memory::NodeIndex>(*node) : memory::kAnyNode;
  };
}

void Node::Core::FillRegistry() {
  facts_.tenant = options_.tenant;
  facts_.directory = ground_.file->directory();
  facts_.socket = options_.socket;
  facts_.loop = ground_.loop->name();
  facts_.copy = record::ChosenKernels().name;
  facts_.pid = static_cast<std::uint64_t>(getpid());
  facts_.boot_count = ground_.file->boot_count();
  facts_.journal = journal_.directory;
  facts_.budget_bytes_a_day = options_.flash_budget_bytes_a_day;
  const Parts& parts = *parts_;
  AddAllMetrics(registry_, {.facts = facts_,
                            .uptime_us = [this] { return clock_.Now().UsSince(started_at_); },
                            .sleeps = [this] { return ground_.loop->sleeps(); },
                            .prepared_bytes = [this] { return PreparedBytes(); },
                            .tick_late_ns = tick_late_ns_,
                            .step_ns = ground_.loop->step_ns(),
                            .slow_calls = &*slow_calls_,
                            .traces = traces_.get(),
                            .counters = parts.store->counters(),
                            .slots = parts.slots.get(),
                            .nodes = ground_.file->nodes(),
                            .store = parts.store.get(),
                            .server = parts.server.get(),
                            .journal = parts.journal.get(),
                            .own_files = parts.own_files.get(),
                            .has_flash = flash_ != nullptr,
                            .flash = flash_,
                            .has_cell = parts.cell != nullptr,
                            .cell = parts.cell ? parts.cell->counted() : mesh::CellParts()});
}

}  // namespace cistern::node
