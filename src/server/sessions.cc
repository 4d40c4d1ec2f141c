// SPDX-License-Identifier: Apache-2.0
#include "server/sessions.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/slow_calls.h"
#include "base/spin.h"
#include "server/operations.h"

namespace cistern::server {
namespace {

// Why descriptors could not be passed.
Status Unsent(int error) {
  if (error == EPIPE || error == ECONNRESET) return Status(Code::kGone, "it hung up");
  return Status(
      Code::kBusy,
      Text("the node cannot pass its descriptors: ", ErrnoText(error),
           error == ETOOMANYREFS ? " (processes of its user have sent more than its limit of open files to "
                                   "others, which have not received them: raise that limit, ulimit -n)"
                                 : ""));
}

}  // namespace

std::uint32_t MaxSessions(std::uint64_t memory_bytes) {
  constexpr std::uint64_t kLeast = 32, kMost = 1000, kFraction = 16;
  const std::uint64_t fit = memory_bytes / kFraction / sizeof(wire::SessionMemory);
  return static_cast<std::uint32_t>(std::clamp(fit, kLeast, kMost));
}

Sessions::Sessions(const ServerParts& parts, const ServerOptions& options, ServerCounters& counters,
                   CallTimes& times)
    : parts_(parts),
      options_(options),
      counters_(counters),
      times_(times),
      engines_(parts.loop.executor()),
      calls_(parts, engines_),
      background_(parts.movers),
      staging_(background_, options.staging_budget_bytes),
      owners_(parts.random, options.staging_budget_bytes, options.session_staging_bytes),
      lanes_(parts.lanes),
      door_(lanes_.Make()),
      touches_(parts.loop.executor(), parts.store, counters),
      tasks_(parts.loop.executor()),
      active_(parts.loop, touches_,
              {.call = [this](Session& session, const wire::Submission& call) { Take(session, call); },
               .forged = [this](Session& session, std::string what) { Forged(session, std::move(what)); }}) {}

Sessions::~Sessions() {
  CISTERN_ASSERT(sessions_.empty());
  door_.End();
}

// ---- coming in ------------------------------------------------------------------------------------------

void Sessions::Admit(Fd socket, const Peer& peer, HelloText hello) {
  if (draining_) {
    Refuse(socket.get(), Status(Code::kGone, "the node is going down"));
    return closer_.Close(std::move(socket));
  }
  const Executor::InLane in(executor(), &door_);
  tasks_.Spawn(MakeSession(std::move(socket), peer, std::move(hello)));
}

Status Sessions::CheckHello(const HelloText& hello) const {
  if (hello.tenant != options_.tenant)
    return Status(Code::kDenied, Text("tenant ", Shown(hello.tenant),
                                      " has no server here: this socket is tenant ", options_.tenant, "'s"));
  if (const std::size_t open = connections(); open >= options_.max_sessions)
    return Status(
        Code::kBusy,
        Text(open, " sessions are open, the limit is ", options_.max_sessions, " (each takes ",
             sizeof(wire::SessionMemory),
             " bytes beside its staging, all of them a "
             "sixteenth of the memory): close one, share a session between threads, or give the node "
             "more memory"));
  if (owners_.Gone(hello.owner))
    return Status(Code::kDenied,
                  "the owner token is of no open session of this node: connect without one, or take the "
                  "token from a process that is connected");
  return Status();
}

Task<void> Sessions::MakeSession(Fd socket, Peer peer, HelloText hello) {
  Status status = CheckHello(hello);
  Result<Fd> process = Error(Code::kGone, "");
  if (status.ok()) {
    process = ProcessOf(socket.get(), peer);
    if (!process) status = process.error();
  }
  const OwnerToken owner = hello.owner != OwnerToken{} ? hello.owner : owners_.NewToken();
  const std::uint64_t bytes = hello.staging_bytes != 0 ? hello.staging_bytes : options_.session_staging_bytes;
  if (status.ok()) status = owners_.CheckShare(owner, bytes, staging_.used_bytes());
  if (!status.ok()) {
    // After a node's restart an engine's processes may come before they hear of their new owner: no fault.
    if (hello.tenant != options_.tenant || !owners_.Gone(hello.owner)) counters_.refused++;
    Refuse(socket.get(), status);
    closer_.Close(std::move(socket));
    co_return;
  }
  making_++;
  const StagingClaim claim(owners_, owner, bytes);
  Result<std::unique_ptr<Session>> built = co_await Build(peer, owner, bytes);
  making_--;
  // While it was made, the last session of the owner may have gone, and the node may be going.
  if (built) {
    if (owners_.Gone(hello.owner)) status = CheckHello(hello);
    if (draining_) status = Status(Code::kGone, "the node is going down");
  } else {
    status = built.error();
  }
  if (status.ok()) {
    const int fd = socket.get();
    Session& session = **built;
    sessions_.emplace(session.caller.session, std::move(*built));
    owners_.AddSession(session.caller.owner);
    owners_.AddStaging(session.caller.owner, session.staging[0]->bytes());
    counters_.sessions = sessions_.size();
    status = Open(session, std::move(socket), std::move(*process));
    if (status.ok()) status = Welcome(session);
    if (status.ok()) {
      counters_.accepted++;
      co_return;
    }
    counters_.refused++;
    Refuse(fd, status);
    End(session, status.code() == Code::kGone ? LogLevel::kInfo : LogLevel::kWarning,
        Text("it could not be welcomed: ", status.message()));
    co_return;
  }
  counters_.refused++;
  Refuse(socket.get(), status);
  closer_.Close(std::move(socket));
}

Task<Result<std::unique_ptr<Session>>> Sessions::Build(Peer peer, OwnerToken owner,
                                                       std::uint64_t staging_bytes) {
  catalog::Caller caller;
  caller.session = ++last_id_;
  caller.owner = owner;
  if (parts_.node_of) caller.memory_node = parts_.node_of(peer.pid);
  Result<std::shared_ptr<memory::StagingArea>> staging = co_await staging_.Make(executor(), staging_bytes);
  counters_.staging_bytes = staging_.used_bytes();
  if (!staging) co_return Error(std::move(staging.error()));
  Result<memory::SharedMemory> memory = co_await memory::MakeSharedMemory(
      executor(), background_, "cistern-session", sizeof(wire::SessionMemory), Access::kReadWrite);
  if (!memory) co_return Error(std::move(memory.error()));
  auto session = std::make_unique<Session>(caller, peer.pid, background_, std::move(*memory), lanes_.Make());
  session->own_user = peer.uid_known && peer.uid == geteuid();
  session->staging.push_back(std::move(*staging));
  for (Fd* event : {&session->core_event, &session->client_event}) {
    Result<Fd> made = io::MakeEventFd();
    if (!made) co_return Error(Code::kBusy, std::string(made.error().message()));
    *event = std::move(*made);
  }
  Result<Fd> wait = io::MakeSignalSet(session->client_event.get());
  if (!wait) co_return Error(Code::kBusy, std::string(wait.error().message()));
  session->client_wait = std::move(*wait);
  session->ring.SetCoreSleeps(true);
  session->ring.SetHasLower(parts_.store.tier() != nullptr || parts_.remote != nullptr);
  session->ring.SetTakesChain(parts_.remote != nullptr);
  session->ring.SetTakesStagingBack();
  session->ring.SetTakesLast();
  session->ring.SetTakesHints();
  session->ring.SetEngineReads(true);
  co_return std::move(session);
}

Status Sessions::Open(Session& session, Fd socket, Fd process) {
  session.socket = std::move(socket);
  session.process = std::move(process);
  session.ring.SetClocks(SystemClock().Now(), BootClock().Now());
  Result<io::FdWatch> watch =
      parts_.loop.Watch(session.socket.get(), io::WatchMode::kEdge,
                        [this, &session](std::uint32_t events) { OnSocket(session, events); });
  if (!watch) return std::move(watch.error());
  session.socket_watch = std::move(*watch);
  if (session.process.valid()) {
    watch = parts_.loop.Watch(session.process.get(), io::WatchMode::kEdge, [this, &session](std::uint32_t) {
      End(session, LogLevel::kDebug, "its process ended");
    });
    if (!watch) return std::move(watch.error());
    session.process_watch = std::move(*watch);
  }
  // Edge: the eventfd need not be read, so whatever the client did to it cannot hold the core.
  watch = parts_.loop.Watch(session.core_event.get(), io::WatchMode::kEdge,
                            [this, &session](std::uint32_t) { active_.Activate(session); });
  if (!watch) return std::move(watch.error());
  session.event_watch = std::move(*watch);
  return Status();
}

Status Sessions::Welcome(Session& session) {
  wire::Welcome welcome;
  welcome.owner = session.caller.owner;
  welcome.session = session.caller.session;
  welcome.node_pid = static_cast<std::uint64_t>(getpid());
  welcome.boot_count = parts_.boot_count;
  welcome.staging_bytes = session.staging[0]->bytes();
  const Fd staging = session.staging[0]->TakeFd();
  const std::array<int, 6> descriptors = {parts_.arena_fd,          parts_.index_fd,
                                          session.memory.fd.get(),  staging.get(),
                                          session.core_event.get(), session.client_wait.get()};
  const int error = SendMessage(session.socket.get(), std::as_bytes(std::span(&welcome, 1)), descriptors);
  if (session.process.valid()) session.memory.fd.Close();
  session.client_wait.Close();
  return error == 0 ? Status() : Unsent(error);
}

void Sessions::OnSocket(Session& session, std::uint32_t events) {
  while (!session.ended && !session.granting) {
    if (NextIn(session.socket.get()) == Unread::kDescriptors) return Forged(session, kNoDescriptors);
    std::array<std::byte, 512> message;
    ssize_t got = recv(session.socket.get(), message.data(), message.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && (events & POLLHUP) == 0) return;
    if (got <= 0) return End(session, LogLevel::kDebug, "it hung up");
    Result<SessionMessage> asked =
        ReadSessionMessage(std::span(message).first(static_cast<std::size_t>(got)));
    if (!asked) return Forged(session, std::string(asked.error().message()));
    if (const auto* given = std::get_if<wire::ReturnStaging>(&*asked)) {
      TakeStagingBack(session, given->area);
      continue;
    }
    if (HasUntaken(session.socket.get()))
      return Forged(session, "it asks for more staging and has not taken the last answer");
    session.granting = true;
    session.tasks++;
    const Executor::InLane in(executor(), &session.lane);
    tasks_.Spawn(GrantStaging(session, std::get<wire::MoreStaging>(*asked).bytes));
  }
}

// A write under way keeps the area that it reads from (R6), whatever the session says.
void Sessions::TakeStagingBack(Session& session, std::uint64_t area) {
  if (area == 0 || area >= session.staging.size() || session.staging[area] == nullptr)
    return Forged(session, Text("it gives back staging area ", area, ", which is none that it was granted"));
  owners_.RemoveStaging(session.caller.owner, session.staging[area]->bytes());
  session.staging[area].reset();
  counters_.staging_bytes = staging_.used_bytes();
}

Task<void> Sessions::GrantStaging(Session& session, std::uint64_t bytes) {
  co_await Yield();
  wire::StagingGrant grant;
  Fd fd;
  Result<std::shared_ptr<memory::StagingArea>> area =
      Error(Code::kBusy, Text("the session has ", wire::kMaxStagingAreas,
                              " staging areas, which is the limit: ask for larger ones"));
  const auto unused = std::ranges::find(session.staging, nullptr);
  const auto number = static_cast<std::uint32_t>(unused - session.staging.begin());
  if (number < wire::kMaxStagingAreas) {
    Status share = owners_.CheckEver(bytes);
    if (share.ok()) share = owners_.CheckShare(session.caller.owner, bytes, staging_.used_bytes());
    if (share.ok()) {
      const StagingClaim claim(owners_, session.caller.owner, bytes);
      area = co_await staging_.Make(executor(), bytes);
    } else {
      area = Error(std::move(share));
    }
  }
  counters_.staging_bytes = staging_.used_bytes();
  if (area) {
    grant.area = number;
    grant.bytes = (*area)->bytes();
    fd = (*area)->TakeFd();
    if (number == session.staging.size()) session.staging.emplace_back();
    owners_.AddStaging(session.caller.owner, grant.bytes);
    session.staging[number] = std::move(*area);
  } else {
    grant.code = static_cast<std::uint32_t>(area.error().code());
    SetText(grant.message, area.error().message());
  }
  session.granting = false;
  if (!session.ended) {
    const int sent = fd.get();
    int error = SendMessage(session.socket.get(), std::as_bytes(std::span(&grant, 1)),
                            std::span<const int>(&sent, fd.valid() ? 1 : 0));
    if (error != 0 && fd.valid()) {
      const Status why = Unsent(error);
      TakeStagingBack(session, number);
      grant = {.code = static_cast<std::uint32_t>(why.code())};
      SetText(grant.message, why.message());
      error = SendMessage(session.socket.get(), std::as_bytes(std::span(&grant, 1)));
    }
    if (error != 0)
      End(session, LogLevel::kWarning, Text("it does not take messages: ", ErrnoText(error)));
    else
      OnSocket(session, 0);
  }
  if (--session.tasks == 0) session.idle.Pulse();
}

// ---- calls ----------------------------------------------------------------------------------------------

void Sessions::Take(Session& session, const wire::Submission& call) {
  if (!Calls::InArea(call) || call.args_bytes > wire::kArgumentBytes - session.argument_bytes) {
    Forged(session, Text("a submission has arguments at ", call.args_offset, " +", call.args_bytes,
                         ", reply at ", call.reply_offset, " +", call.reply_bytes, " with ",
                         session.argument_bytes, " bytes in flight: the area has ", wire::kArgumentBytes));
    return;
  }
  // They come from the client's cache, and most go back there with the reply in them.
  PrefetchLines(session.arguments().data() + call.args_offset, std::min(call.args_bytes, kPrefetchedBytes),
                true);
  session.argument_bytes += call.args_bytes;
  session.tasks++;
  counters_.in_flight++;
  counters_.calls++;
  if (std::optional<Answer> answer = AnswerAtOnce(session, call)) {
    Finish(session, call, *answer);
  } else {
    tasks_.Spawn(Serve(session, call));
  }
}

// One a poll, which is a step of its own with that.
std::optional<Answer> Sessions::AnswerAtOnce(Session& session, const wire::Submission& call) {
  if (call.op != wire::Op::kAcquire || draining_ || tried_in_ == active_.polls()) return std::nullopt;
  tried_in_ = active_.polls();
  executor().BeginStep();
  const std::uint64_t before = executor().work();
  std::optional<Answer> answer = calls_.AcquireInStep(session, call);
  session.lane.Charge(executor().work() - before);
  return answer;
}

Task<void> Sessions::Serve(Session& session, wire::Submission call) {
  const Instant began = executor().Now();
  CallStations stations(executor().clock(), began);
  co_await Yield();  // a step of its own
  stations.Add(Station::kTurn, began, executor().Now());
  Answer answer;
  if (draining_) {
    counters_.calls_refused++;
    answer = Fail(session, call, Status(Code::kGone, "the node is going down"));
  } else {
    const Result<Answer> done = co_await calls_.Do(session, call, stations);
    answer = done ? *done : Fail(session, call, done.error());
    if (answer.code == Code::kInvalid) counters_.calls_refused++;
  }
  const Instant ended = executor().Now();
  times_.Record(call.op, ended.NsSince(began));
  if (parts_.slow_calls != nullptr && parts_.slow_calls->Slow(ended.NsSince(began)))
    NoteSlow(session, call, answer.code, stations, ended);
  Finish(session, call, answer);
}

void Sessions::NoteSlow(const Session& session, const wire::Submission& call, Code code,
                        const CallStations& stations, Instant ended) {
  const auto kind = OperationOf(call.op).slow;
  if (!kind) return;
  SlowCall slow{.kind = *kind,
                .stations = stations,
                .ended = ended,
                .code = code,
                .count = CountOf(call),
                .session = session.caller.session,
                .process = static_cast<std::uint64_t>(session.pid)};
  if (session.engine != nullptr) slow.engine = session.engine->name;
  if (parts_.store.CheckNamespace(call.namespace_slot, call.incarnation).ok())
    slow.namespace_fingerprint = parts_.store.FingerprintAt(call.namespace_slot);
  parts_.slow_calls->Note(std::move(slow));
}

void Sessions::Finish(Session& session, const wire::Submission& call, const Answer& answer) {
  session.argument_bytes -= call.args_bytes;
  counters_.in_flight--;
  if (!session.ended) {
    wire::Completion completion{.ticket = call.ticket,
                                .op = call.op,
                                .code = static_cast<std::uint16_t>(answer.code),
                                .reply_bytes = answer.reply_bytes,
                                .a = answer.a,
                                .b = answer.b};
    NodeRing::Put put = session.ring.Complete(completion);
    if (put == NodeRing::Put::kForged) {
      Forged(session, "it collected completions that were never made");
    } else {
      if (put == NodeRing::Put::kLost) counters_.completions_lost++;
      if (session.ring.ClientSleeps()) io::SignalEventFd(session.client_event.get());
    }
  }
  if (--session.tasks == 0) session.idle.Pulse();
  if (counters_.in_flight == 0) quiet_.Pulse();
}

// ---- without the ring -------------------------------------------------------------------------------------

std::optional<catalog::LeaseId> Sessions::AcquireAtOnce(catalog::SessionId session, std::uint32_t slot,
                                                        std::uint64_t incarnation,
                                                        std::span<const BlockRef> blocks,
                                                        std::int64_t lease_us,
                                                        std::span<wire::ViewItem> views) {
  const auto found = sessions_.find(session);
  if (draining_ || found == sessions_.end() || found->second->ended) return std::nullopt;
  const auto lease = calls_.AcquireAtOnce(*found->second, slot, incarnation, blocks, lease_us, views);
  if (lease) counters_.calls++;
  return lease;
}

void Sessions::ReleaseAtOnce(catalog::SessionId session, catalog::LeaseId lease) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second->ended) return;  // its leases end with it
  calls_.ReleaseAtOnce(found->second->caller, lease);
  counters_.calls++;
}

// ---- going ----------------------------------------------------------------------------------------------

void Sessions::Forged(Session& session, std::string what) {
  counters_.ended_forged++;
  End(session, LogLevel::kWarning, std::move(what));
}

void Sessions::TakeCountsOf(Session& session) {
  const NodeRing::Counts now = session.ring.Counted();
  const auto add = [](std::uint64_t& to, std::uint64_t& had, std::uint64_t has) {
    if (has > had) to += has - std::exchange(had, has);  // it only grows
  };
  wire::ReadCounts& reads = session.counted.reads;
  add(counters_.asked_blocks, reads.asked_blocks, now.reads.asked_blocks);
  add(counters_.indexed_blocks, reads.indexed_blocks, now.reads.indexed_blocks);
  add(counters_.read_blocks, reads.read_blocks, now.reads.read_blocks);
  add(counters_.read_bytes, reads.read_bytes, now.reads.read_bytes);
  wire::EngineCounts& engine = session.counted.engine;
  add(counters_.promised_tokens, engine.promised_tokens, now.engine.promised_tokens);
  add(counters_.delivered_tokens, engine.delivered_tokens, now.engine.delivered_tokens);
  add(counters_.saved_us, engine.saved_us, now.engine.saved_us);
  add(counters_.spent_us, engine.spent_us, now.engine.spent_us);
}

void Sessions::LookForLock(Session& session) {
  if (session.ended || session.process.valid()) return;
  // Asked first: who says so has the lock by then.
  session.locked |= session.ring.ClientLocks();
  const bool locked = IsLocked(session.memory.fd.get());
  // A client of a release without the lock never has it: its hang-up alone tells.
  if (session.locked && !locked) End(session, LogLevel::kDebug, "its process ended");
  session.locked = locked;
}

void Sessions::Tick() {
  counters_.staging_bytes = staging_.used_bytes();  // what a write kept, or a client that did not come in had
  auto at = sessions_.upper_bound(last_counted_);
  for (std::size_t i = 0; i < kCountedPerTick && at != sessions_.end(); ++i, ++at) {
    TakeCountsOf(*at->second);
    touches_.Look(*at->second);
    LookForLock(*at->second);
  }
  last_counted_ = at == sessions_.end() ? 0 : std::prev(at)->first;
  for (std::size_t left = std::min(untaken_.size(), kCountedPerTick); left > 0; --left) {
    Fd socket = std::move(untaken_.front());
    untaken_.pop_front();
    LetGo(std::move(socket));
  }
  closer_.Resume();
}

void Sessions::End(Session& session, LogLevel level, std::string why) {
  if (session.ended) return;
  TakeCountsOf(session);
  session.ended = true;
  session.ring.SetEnded();
  parts_.log.Log(level, "session ", session.caller.session, " of process ", session.pid,
                 session.engine == nullptr ? std::string() : Text(" of engine ", session.engine->name),
                 " ends: ", why);
  engines_.Leave(session);
  session.socket_watch.End();
  session.process_watch.End();
  session.event_watch.End();
  LetGo(std::move(session.socket));
  owners_.RemoveSession(session.caller.owner);
  const Executor::InLane in(executor(), &session.lane);
  tasks_.Spawn(Remove(session));
}

// The client sees a hang-up: kGone. What it has not received stays with it until it closes its own end.
void Sessions::LetGo(Fd socket) {
  if (!HasUntaken(socket.get())) return closer_.CloseSession(std::move(socket));
  shutdown(socket.get(), SHUT_RDWR);
  untaken_.push_back(std::move(socket));
}

Task<void> Sessions::Remove(Session& session) {
  co_await Yield();  // whoever ended it may still be using it
  // What it read last counts as well, of one ring at most: a client that is ended may go on to write there.
  for (std::size_t taken = 0; taken < wire::kTouchEntries && session.ring.HasTouches();) {
    taken += touches_.Take(session);
    co_await Yield();
  }
  // Asked each time: the others of the owner may end while this one's calls do.
  const auto last_of_owner = [&] { return !owners_.HasSession(session.caller.owner); };
  const bool busy = session.tasks > 0;
  co_await parts_.store.SessionEnded(session.caller, last_of_owner());
  while (session.tasks > 0) co_await session.idle.Wait();
  // A call that was in flight may have taken a lease or left a put since, also before the first look ended.
  if (busy) co_await parts_.store.SessionEnded(session.caller, last_of_owner());
  active_.Forget(session);
  touches_.Forget(session);
  const OwnerToken owner = session.caller.owner;
  for (const auto& area : session.staging) {
    if (area != nullptr) owners_.RemoveStaging(owner, area->bytes());
  }
  sessions_.erase(session.caller.session);
  // Others of the owner that have ended may still have calls in flight.
  if (std::ranges::none_of(sessions_, [&](const auto& one) { return one.second->caller.owner == owner; }))
    parts_.store.namespaces().OwnerEnded(owner);
  counters_.sessions = sessions_.size();
  counters_.staging_bytes = staging_.used_bytes();
  empty_.Pulse();
}

Task<void> Sessions::Drain(Instant deadline) {
  draining_ = true;
  while (counters_.in_flight > 0) {
    Status waited = co_await quiet_.Wait(deadline);
    if (!waited.ok()) break;
  }
  for (auto& [id, session] : sessions_) End(*session, LogLevel::kDebug, "the node goes down");
  while (!sessions_.empty()) co_await empty_.Wait();
  for (Fd& socket : untaken_) closer_.CloseSession(std::move(socket));
  untaken_.clear();
  co_await tasks_.Close();
  co_await background_.Quiet(executor());
}

}  // namespace cistern::server
