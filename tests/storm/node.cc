// SPDX-License-Identifier: Apache-2.0
#include "node.h"

#include <sys/mman.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/format.h"
#include "model.h"
#include "residency/resizer.h"

namespace cistern::storm {

namespace {

// Memory that went back to the host reads as zeros, at once.
class ZeroedBacking final : public memory::ArenaBacking {
 public:
  explicit ZeroedBacking(arena::ArenaSpace arena) : arena_(arena) {}

  Status Reserve(std::uint32_t) override { return Status(); }
  void Release(const memory::HeaderRange& range) override {
    const arena::Geometry& geometry = arena_.geometry();
    for (std::uint32_t header = range.first; header < range.first + range.count; ++header) {
      Zero(arena_.slot(geometry.place(header * arena::kHeaderSpanBytes)), arena::kHeaderSpanBytes);
      Zero(arena_.header(header)->directory, sizeof(arena::ChunkHeader::directory));
    }
  }

 private:
  static void Zero(void* from, std::size_t bytes) {
    CISTERN_ASSERT(madvise(from, bytes, MADV_DONTNEED) == 0);
  }

  arena::ArenaSpace arena_;
};

}  // namespace

// ---- movers ----------------------------------------------------------------------------------------------

void SimMovers::Submit(memory::MoverJob& job) {
  // Handing over is a locked instruction: plain stores are seen by who takes the job. Streamed ones may not
  // be.
  scheduler_.current()->stores().DrainWords();
  jobs_.push_back(&job);
  if (!waiting_.empty()) {
    scheduler_.Wake(waiting_.back());
    waiting_.pop_back();
  }
}

void SimMovers::Main() {
  Actor* self = scheduler_.current();
  while (!self->dead() && !ending_) {
    if (jobs_.empty()) {
      waiting_.push_back(self);
      scheduler_.WaitFor(1'000'000);
      std::erase(waiting_, self);
      continue;
    }
    memory::MoverJob* job = jobs_.front();
    jobs_.pop_front();
    moving_++;
    abandoned_.push_back(job);
    if (scheduler_.random().Below(4) == 0)
      scheduler_.WaitFor(static_cast<std::int64_t>(scheduler_.random().Below(40)));
    job->Move(words_);
    moving_--;
    if (self->dead()) return;
    std::erase(abandoned_, job);
    self->stores().DrainWords();
    moved_.push_back(job);
    scheduler_.Wake(core_);
  }
}

void SimMovers::Abandon() {
  for (auto* jobs : {&moved_, &abandoned_}) {
    for (memory::MoverJob* job : *jobs) dynamic_cast<memory::AwaitedJob&>(*job).Abandon();
    jobs->clear();
  }
  for (memory::MoverJob* job : jobs_) dynamic_cast<memory::AwaitedJob&>(*job).Abandon();
  jobs_.clear();
}

// ---- node ------------------------------------------------------------------------------------------------

SimNode::SimNode(const Surroundings& around)
    : around_(around), scheduler_(around.scheduler), random_(around.seed) {
  core_ = scheduler_.Spawn("core", [this] { Main(); });
}

void SimNode::Main() {
  // Killed before it did anything.
  if (core_->dead()) return;
  auto loop = io::SimulatedLoop::Make(scheduler_.clock(), around_.disk, around_.seed);
  if (!loop) Violation(Text("no simulated loop: ", loop.error().ToString()));
  loop_ = std::move(*loop);
  movers_ = std::make_unique<SimMovers>(scheduler_, around_.words);
  movers_->core_ = core_;
  for (std::uint32_t i = 0; i < around_.movers; ++i) {
    mover_actors_.push_back(scheduler_.Spawn("mover", [movers = movers_.get()] { movers->Main(); }));
  }
  journal_ = std::make_unique<catalog::Journal>(*loop_, "node", random_.Next());
  // Divided among memory nodes, as many as it is long enough for; in every second run the last is far.
  const std::uint32_t headers = around_.arena.geometry().header_count;
  const std::vector<std::uint32_t> shares(std::min(headers, 3u), 1);
  const auto far = static_cast<std::uint32_t>(shares.size() > 1 ? around_.seed % 2 : 0);
  slots_ = std::make_unique<memory::Slots>(
      around_.words, around_.arena,
      memory::NodePlan(shares, static_cast<std::uint32_t>(shares.size()) - far, headers));
  store::BlockStore::Parts parts{executor(),    scheduler_.clock(), around_.words, *slots_,
                                 around_.index, *movers_,           *journal_,     around_.log};
  if (around_.flash) {
    parts.open_tier = [this](tier::JournalView journal) {
      return flash::OpenFlash({*loop_, around_.log, [this] { return random_.Next(); }}, *around_.flash,
                              std::move(journal));
    };
  }
  if (around_.simulated) {
    parts.open_tier = [this](tier::JournalView journal) { return OpenSimulated(std::move(journal)); };
  }
  store_ = std::make_unique<store::BlockStore>(parts, around_.options);
  tasks_ = std::make_unique<TaskGroup>(executor());
  resizing_ = std::make_unique<TaskGroup>(executor());
  backing_ = std::make_unique<ZeroedBacking>(around_.arena);
  Serve();
  TearDown();
}

Task<Result<std::unique_ptr<tier::Tier>>> SimNode::OpenSimulated(tier::JournalView journal) {
  co_return std::make_unique<tier::SimulatedTier>(
      tier::SimulatedTier::Parts{executor(), around_.media, random_.Next()}, *around_.simulated, journal);
}

void SimNode::Serve() {
  {
    Task<Status> recovery = store_->Recover();
    while (!recovery.done()) {
      // It is the disk that it waits for.
      if (!Turn()) scheduler_.WaitFor(static_cast<std::int64_t>(1 + scheduler_.random().Below(60)));
      if (core_->dead()) {
        Abandon();
        return;
      }
    }
    start_ = recovery.Take();
  }
  if (!start_.ok()) {
    if (!RunTask(store_->Close())) return;
    gone_ = true;
  } else {
    if (has_lower_tier() && !Survey()) return;
    core_->stores().DrainAll();
    if (!core_->dead()) around_.recovered(*this);
    serving_ = true;
    resizing_->Spawn(store_->resizer().Run(*backing_, *movers_));
  }
  std::optional<Task<void>> tending;
  while (!core_->dead() && !gone_) {
    bool any = Turn();
    if (core_->dead()) break;
    if (std::exchange(want_survey_, false) && !want_idle_ && !ending_) {
      if (!Survey()) break;
      surveyed_ = true;
      scheduler_.WaitFor(1);
      surveyed_ = false;
      if (core_->dead()) break;
    }
    if (want_headers_ != 0) store_->resizer().Want(std::exchange(want_headers_, 0));
    if (!want_idle_ || ending_) TakeCalls();
    if (core_->dead()) break;
    if (tending && tending->done()) tending.reset();
    if (!tending && scheduler_.random().Below(16) == 0) tending.emplace(Tend());
    bool more = tending.has_value();
    if (tasks_->size() == 0 && !more && movers_->idle() && (want_idle_ || ending_) &&
        !store_->resizer().moving()) {
      if (ending_ && inbox_.empty()) gone_ = true;
      if (Tick()) {
        if (!core_->dead()) tending.emplace(Tend());
        gone_ = false;
        continue;
      }
      if (core_->dead()) break;
      if (has_lower_tier() && !Survey()) break;
      // That took its time, in which something may have come to an end.
      const bool more_now = has_lower_tier() && Tick();
      if (core_->dead()) break;
      core_->stores().DrainAll();
      if (more_now || !around_.idle(*this)) {
        gone_ = false;
        scheduler_.WaitFor(static_cast<std::int64_t>(20 + scheduler_.random().Below(500)));
        continue;
      }
      want_idle_ = false;
      if (gone_) {
        gone_ = false;
        store_->resizer().Stop();
        if (!RunTask(resizing_->Close())) break;
        gone_ = true;
      }
      if (gone_) {
        // Nothing is under way any more when it ends in order: what is in use then is too much.
        gone_ = false;
        if (!RunTask(store_->Close())) break;
        while (store_->Tick()) Turn();
        core_->stores().DrainAll();
        gone_ = closed_ = true;
        (void)around_.idle(*this);
      }
    }
    if (!any && (inbox_.empty() || want_idle_) && !more && !core_->dead()) {
      Instant until =
          scheduler_.clock().Now().PlusUs(static_cast<std::int64_t>(1 + scheduler_.random().Below(150)));
      scheduler_.WaitUntil(std::min(until, executor().next_timer()));
    }
  }
  tending.reset();
  if (core_->dead()) Abandon();
}

// What the dead process would still have asked for never reaches the disk.
void SimNode::Abandon() {
  if (store_ != nullptr) store_->Abandon();
  (void)loop_->Kill([](const void*, std::size_t) { return false; });
  movers_->Abandon();
  tasks_->Drop();
  resizing_->Drop();
}

bool SimNode::RunTask(Task<void> task) {
  while (!task.done()) {
    if (!Turn()) scheduler_.WaitFor(static_cast<std::int64_t>(1 + scheduler_.random().Below(60)));
    if (core_->dead()) {
      Abandon();
      return false;
    }
  }
  task.Take();
  return true;
}

bool SimNode::Survey() {
  std::vector<LowerBlock> blocks = around_.doubts(*this);
  if (!RunTask(AskLowerTier(blocks))) return false;
  around_.told(*this, std::move(blocks));
  return true;
}

// An offer that no tier can keep: what lies in the lower tier is refused as too late, what is nowhere is a
// miss.
Task<void> SimNode::AskLowerTier(std::vector<LowerBlock>& blocks) {
  constexpr std::size_t kAtOnce = 4;
  for (std::size_t i = 0; i < blocks.size();) {
    std::vector<catalog::BlockName> names;
    std::size_t end = i;
    while (end < blocks.size() && end - i < kAtOnce && blocks[end].slot == blocks[i].slot) {
      names.push_back({blocks[end].key, blocks[end].group});
      ++end;
    }
    const catalog::Caller nobody;
    const Instant now = executor().Now();
    Result<store::AcquireGrant> grant = co_await store_->Acquire(nobody, blocks[i].slot, names, 1, now, 0);
    if (grant) {
      for (std::size_t k = 0; k < grant->views.size(); ++k) {
        const store::ViewGrant& view = grant->views[k];
        // One that was put meanwhile is granted, or late without a time: it is in memory.
        const bool below =
            view.code == Code::kTooLate && view.ready_in_us > 0 && view.ready_in_us != tier::Tier::kNever;
        blocks[i + k].state = below ? LowerBlock::State::kThere : LowerBlock::State::kGone;
      }
      if (grant->lease != 0) (void)store_->Release(nobody, grant->lease);
    }
    i = end;
    co_await Yield();
  }
}

// As the node does it: each Tick in a step of its own.
Task<void> SimNode::Tend() {
  for (bool more = true; more;) {
    co_await Yield();
    std::uint64_t wall_s = scheduler_.clock().Wall().seconds;
    more = Tick();
    if (core_->dead()) co_return;
    around_.ticked(*this, wall_s);
  }
}

bool SimNode::Tick() {
  ticked_ = scheduler_.clock().Now();
  return store_->Tick();
}

bool SimNode::Turn() {
  // At once, and not by way of the executor's queue: what waits there when the core dies nobody would
  // abandon.
  for (memory::MoverJob* job : movers_->TakeMoved()) job->Run();
  bool any = loop_->PollOnce();
  CheckSteps();
  scheduler_.Pause();
  return any;
}

void SimNode::CheckSteps() {
  std::uint32_t touches = store_->TakeLongestStep();
  if (touches > kStepTouches)
    Violation(Text("a step of the core did ", touches, " touches, the limit is ", kStepTouches));
}

void SimNode::TearDown() {
  movers_->End();
  for (Actor* mover : mover_actors_) {
    if (!core_->dead()) scheduler_.Wake(mover);
  }
  if (!core_->dead()) {
    // In order: every mover has looked once more.
    while (!std::ranges::all_of(mover_actors_, [](Actor* mover) { return mover->ended(); }))
      scheduler_.WaitFor(5);
  }
  tasks_.reset();
  resizing_.reset();
  store_.reset();
  slots_.reset();
  journal_.reset();
  movers_.reset();
  loop_.reset();
  gone_ = true;
}

io::LateIo SimNode::Kill(bool power_cut) {
  gone_ = true;
  io::LateIo late;
  if (loop_ != nullptr && power_cut) {
    loop_->Crash();
  } else if (loop_ != nullptr) {
    const std::byte* slots = around_.arena.slot(0);
    const std::byte* end = slots + around_.arena.geometry().slots_bytes();
    late = loop_->Kill([slots, end](const void* data, std::size_t bytes) {
      const auto* from = static_cast<const std::byte*>(data);
      return from >= slots && from + bytes <= end;
    });
  } else if (power_cut) {
    around_.disk.Crash();
  }
  for (Actor* mover : mover_actors_) scheduler_.Kill(mover);
  scheduler_.Kill(core_);
  for (CallPtr& call : std::exchange(open_, {})) {
    call->lost = true;
    Answer(call);
  }
  inbox_.clear();
  return late;
}

// ---- calls -----------------------------------------------------------------------------------------------

void SimNode::Send(CallPtr call) {
  if (call->staging) call->staging->writes++;
  if (!serving()) {
    call->lost = true;
    return Answer(call);
  }
  open_.push_back(call);
  inbox_.push_back(call);
  scheduler_.Wake(core_);
}

void SimNode::TakeCalls() {
  while (!inbox_.empty()) {
    CallPtr call = inbox_.front();
    inbox_.pop_front();
    tasks_->Spawn(Handle(std::move(call)));
    if (core_->dead() || scheduler_.random().Below(3) == 0) return;
  }
}

void SimNode::Answer(CallPtr call) {
  if (call->staging) call->staging->writes--;
  call->done = true;
  if (call->lost) call->status = Status(Code::kGone);
  if (call->answered) std::exchange(call->answered, nullptr)(*call);
  if (call->waiter != nullptr) scheduler_.Wake(call->waiter);
}

Task<void> SimNode::Handle(CallPtr call) {
  co_await Do(*call);
  if (core_->dead() || call->done) co_return;
  // A completion is told as a word of the ring is: after the stores before it.
  core_->stores().DrainWords();
  std::erase(open_, call);
  Answer(call);
}

Task<void> SimNode::BringBack(Call& call) {
  if (around_.flash) {
    call.status = co_await flash().BringBack(call.spec.name);
    co_return;
  }
  call.status = simulated().BringBack();
  // As the node does it, so that a restart believes what will be on it.
  if (call.status.ok()) call.status = co_await journal_->PutDevices(simulated().media_ids());
}

Task<void> SimNode::Do(Call& call) {
  store::BlockStore& store = *store_;
  using Kind = Call::Kind;
  if (call.kind != Kind::kAttach && call.kind != Kind::kRelease && call.kind != Kind::kTouchPlace &&
      call.kind != Kind::kSessionEnded && call.kind != Kind::kTakeOut && call.kind != Kind::kBringBack) {
    call.status = store.CheckNamespace(call.slot, call.incarnation);
    if (!call.status.ok()) co_return;
  }
  auto take = [&call](auto result) {
    if (result) {
      call.value = static_cast<std::uint64_t>(*result);
    } else {
      call.status = result.error();
    }
  };
  switch (call.kind) {
    case Kind::kAttach: {
      Result<store::Attached> attached = co_await store.Attach(call.spec);
      if (!attached) {
        call.status = attached.error();
        break;
      }
      call.value = attached->slot;
      call.incarnation_now = attached->incarnation;
      break;
    }
    case Kind::kMatchRest: {
      auto runs = co_await store.MatchRest(call.slot, static_cast<std::uint32_t>(call.number),
                                           std::span(call.prompt.keys).subspan(call.prompt.first_new));
      if (!runs) {
        call.status = runs.error();
        break;
      }
      for (const MatchRun& run : *runs) call.value += run.blocks;
      call.prompt.first_new += call.value;
      call.prompt.matched = call.number + call.value;
      store.NotePrompt(call.slot, std::move(call.prompt));
      break;
    }
    case Kind::kHold:
      take(co_await store.Hold(call.caller, call.slot, call.keys, call.duration_us));
      if (!call.status.ok()) break;
      store.NotePrompt(call.slot,
                       {.keys = call.keys, .first_new = call.keys.size(), .matched = call.keys.size()});
      break;
    case Kind::kAcquire: {
      Result<store::AcquireGrant> grant = co_await store.Acquire(
          call.caller, call.slot, call.names, call.duration_us, call.deadline, call.worth_us);
      if (!grant) {
        call.status = grant.error();
        break;
      }
      call.grant = std::move(*grant);
      call.value = call.grant.lease;
      break;
    }
    case Kind::kRelease: call.status = store.Release(call.caller, call.number); break;
    case Kind::kWrite:
      call.outcomes = co_await store.Write(call.caller, call.slot, call.parts, call.deadline);
      break;
    case Kind::kPublish: take(co_await store.Publish(call.caller, call.slot, call.puts)); break;
    case Kind::kAbandon: take(co_await store.Abandon(call.caller, call.slot, call.puts)); break;
    case Kind::kTouch: call.value = co_await store.Touch(call.slot, call.keys, call.number); break;
    case Kind::kTouchPlace:
      store.TouchPlace(static_cast<std::uint32_t>(call.number >> 32),
                       static_cast<std::uint32_t>(call.number));
      break;
    case Kind::kDrop: take(co_await store.Drop(call.slot, call.keys)); break;
    case Kind::kEndConversation: take(co_await store.EndConversation(call.slot, call.number)); break;
    case Kind::kDropNamespace: {
      auto dropped = co_await store.DropNamespace(call.slot);
      if (!dropped) {
        call.status = dropped.error();
        break;
      }
      call.value = dropped->first;
      call.incarnation_now = dropped->second;
      break;
    }
    case Kind::kTakeOut:
      if (around_.flash) {
        call.status = flash().TakeOut(call.spec.name);
      } else {
        simulated().TakeOut();
      }
      break;
    case Kind::kBringBack: co_await BringBack(call); break;
    case Kind::kReportBad: call.status = co_await store.ReportBad(call.slot, call.names); break;
    case Kind::kSessionEnded:
      // As the server does: at once, and again when what it had under way has ended.
      co_await store.SessionEnded(call.caller, call.last_of_owner);
      while (std::ranges::any_of(open_, [&call](const CallPtr& other) {
        return other.get() != &call && other->caller.session == call.caller.session;
      })) {
        co_await SleepUntil(executor().Now().PlusUs(5));
      }
      co_await store.SessionEnded(call.caller, call.last_of_owner);
      break;
  }
}

}  // namespace cistern::storm
