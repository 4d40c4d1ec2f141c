// SPDX-License-Identifier: Apache-2.0
#include "node/node.h"

#include <sys/socket.h>

#include <algorithm>

#include "arena/protocol.h"
#include "base/units.h"
#include "node/core.h"
#include "node/reports.h"
#include "residency/resizer.h"
#include "store/tick_until.h"

namespace cistern::node {
namespace {

// Leases and expiries are noticed within this; promise 4 allows a second.
constexpr std::int64_t kTickUs = 50'000;
// Between two looks at what an end waits for.
constexpr std::int64_t kLookUs = 1'000'000;
// For etcd's answer that a member leaves; without it the membership lapses by itself.
constexpr std::int64_t kLeaveUs = 1'000'000;

}  // namespace

void Node::Core::Run() {
  parts_.emplace();
  Status status = ground_.loop->BlockOn(SetUp(ground_.loop->executor()));
  {
    std::lock_guard lock(mutex_);
    start_status_ = status;
  }
  const bool ok = status.ok();
  started_.notify_one();
  if (ok) {
    ground_.file->SetAlive(true);
    parts_->tasks->Spawn(Tick(ground_.loop->executor()));
    stage_ = Stage::kServes;
    ground_.loop->Run();
  }
  stage_ = Stage::kEnds;
  ground_.loop->BlockOn(TearDown(ground_.loop->executor()));
  http_.reset();  // what it writes out is of the parts
  slow_calls_->ListenTo(nullptr);
  traces_.reset();
  if (ok) ground_.file->SetAlive(false);
  parts_.reset();
  flash_ = nullptr;
}

Result<Fd> Node::Core::ClientEnd() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return Error(Code::kIoError, Text("socketpair: ", ErrnoText(errno)));
  }
  ground_.loop->PostRemote(
      [this, inside = Fd(ends[0])]() mutable { parts_->server->Adopt(std::move(inside)); });
  return Fd(ends[1]);
}

std::optional<std::uint64_t> Node::Core::AcquireAtOnce(std::uint64_t session, std::uint32_t slot,
                                                       std::uint64_t incarnation,
                                                       std::span<const BlockRef> blocks,
                                                       std::int64_t lease_us,
                                                       std::span<wire::ViewItem> views) {
  const io::Visit visit(*ground_.loop);
  if (!visit) return std::nullopt;
  return parts_->server->AcquireAtOnce(session, slot, incarnation, blocks, lease_us, views);
}

bool Node::Core::ReleaseAtOnce(std::uint64_t session, std::uint64_t lease) {
  const io::Visit visit(*ground_.loop);
  if (visit) parts_->server->ReleaseAtOnce(session, lease);
  return static_cast<bool>(visit);
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
  const std::uint64_t has = arena::ServedHeaders(words, ground_.file->arena()), wanted = wanted_headers_;
  const std::string size = RoughSizeText(has * arena::kHeaderSpanBytes);
  return has >= wanted ? size : Text(size, " of ", RoughSizeText(wanted * arena::kHeaderSpanBytes));
}

Task<Result<server::ReportPage>> Node::Core::Report(std::uint64_t what, std::uint64_t from,
                                                    std::size_t most_bytes) {
  if (what == wire::kConfigurationList)
    co_return server::ReportPage{SettingsText(options_), wire::kReportEnds};
  if (what == wire::kCellList) {
    if (parts_->cell == nullptr)
      co_return Error(Code::kMiss, "cell: this node is in none; start it with --cell (docs/cell.md)");
    co_return MembersPage(parts_->cell->member(), parts_->cell->sharing(), parts_->cell->rails(), from,
                          executor().Now());
  }
  // A list that goes on is of one walk.
  store::Survey::Uses uses = from == 0 ? nullptr : parts_->store->survey().last();
  if (uses == nullptr) uses = co_await parts_->store->survey().Take();
  co_return co_await NamespacesPage(executor(), std::move(uses), from, most_bytes);
}

Result<Reloaded> Node::Core::Reload(Result<NodeOptions> read) {
  Status status = read ? ResolveNodeOptions(*read) : read.error();
  Result<Reloaded> reloaded = Error(status);
  if (status.ok()) {
    std::promise<Result<Reloaded>> applied;
    ground_.loop->PostRemote(
        [this, &applied, &read] { parts_->tasks->Spawn(ReloadFor(executor(), std::move(*read), applied)); });
    reloaded = applied.get_future().get();
  }
  if (!reloaded)
    log_->Log(LogLevel::kError, "reload refused, the settings stay: ", reloaded.error().message());
  return reloaded;
}

// What may be refused comes first.
Task<void> Node::Core::ReloadFor(Executor&, NodeOptions read, std::promise<Result<Reloaded>>& done) {
  if (Status status = CheckFlashQuotas(read, ground_.places); !status.ok()) {
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
  const Result<std::uint32_t> headers = ground_.file->HeadersOf(memory_bytes);
  if (!headers) co_return Error(headers.error());
  const std::uint32_t served = parts_->store->resizer().served();
  memory::CallJob check(*parts_->blocked,
                        [this, served, &headers] { return ground_.file->CheckGrowth(served, *headers); });
  Status fits = co_await check;
  if (!fits.ok()) co_return Error(std::move(fits));
  fits = co_await parts_->store->namespaces().CheckHeaders(*headers);
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
  if (reloaded.changed.empty() && reloaded.kept.empty())
    log_->Log(LogLevel::kInfo, "reload: nothing has changed");
  return reloaded;
}

Task<void> Node::Core::Tick(Executor& executor) {
  for (bool more = false;;) {
    const Instant due = executor.Now().PlusUs(more ? 0 : kTickUs);
    (void)co_await stop_ticking_.Wait(due);
    if (stop_ticking_.is_set()) co_return;
    const Instant now = executor.Now();
    tick_late_ns_.Record(static_cast<std::uint64_t>(std::max<std::int64_t>(now.NsSince(due), 0)));
    heartbeat_.Beat(now);
    parts_->server->Tick();
    more = co_await store::TickUntil(executor, *parts_->store, executor.Now().PlusUs(kTickUs));
    if (parts_->cell) parts_->cell->NoteChanges();
    NoteLoss();
    if (!ends_) parts_->own_files->Look();
    NoteLingering(executor.Now());
  }
}

void Node::Core::EndItself(const Status& why) {
  ends_ = true;
  if (options_.on_ends) std::exchange(options_.on_ends, nullptr)(why);
}

void Node::Core::NoteLoss() {
  if (lost_ || !ground_.file->lost()) return;
  lost_ = true;
  // Clients find nothing there from now on, and a successor begins with new files.
  ground_.file->SetAlive(false);
  ground_.file->Discard();
  const Status why(
      Code::kIoError,
      Text(
          "arena in ", ground_.file->directory(),
          " was cut short by another process, or its memory failed: what memory held is lost, the node ends; "
          "start it again, and let no other program write there"));
  log_->Log(LogLevel::kError, why.message());
  EndItself(why);
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
  stop_ticking_.Set();
  if (parts_->cell) {
    parts_->cell->EndDrops();
    parts_->cell->EndReads();
  }
  if (parts_->store) {
    parts_->store->resizer().Stop();
    parts_->store->drain().Stop();
  }
  // What grows waits for it.
  if (memory::HugePageProcess* process = ground_.file->huge_page_process()) process->End();
  if (parts_->server) co_await parts_->server->Drain(executor.Now().PlusUs(drain_us_));
  co_await parts_->tasks->Close();
  parts_->registered.reset();
  if (parts_->cell) co_await parts_->cell->Leave(kLeaveUs);
  if (parts_->store) {
    Event closed;
    Task<void> telling = TellWhatIsAwaited(closed);
    co_await parts_->store->Close();
    closed.Set();
    co_await telling;
  }
  fault_in_.reset();
}

// What a device has may still land in memory (R6).
Task<void> Node::Core::TellWhatIsAwaited(Event& closed) {
  if (flash_ == nullptr) co_return;
  std::optional<StageWatch> watch;
  if (!StartingThreads([&] { watch.emplace(*log_, "node end"); }).ok()) co_return;
  for (;;) {
    std::vector<flash::FlashDeviceState> busy = flash_->devices();
    std::erase_if(busy, [](const flash::FlashDeviceState& device) { return device.in_flight == 0; });
    watch->NowDoing(
        Text("waiting for transfers of flash (", Joined(busy, ", ", &flash::FlashDeviceState::path), ")"));
    (void)co_await closed.Wait(clock_.Now().PlusUs(kLookUs));
    if (closed.is_set()) co_return;
  }
}

bool Node::Core::AskForMetrics(std::function<void(MetricSnapshot)> done) {
  if (stage_ != Stage::kServes) return false;
  ground_.loop->PostRemote([this, done = std::move(done)]() mutable {
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
