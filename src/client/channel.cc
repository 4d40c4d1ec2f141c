// SPDX-License-Identifier: Apache-2.0
#include "client/channel.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/format.h"
#include "base/peer.h"
#include "base/spin.h"

namespace cistern::client {
namespace {

constexpr std::uint32_t kNoPlace = UINT32_MAX;
constexpr std::int64_t kReleaseUs = 10'000'000;
// With an event descriptor in use its signals are for Poll; a waiter then looks this often instead.
constexpr std::int64_t kSliceNs = 1'000'000;
// How often who only reads asks whether the node lives: what another node drops is read here no longer than
// this.
constexpr std::int64_t kAskNs = 250'000'000;
constexpr std::int64_t kAnswerNs = 10'000'000;
constexpr std::size_t kMaxDeferredReleases = 65'536;
// Of the places for calls in flight: the others are left for calls, however many leases are let go of.
constexpr std::uint32_t kMostReleasing = wire::kRingEntries * 3 / 4;

std::uint64_t Load(const std::uint64_t& word) {
  return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}
void Store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

void Signal(const Fd& event) {
  const std::uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(event.get(), &one, sizeof(one));  // full: signalled all the same
}

void Drain(const Fd& event) {
  epoll_event signal;
  if (epoll_wait(event.get(), &signal, 1, 0) >= 0 || errno != EINVAL) return;
  std::uint64_t count;  // of an eventfd, which earlier nodes gave
  [[maybe_unused]] ssize_t got = read(event.get(), &count, sizeof(count));
}

// Hang-up is watched for always. A socket can always be written to, so the set is ready at once where that is
// watched for too.
bool WatchSocket(const Fd& epoll, const Connection& connection, int change, bool ready_at_once) {
  epoll_event watched{.events = EPOLLRDHUP | EPOLLHUP, .data = {}};
  if (ready_at_once) watched.events |= EPOLLOUT;
  return epoll_ctl(epoll.get(), change, connection.socket.get(), &watched) == 0;
}

Result<Fd> EpollOf(const Connection& connection) {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event readable{.events = EPOLLIN, .data = {}};  // answers, or that the node's process has ended
  const auto watch = [&](const Fd& fd) {
    return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd.get(), &readable) == 0;
  };
  if (!epoll.valid() || !watch(connection.client_event) ||
      (connection.process.valid() && !watch(connection.process)) ||
      !WatchSocket(epoll, connection, EPOLL_CTL_ADD, false))
    return Error(Code::kIoError, Text("the event descriptor cannot be made: ", ErrnoText(errno)));
  return epoll;
}

Status Gone(const Connection& connection, bool session_alone) {
  // By its number in this process's pid namespace, where it has one: in a container of its own it is 1.
  const Result<Peer> node = PeerOf(connection.socket.get());
  return Status(Code::kGone, Text("the node at ", connection.path,
                                  node && node->pid != 0 ? Text(" (process ", node->pid, ")") : std::string(),
                                  session_alone ? " ended this session, its log says why" : " is gone",
                                  ": connect again, nothing published is lost"));
}

Status InChild() {
  return Status(Code::kDenied, "this handle belongs to the parent process: connect in the child");
}

}  // namespace

std::int64_t NodeDeadlineNs(std::int64_t deadline_ns, std::int64_t now_ns) {
  const std::int64_t left_ns = std::max<std::int64_t>(deadline_ns - now_ns, 0);
  return deadline_ns - std::min(kAnswerNs, left_ns / 8);
}

// ---- Call -----------------------------------------------------------------------------------------------

Call& Call::operator=(Call&& other) noexcept {
  Call old(std::move(*this));
  channel_ = std::move(other.channel_);
  place_ = other.place_;
  return *this;
}

Call::~Call() {
  if (channel_ != nullptr) channel_->GiveUp(place_);
}

std::span<std::byte> Call::room() const {
  const Channel::Slot& slot = channel_->slots_[place_];
  return std::span(channel_->page().arguments).subspan(slot.offset, slot.bytes);
}

Status Call::Submit(const Request& request, std::uint64_t args_bytes, std::shared_ptr<void> keep) {
  if (Status status = channel_->Check(); !status.ok()) return status;
  std::lock_guard lock(channel_->mutex_);
  channel_->slots_[place_].keep = std::move(keep);
  channel_->Push(place_, request, args_bytes);
  return Status();
}

bool Call::Ready() { return channel_->CallReady(place_); }
Result<wire::Completion> Call::Wait() { return channel_->WaitFor(place_); }

Result<wire::Completion> Call::Answer() {
  Result<wire::Completion> completion = Wait();
  if (completion && completion->code != static_cast<std::uint16_t>(Code::kOk)) return Error(Why(*completion));
  return completion;
}

std::uint64_t Call::id() const { return channel_->IdOf(place_); }

std::span<const std::byte> Call::reply(const wire::Completion& completion) const {
  std::span<std::byte> all = room();
  return all.first(std::min<std::size_t>(all.size(), completion.reply_bytes));
}

Status Call::Why(const wire::Completion& completion) const {
  std::span<const std::byte> text = reply(completion);
  const auto* begin = reinterpret_cast<const char*>(text.data());
  return Status(static_cast<Code>(completion.code),
                std::string(begin, std::find(begin, begin + text.size(), '\0')));
}

// ---- Channel --------------------------------------------------------------------------------------------

Result<std::shared_ptr<Channel>> Channel::Open(Connection connection, NearNode near) {
  Result<ForkMark> mark = ForkMark::Make();
  if (!mark) return Error(std::move(mark.error()));
  Result<Fd> epoll = EpollOf(connection);
  if (!epoll) return Error(std::move(epoll.error()));
  return std::shared_ptr<Channel>(
      new Channel(std::move(connection), std::move(*mark), std::move(*epoll), std::move(near)));
}

Channel::Channel(Connection connection, ForkMark fork_mark, Fd epoll, NearNode near)
    : connection_(std::move(connection)),
      fork_mark_(std::move(fork_mark)),
      epoll_(std::move(epoll)),
      near_(std::move(near)),
      reader_(words_, arena::ArenaView(connection_.arena.data(), connection_.geometry),
              arena::IndexView(connection_.index.data(), connection_.bucket_count)) {
  for (std::uint32_t place = wire::kRingEntries; place > 0; --place) free_places_.push_back(place - 1);
}

Channel::~Channel() = default;

Status Channel::Check() const {
  if (forked()) return InChild();
  // A node that ended in order says so, and the successor of one that was killed does before anything else.
  // Where nobody follows on this arena the kernel tells. A session that the node ended has a word of its own.
  const std::uint64_t alive =
      const_cast<arena::RealWords&>(words_).Load(&reader_.arena().header()->node_alive);
  const bool node_here = alive == connection_.welcome.boot_count;
  const bool ended = Load(page().ended) != 0;
  const bool torn = connection_.arena_guard.lost() || connection_.index_guard.lost();
  if (!node_here || ended || torn || !NodeLives()) gone_.store(true, std::memory_order_relaxed);
  if (!gone_.load(std::memory_order_relaxed)) return Status();
  return Gone(connection_, node_here && ended);
}

bool Channel::NodeLives() const {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  const std::int64_t now_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  if (now_ns - asked_ns_.load(std::memory_order_relaxed) < kAskNs) return true;
  asked_ns_.store(now_ns, std::memory_order_relaxed);
  return !HungUp();
}

// The clock last: whoever was killed has left its term behind, and another start may have taken its place in
// the cell.
bool Channel::ServesStrict() const {
  return !HungUp() &&
         arena::IsValid(const_cast<arena::RealWords&>(words_), reader_.arena(), BootClock().Now().ns);
}

void Channel::Close() {
  if (forked()) return;
  Kept kept;
  std::lock_guard lock(mutex_);
  MarkGone(kept);
  shutdown(connection_.socket.get(), SHUT_RDWR);
}

Result<Call> Channel::Reserve(std::uint64_t bytes) {
  if (Status status = Check(); !status.ok()) return Error(std::move(status));
  // A message of the node's always has room.
  bytes = std::max<std::uint64_t>(bytes, wire::kMaxReplyMessage);
  Kept kept;
  std::lock_guard lock(mutex_);
  std::uint32_t place = TakePlace(bytes);
  if (place == kNoPlace && Collect(kept)) place = TakePlace(bytes);
  if (place != kNoPlace) return Call(shared_from_this(), place);
  if (free_places_.empty())
    return Error(Code::kBusy,
                 Text(wire::kRingEntries, " calls are in flight or not waited for, which is the limit"));
  return Error(Code::kBusy, Text("a call with ", bytes, " bytes of arguments: ", arguments_.largest(), " of ",
                                 wire::kArgumentBytes, " are free while others are in flight"));
}

std::uint32_t Channel::TakePlace(std::uint64_t bytes) {
  if (free_places_.empty()) return kNoPlace;
  std::optional<std::uint64_t> offset = bytes > 0 ? arguments_.Take(bytes) : 0;
  if (!offset) return kNoPlace;
  std::uint32_t place = free_places_.back();
  free_places_.pop_back();
  Slot& slot = slots_[place];
  slot.state = State::kReserved;
  slot.given_up = false;
  slot.taken = false;
  slot.serial = ++serial_;
  slot.offset = *offset;
  slot.bytes = bytes;
  return place;
}

void Channel::FreePlace(std::uint32_t place) {
  Slot& slot = slots_[place];
  arguments_.Free(slot.offset, slot.bytes);
  slot.state = State::kFree;
  unreported_.reset(place);
  free_places_.push_back(place);
}

void Channel::Push(std::uint32_t place, const Request& request, std::uint64_t args_bytes) {
  Slot& slot = slots_[place];
  slot.state = State::kSubmitted;
  slot.op = request.op;
  slot.polled = request.polled;
  slot.answer_by_ns =
      request.deadline_ns > INT64_MAX - request.grace_ns ? INT64_MAX : request.deadline_ns + request.grace_ns;
  wire::Submission entry;
  entry.op = request.op;
  entry.flags = request.flags;
  entry.namespace_slot = request.namespace_slot;
  entry.ticket = IdOf(place);
  entry.deadline_ns =
      request.answered_late ? NodeDeadlineNs(request.deadline_ns, NowNs()) : request.deadline_ns;
  entry.args_offset = entry.reply_offset = static_cast<std::uint32_t>(slot.offset);
  entry.args_bytes = static_cast<std::uint32_t>(args_bytes);
  entry.reply_bytes = static_cast<std::uint32_t>(slot.bytes);
  entry.a = request.a;
  entry.b = request.b;
  entry.incarnation = request.incarnation;
  wire::SessionMemory& shared = page();
  std::memcpy(&shared.submissions[submitted_ % wire::kRingEntries], &entry, sizeof(entry));
  submitted_++;
  // What waits for events wants a signal for this answer, so the word stands before the node can answer.
  if (events_) Store(shared.client_sleeps, 1);
  Store(shared.submitted, submitted_);
  FullFence();
  if (Load(shared.core_sleeps) != 0) Signal(connection_.core_event);
}

void Channel::Announce() {
  std::atomic_ref(page().announced).fetch_add(1, std::memory_order_relaxed);
  FullFence();
  if (Load(page().core_sleeps) != 0) Signal(connection_.core_event);
}

void Channel::AnnounceToSleeper() {
  if (Load(page().core_sleeps) != 0) Announce();
}

bool Channel::Collect(Kept& kept) {
  const std::uint64_t completed = Load(page().completed);
  if (completed == collected_count_) return false;
  if (completed - collected_count_ > wire::kRingEntries) {
    MarkGone(kept);
    return true;
  }
  for (; collected_count_ != completed; ++collected_count_) {
    wire::Completion completion;
    std::memcpy(&completion, &page().completions[collected_count_ % wire::kRingEntries], sizeof(completion));
    auto place = static_cast<std::uint32_t>(completion.ticket % wire::kRingEntries);
    if (slots_[place].state == State::kSubmitted && IdOf(place) == completion.ticket)
      Done(place, completion, kept);
  }
  Store(page().collected, collected_count_);
  SendReleases();
  collected_.notify_all();
  return true;
}

void Channel::Done(std::uint32_t place, const wire::Completion& completion, Kept& kept) {
  Slot& slot = slots_[place];
  if (slot.keep != nullptr) kept.push_back(std::move(slot.keep));
  if (!slot.given_up) {
    slot.completion = completion;
    slot.state = State::kDone;
    if (slot.polled) unreported_.set(place);
    return;
  }
  if (slot.op == wire::Op::kRelease) --releasing_;
  if (const std::uint64_t lease = LeaseOf(slot, completion); lease != 0) releases_.push_back(lease);
  FreePlace(place);
}

// The lease that an answer brings, 0: none.
std::uint64_t Channel::LeaseOf(const Slot& slot, const wire::Completion& completion) {
  const bool leased = completion.code == static_cast<std::uint16_t>(Code::kOk) &&
                      (slot.op == wire::Op::kAcquire || slot.op == wire::Op::kHold);
  return leased ? completion.a : 0;
}

void Channel::MarkGone(Kept& kept) {
  gone_.store(true);
  for (std::uint32_t place = 0; place < slots_.size(); ++place) {
    if (slots_[place].state != State::kSubmitted) continue;
    wire::Completion completion;
    completion.code = static_cast<std::uint16_t>(Code::kGone);
    Done(place, completion, kept);
  }
  releases_.clear();
  collected_.notify_all();
}

// ---- waiting --------------------------------------------------------------------------------------------

bool Channel::CallReady(std::uint32_t place) {
  if (forked()) return true;
  Kept kept;
  std::lock_guard lock(mutex_);
  Collect(kept);
  if (slots_[place].state == State::kDone) return true;
  // Whoever polls sees a killed node here: nobody of this client may ever wait.
  if (!Check().ok() || HungUp()) MarkGone(kept);
  return slots_[place].state == State::kDone || NowNs() >= slots_[place].answer_by_ns;
}

Result<wire::Completion> Channel::WaitFor(std::uint32_t place) {
  if (forked()) return Error(InChild());
  Kept kept;
  Lock lock(mutex_);
  Slot& slot = slots_[place];
  Collect(kept);
  while (slot.state != State::kDone) {
    const std::int64_t left_ns = slot.answer_by_ns - NowNs();
    if (left_ns <= 0) return Error(Code::kTooLate, "the node did not answer within the call's deadline");
    if (led_) {
      collected_.wait_for(lock, std::chrono::nanoseconds(std::min<std::int64_t>(left_ns, 1'000'000'000)));
    } else {
      Lead(lock, kept, slot.answer_by_ns);
    }
  }
  unreported_.reset(place);
  slot.taken = true;
  if (slot.completion.code == static_cast<std::uint16_t>(Code::kGone) && slot.completion.ticket == 0)
    return Error(Check());
  return slot.completion;
}

void Channel::Lead(Lock& lock, Kept& kept, std::int64_t until_ns) {
  led_ = true;
  // Whoever waits for something else goes on looking, also where this thread is cancelled in its sleep.
  struct Leads {
    Channel& channel;
    Lock& held;
    ~Leads() {
      if (!held.owns_lock()) held.lock();
      channel.led_ = channel.alone_ = false;
      channel.collected_.notify_all();
    }
  } const leads{*this, lock};
  const std::uint64_t seen = collected_count_;
  const bool alone = alone_ = !events_;
  lock.unlock();
  const std::int64_t spin_until_ns = std::min(until_ns, NowNs() + kSpinUs * 1000);
  PoliteSpin spin(32);
  bool came = false;
  while (!(came = Load(page().completed) != seen)) {
    if (spin.Turn() && NowNs() >= spin_until_ns) break;
  }
  if (!came) SleepForCompletion(seen, until_ns, alone);
  bool alive = came || (!HungUp() && Check().ok());
  lock.lock();
  Collect(kept);
  if (!alive) MarkGone(kept);
}

void Channel::SleepForCompletion(std::uint64_t seen, std::int64_t until_ns, bool alone) {
  Store(page().client_sleeps, 1);
  FullFence();
  if (Load(page().completed) == seen) {
    std::int64_t left_ns = std::max<std::int64_t>(until_ns - NowNs(), 0);
    if (!alone) left_ns = std::min(left_ns, kSliceNs);
    std::array<pollfd, 3> waiting = {
        {{.fd = connection_.socket.get(), .events = POLLRDHUP, .revents = 0},
         {.fd = connection_.process.get(), .events = POLLIN, .revents = 0},
         {.fd = connection_.client_event.get(), .events = POLLIN, .revents = 0}}};
    timespec left{.tv_sec = left_ns / 1'000'000'000, .tv_nsec = left_ns % 1'000'000'000};
    ppoll(waiting.data(), alone ? 3 : 2, &left, nullptr);
    if (alone) Drain(connection_.client_event);
  }
  if (!events_) {
    Store(page().client_sleeps, 0);
    FullFence();
    if (!events_) return;
    Store(page().client_sleeps, 1);  // since a moment ago
  }
  // The signal that this sleep took, or that did not come, may have been of an answer that Poll is to give.
  if (alone) MakeReady();
}

void Channel::MakeReady() {
  WatchSocket(epoll_, connection_, EPOLL_CTL_MOD, true);
  unlooked_ = true;
}

bool Channel::HungUp() const {
  // The socket stays open while a forked child of the node has it; the node's process tells then.
  std::array<pollfd, 2> asked = {{{.fd = connection_.socket.get(), .events = POLLRDHUP, .revents = 0},
                                  {.fd = connection_.process.get(), .events = POLLIN, .revents = 0}}};
  return poll(asked.data(), asked.size(), 0) > 0 &&
         ((asked[0].revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0 || asked[1].revents != 0);
}

void Channel::GiveUp(std::uint32_t place) {
  if (forked()) return;
  std::shared_ptr<void> keep;
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[place];
  if (slot.state == State::kSubmitted) {
    slot.given_up = true;
    return;
  }
  keep = std::move(slot.keep);
  const std::uint64_t lease =
      slot.state == State::kDone && !slot.taken && !gone_ ? LeaseOf(slot, slot.completion) : 0;
  FreePlace(place);
  if (lease == 0 || releases_.size() >= kMaxDeferredReleases) return;
  releases_.push_back(lease);
  SendReleases();
}

// ---- without an answer ----------------------------------------------------------------------------------

void Channel::SendReleases() {
  while (!releases_.empty() && !gone_ && releasing_ < kMostReleasing) {
    std::uint32_t place = TakePlace(0);
    if (place == kNoPlace) return;
    slots_[place].given_up = true;
    Request request{.op = wire::Op::kRelease, .a = releases_.back(), .deadline_ns = DeadlineNs(kReleaseUs)};
    releases_.pop_back();
    ++releasing_;
    Push(place, request, 0);
  }
}

void Channel::Release(std::uint64_t lease) {
  if (forked() || gone_) return;
  Kept kept;
  std::lock_guard lock(mutex_);
  // Under the lock, as Close is: a node of this process may end after that.
  if (near_ && !gone_ && near_.release(connection_.welcome.session, lease)) return;
  Collect(kept);
  // Past this the lease ends by its deadline.
  if (releases_.size() < kMaxDeferredReleases) releases_.push_back(lease);
  SendReleases();
}

void Channel::ReportBad(std::uint32_t namespace_slot, std::uint64_t incarnation, const BlockKey& key,
                        std::uint16_t group) {
  Kept kept;
  std::lock_guard lock(mutex_);
  Collect(kept);
  std::uint32_t place = TakePlace(sizeof(wire::BlockItem));
  if (place == kNoPlace) return;
  Slot& slot = slots_[place];
  slot.given_up = true;
  wire::BlockItem item;
  std::memcpy(item.key.bytes.data(), key.bytes.data(), key.bytes.size());
  item.key.size = key.length;
  item.group = group;
  std::memcpy(page().arguments + slot.offset, &item, sizeof(item));
  Push(place,
       Request{.op = wire::Op::kReportBad,
               .namespace_slot = namespace_slot,
               .incarnation = incarnation,
               .deadline_ns = DeadlineNs(kReleaseUs)},
       sizeof(item));
}

void Channel::Touch(arena::Place place, std::uint64_t generation) {
  wire::SessionMemory& shared = page();
  const std::uint64_t number = std::atomic_ref(shared.touched).fetch_add(1, std::memory_order_acq_rel);
  std::atomic_ref(shared.touches[number % wire::kTouchEntries])
      .store(std::uint64_t{place} << 32 | (generation & UINT32_MAX), std::memory_order_relaxed);
  // A core that sleeps does not see the ring fill: it is told twice a round.
  if ((number + 1) % (wire::kTouchEntries / 2) == 0 && Load(shared.core_sleeps) != 0)
    Signal(connection_.core_event);
}

namespace {

void Count(std::uint64_t& word, std::uint64_t more) {
  if (more > 0) std::atomic_ref(word).fetch_add(more, std::memory_order_relaxed);
}

}  // namespace

void Channel::NoteMatch(std::uint64_t asked_blocks, std::uint64_t indexed_blocks) {
  Count(page().reads.asked_blocks, asked_blocks);
  Count(page().reads.indexed_blocks, indexed_blocks);
}

void Channel::NoteReads(std::uint64_t blocks, std::uint64_t bytes) {
  Count(page().reads.read_blocks, blocks);
  Count(page().reads.read_bytes, bytes);
}

void Channel::NoteEngine(const EngineReport& report) {
  wire::EngineCounts& engine = page().engine;
  Count(engine.promised_tokens, report.promised_tokens);
  Count(engine.delivered_tokens, report.delivered_tokens);
  Count(engine.saved_us, report.saved_us);
  Count(engine.spent_us, report.spent_us);
}

std::size_t Channel::Poll(std::vector<std::uint64_t>* ready) {
  if (forked()) return 0;
  Kept kept;
  std::lock_guard lock(mutex_);
  if (events_) {
    // Drained first: a completion that comes after this look signals again. The signal of a thread that
    // sleeps for it is its own; it makes the descriptor ready when it is awake.
    if (!alone_) Drain(connection_.client_event);
    if (unlooked_.exchange(false)) WatchSocket(epoll_, connection_, EPOLL_CTL_MOD, false);
    FullFence();
  }
  Collect(kept);
  if (unreported_.none() && (!Check().ok() || (events_ && HungUp()))) MarkGone(kept);
  std::size_t count = 0;
  for (std::uint32_t place = 0; place < slots_.size() && unreported_.any(); ++place) {
    if (!unreported_.test(place)) continue;
    unreported_.reset(place);
    if (ready != nullptr) ready->push_back(IdOf(place));
    count++;
  }
  return count;
}

int Channel::event_fd() {
  if (!forked() && !events_.exchange(true)) {
    Store(page().client_sleeps, 1);
    FullFence();
    // Answers that came before the word stood have signalled nobody: the first Poll looks for them.
    MakeReady();
  }
  return epoll_.get();
}

}  // namespace cistern::client
