// SPDX-License-Identifier: Apache-2.0
#include "transfer/transfers.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/limits.h"
#include "client/conversation_number.h"
#include "client/fork_mark.h"
#include "transfer/moves.h"

namespace cistern::transfer {
namespace {

// Transfers of one kind under way at once: the next begin while these wait for the node.
constexpr std::size_t kUnderWay = 8;
// How soon a lane looks again when all that is under way waits for the node.
constexpr std::int64_t kFirstLookNs = 50'000;
constexpr std::int64_t kLastLookNs = 1'000'000;
// A look that takes as long was at a node that is silent.
constexpr std::int64_t kLongNs = 100'000'000;
// What saves may have in staging; asked for once, before the first of them.
constexpr std::uint64_t kStagingBytes = 16u << 20;

std::int64_t NowNs() { return SystemClock().Now().ns; }
std::int64_t DueNs(std::int64_t now_ns, std::int64_t us) { return Instant{now_ns}.PlusUs(us).ns; }

std::chrono::steady_clock::time_point TimePoint(std::int64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

Status CheckMove(const PageMove& move, bool distinct) {
  if (move.keys == nullptr || move.pages == nullptr)
    return Status(Code::kInvalid, "a transfer without keys or pages");
  if (move.ns.incarnation() == 0) return Status(Code::kInvalid, "the namespace is none that Attach gave");
  if (move.keys->size() != move.page_ids.size())
    return Status(Code::kInvalid, Text(move.page_ids.size(), " page_ids for ", move.keys->size(),
                                       " keys: one a key is needed"));
  if (move.deadline_us <= 0)
    return Status(Code::kInvalid,
                  Text("deadline_us is ", move.deadline_us, ": that is in the past, give one over 0"));
  const std::vector<GroupSpec>& groups = move.ns.spec().groups;
  if (move.group >= groups.size())
    return Status(Code::kInvalid, Text("group ", move.group, ", the namespace has ", groups.size()));
  const std::vector<std::uint64_t>& parts = groups[move.group].part_bytes;
  const std::size_t count = std::max<std::size_t>(parts.size(), 1);
  if (move.part >= count) return Status(Code::kInvalid, Text("part ", move.part, ", its group has ", count));
  if (!parts.empty() && parts[move.part] != move.pages->part_bytes())
    return Status(Code::kInvalid, Text("part ", move.part, " of group ", move.group, " has ",
                                       parts[move.part], " bytes and a page ", move.pages->part_bytes()));
  if (move.pages->part_bytes() > kMaxBodyBytes)
    return Status(Code::kInvalid, Text("a page has ", move.pages->part_bytes(),
                                       " bytes, a part of a block has ", kMaxBodyBytes, " at most"));
  return move.pages->Check(move.page_ids, distinct);
}

Status CheckLoad(const PageLoad& load) {
  if (load.worth_us < 0)
    return Status(Code::kInvalid,
                  Text("worth_us is ", load.worth_us, ": that is in the past, give 0 or more"));
  return CheckMove(load, true);
}

Status CheckSave(const PageSave& save) {
  Status status = CheckMove(save, false);
  if (!status.ok()) return status;
  const std::size_t keys = save.keys->size();
  if (save.parents.size() != keys)
    return Status(Code::kInvalid,
                  Text(save.parents.size(), " parents for ", keys, " keys: one a key is needed"));
  if (const auto number = client::ConversationNumber(save.conversation); !number) return number.error();
  if (!save.put_ids.empty() && save.put_ids.size() != keys)
    return Status(Code::kInvalid,
                  Text(save.put_ids.size(), " put_ids for ", keys, " keys: one a key is needed"));
  if (save.put_ids.empty() && save.held && keys > 0)
    return Status(Code::kInvalid, "held without put_ids: publish and abandon name puts by them");
  return Status();
}

// One submitted transfer.
struct Entry {
  std::uint64_t id = 0;
  std::int64_t submitted_ns = 0;
  std::int64_t deadline_ns = 0;
  std::int64_t worth_ns = INT64_MAX;
  std::atomic<bool> cancelled{false};
  bool left_pages = false;  // under the mutex
  PageLoad load;            // one of the two
  PageSave save;
  std::unique_ptr<Move> move;
};

using EntryPtr = std::shared_ptr<Entry>;

// Spreads bytes over time.
class Pace final {
 public:
  explicit Pace(std::uint64_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  void Moved(std::uint64_t bytes, std::int64_t now_ns) {
    if (bytes_per_s_ == 0 || bytes == 0) return;
    const double ns = static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_s_);
    next_ns_ = std::max(next_ns_, now_ns) + static_cast<std::int64_t>(ns);
  }
  std::int64_t next_ns() const { return next_ns_; }

 private:
  const std::uint64_t bytes_per_s_;
  std::int64_t next_ns_ = 0;
};

// Ready when there are reports, or may be.
class Signal final {
 public:
  static Result<Signal> Make() {
    Signal signal;
    signal.reports_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    signal.timer_ = Fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    signal.both_ = Fd(epoll_create1(EPOLL_CLOEXEC));
    for (const Fd* one : {&signal.reports_, &signal.timer_}) {
      epoll_event readable{.events = EPOLLIN, .data = {}};
      if (!signal.both_.valid() || !one->valid() ||
          epoll_ctl(signal.both_.get(), EPOLL_CTL_ADD, one->get(), &readable) != 0)
        return Error(Code::kIoError, Text("the event descriptor cannot be made: ", ErrnoText(errno)));
    }
    return signal;
  }
  int fd() const { return both_.get(); }
  void Raise() {
    const std::uint64_t one = 1;
    [[maybe_unused]] ssize_t put = write(reports_.get(), &one, sizeof(one));
  }
  void Lower() {
    std::uint64_t count;
    [[maybe_unused]] ssize_t got = read(reports_.get(), &count, sizeof(count));
  }
  // One time, INT64_MAX: never; it is ready from then on until another is set.
  std::int64_t due_ns() const { return due_ns_; }
  void SetDue(std::int64_t due_ns) {
    due_ns_ = due_ns;
    itimerspec at{};
    if (due_ns != INT64_MAX)
      at.it_value = {.tv_sec = due_ns / 1'000'000'000, .tv_nsec = due_ns % 1'000'000'000};
    static_cast<void>(timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr));
  }

 private:
  Fd reports_, timer_, both_;
  std::int64_t due_ns_ = INT64_MAX;
};

}  // namespace

class Transfers::Shared final {
 public:
  Shared(std::shared_ptr<Store> store, const TransfersOptions& options, Signal signal,
         client::ForkMark fork_mark)
      : options_(options),
        store_(std::move(store)),
        signal_(std::move(signal)),
        fork_mark_(std::move(fork_mark)),
        budget_(kStagingBytes) {}

  bool forked() const { return fork_mark_.forked(); }
  int event_fd() const { return signal_.fd(); }

  Status Start() {
    try {
      for (std::size_t kind = 0; kind < lanes_.size(); ++kind)
        lanes_[kind].thread = std::thread([this, kind] { Run(lanes_[kind], kind); });
    } catch (const std::system_error& error) {
      Close();  // the first may run
      return Status(Code::kBusy, Text("transfers take ", lanes_.size(),
                                      " threads, and the system has no more: ", error.what()));
    }
    return Status();
  }

  Result<std::uint64_t> Submit(EntryPtr entry, TransferKind kind, std::int64_t deadline_us) {
    entry->submitted_ns = NowNs();
    entry->deadline_ns = DueNs(entry->submitted_ns, deadline_us);
    if (kind == TransferKind::kLoad) entry->worth_ns = DueNs(entry->submitted_ns, entry->load.worth_us);
    Lane& lane = lanes_[static_cast<std::size_t>(kind)];
    std::lock_guard lock(mutex_);
    if (closing_) return Error(Code::kGone, "these transfers were closed");
    if (lane.unreported >= options_.queue)
      return Error(Code::kBusy, Text(lane.unreported, kind == TransferKind::kLoad ? " loads" : " saves",
                                     " are in flight or not polled, which is the limit"));
    entry->id = ++last_id_;
    lane.unreported++;
    if (entry->deadline_ns < signal_.due_ns()) signal_.SetDue(entry->deadline_ns);
    lane.queue.push_back(entry);
    entries_.emplace(entry->id, std::move(entry));
    lane.work.notify_one();
    return last_id_;
  }

  std::vector<TransferDone> Poll() {
    std::lock_guard lock(mutex_);
    ExpireQueued(NowNs());
    return TakeDone();
  }

  std::vector<TransferDone> Wait(std::int64_t timeout_us) {
    const std::int64_t until_ns = DueNs(NowNs(), timeout_us);
    std::unique_lock lock(mutex_);
    for (;;) {
      const std::int64_t now_ns = NowNs();
      ExpireQueued(now_ns);
      if (!done_.empty() || entries_.empty() || now_ns >= until_ns) return TakeDone();
      WaitUntil(lock, std::min(until_ns, FirstDue()));
    }
  }

  bool WaitPages(std::optional<std::span<const std::uint64_t>> ids, std::int64_t timeout_us) {
    const std::int64_t until_ns = DueNs(NowNs(), timeout_us);
    std::unique_lock lock(mutex_);
    const std::uint64_t last = last_id_;
    const auto on_pages = [&](std::uint64_t id) {
      auto entry = entries_.find(id);
      return entry != entries_.end() && !entry->second->left_pages;
    };
    const auto waits = [&] {
      if (ids) return std::any_of(ids->begin(), ids->end(), on_pages);
      return std::any_of(entries_.begin(), entries_.upper_bound(last),
                         [](const auto& entry) { return !entry.second->left_pages; });
    };
    while (waits()) {
      const std::int64_t now_ns = NowNs();
      if (now_ns >= until_ns) return false;
      WaitUntil(lock, std::min(until_ns, FirstDue()));
      ExpireQueued(NowNs());
    }
    return true;
  }

  bool Cancel(std::uint64_t id) {
    std::lock_guard lock(mutex_);
    auto found = entries_.find(id);
    if (found == entries_.end()) return false;
    found->second->cancelled = true;
    for (Lane& lane : lanes_) {
      // Behind others it ends here and now.
      if (auto queued = std::find(lane.queue.begin(), lane.queue.end(), found->second);
          queued != lane.queue.end()) {
        EntryPtr entry = *queued;
        lane.queue.erase(queued);
        ReportUnbegun(*entry);
        return true;
      }
    }
    for (Lane& lane : lanes_) lane.work.notify_one();
    return true;
  }

  std::size_t in_flight() const {
    std::lock_guard lock(mutex_);
    return entries_.size() + done_.size();
  }
  bool IsInFlight(std::uint64_t id) const {
    std::lock_guard lock(mutex_);
    return entries_.contains(id) || std::ranges::find(done_, id, &TransferDone::id) != done_.end();
  }

  void Close() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      for (Lane& lane : lanes_) lane.work.notify_one();
    }
    std::lock_guard joining(close_mutex_);
    for (Lane& lane : lanes_) {
      if (lane.thread.joinable()) lane.thread.join();
    }
    store_.reset();
  }

 private:
  static constexpr auto kSaves = static_cast<std::size_t>(TransferKind::kSave);
  struct Lane {
    std::deque<EntryPtr> queue;  // not begun
    std::uint32_t unreported = 0;
    std::condition_variable work;
    std::thread thread;
  };

  std::vector<TransferDone> TakeDone() {
    if (done_.empty()) return {};
    signal_.Lower();
    for (const TransferDone& done : done_) lanes_[static_cast<std::size_t>(done.kind)].unreported--;
    return std::exchange(done_, {});
  }

  void WaitUntil(std::unique_lock<std::mutex>& lock, std::int64_t until_ns) {
    // A wait without an end would overflow in some libraries: an hour, and it looks again.
    const std::int64_t most_ns = NowNs() + 3'600'000'000'000;
    finished_.wait_until(lock, TimePoint(std::min(until_ns, most_ns)));
  }

  // Of what has not begun.
  std::int64_t FirstDue() const {
    std::int64_t due_ns = INT64_MAX;
    for (const Lane& lane : lanes_) {
      for (const EntryPtr& entry : lane.queue) due_ns = std::min(due_ns, entry->deadline_ns);
    }
    return due_ns;
  }

  // What has not begun by its deadline is reported even if its lane is still copying, or waits for the node.
  void ExpireQueued(std::int64_t now_ns) {
    for (Lane& lane : lanes_) {
      std::erase_if(lane.queue, [&](const EntryPtr& entry) {
        if (now_ns < entry->deadline_ns) return false;
        ReportUnbegun(*entry);
        return true;
      });
    }
    if (now_ns >= signal_.due_ns()) signal_.SetDue(FirstDue());
  }

  void ReportUnbegun(Entry& entry) {
    Begin(entry);
    entry.move->Stop(Code::kTooLate);
    ReportLocked(entry);
  }

  void Begin(Entry& entry) {
    if (entry.load.keys != nullptr) {
      entry.move = std::make_unique<LoadMove>(*store_, entry.load);
    } else {
      entry.move = std::make_unique<SaveMove>(*store_, budget_, entry.save);
    }
  }

  void Report(Entry& entry) {
    std::lock_guard lock(mutex_);
    ReportLocked(entry);
  }
  void ReportLocked(Entry& entry) {
    TransferDone& done = entry.move->done();
    done.id = entry.id;
    done.took_us = (NowNs() - entry.submitted_ns) / 1000;
    done_.push_back(std::move(done));
    entries_.erase(entry.id);
    signal_.Raise();
    finished_.notify_all();
  }

  // ---- a lane's thread ----------------------------------------------------------------------------------

  void Run(Lane& lane, std::size_t kind) {
    pthread_setname_np(pthread_self(), kind == 0 ? "cistern-load" : "cistern-save");
    // Grown once and given back: what was granted stays this session's. Not by who makes the transfers: an
    // engine would wait for a node that is silent, and some only load. Saves are queued meanwhile, where they
    // end by their deadlines however long the node takes.
    if (kind == kSaves && WaitForFirst(lane)) static_cast<void>(store_->AllocateStaging(kStagingBytes, kStagingUs));
    std::vector<EntryPtr> under_way;
    Pace pace(options_.max_bytes_per_s);
    std::int64_t look_ns = kFirstLookNs;
    while (TakeWork(lane, under_way)) {
      EndWhatIsOver(under_way);
      if (StepOnce(lane, under_way, pace)) {
        look_ns = kFirstLookNs;
        continue;
      }
      if (under_way.empty()) continue;
      std::unique_lock lock(mutex_);
      lane.work.wait_for(lock, std::chrono::nanoseconds(look_ns));
      look_ns = std::min(look_ns * 2, kLastLookNs);
    }
  }

  // Waits until something is queued; false: it is closed.
  bool WaitForFirst(Lane& lane) {
    std::unique_lock lock(mutex_);
    lane.work.wait(lock, [&] { return closing_ || !lane.queue.empty(); });
    return !closing_;
  }

  // Waits for something to do; false: it is closed and nothing is under way.
  bool TakeWork(Lane& lane, std::vector<EntryPtr>& under_way) {
    std::unique_lock lock(mutex_);
    for (;;) {
      ExpireQueued(NowNs());
      if (!under_way.empty() || TakeFirst(lane, under_way)) return true;
      if (closing_) return false;
      lane.work.wait(lock);
    }
  }

  // Under the mutex.
  bool TakeFirst(Lane& lane, std::vector<EntryPtr>& under_way) {
    if (lane.queue.empty()) return false;
    under_way.push_back(std::move(lane.queue.front()));
    lane.queue.pop_front();
    return true;
  }

  // No earlier than it begins: while this thread is held up by another, it ends by its deadline in the queue.
  bool TakeNext(Lane& lane, std::vector<EntryPtr>& under_way, const Pace& pace) {
    if (under_way.size() >= kUnderWay || pace.next_ns() > NowNs()) return false;
    std::lock_guard lock(mutex_);
    return !closing_ && TakeFirst(lane, under_way);
  }

  bool closing() const {
    std::lock_guard lock(mutex_);
    return closing_;
  }

  void EndWhatIsOver(std::vector<EntryPtr>& under_way) {
    const std::int64_t now_ns = NowNs();
    const bool all = closing();
    std::erase_if(under_way, [&](const EntryPtr& entry) {
      if (!all && !entry->cancelled && now_ns < entry->deadline_ns) return false;
      if (entry->move == nullptr) Begin(*entry);
      entry->move->Stop(Code::kTooLate);
      Report(*entry);
      return true;
    });
  }

  // A batch of the first that does not wait: those that were submitted first are done first. One that was
  // long with a silent node is the last, so that those that are over meanwhile are ended before another is as
  // long.
  bool StepOnce(Lane& lane, std::vector<EntryPtr>& under_way, Pace& pace) {
    for (std::size_t at = 0; at < under_way.size() || TakeNext(lane, under_way, pace); ++at) {
      Entry& entry = *under_way[at];
      if (entry.move == nullptr) Begin(entry);
      const std::int64_t now_ns = NowNs();
      const Step step = entry.move->Go(LeaveOf(entry, now_ns, pace.next_ns() <= now_ns));
      pace.Moved(entry.move->TakeCopied(), now_ns);
      if (step == Step::kDone) {
        Report(entry);
        under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(at));
        return true;
      }
      if (entry.move->left_pages()) MarkLeft(entry);
      if (step == Step::kMoved) return true;
      if (NowNs() - now_ns > kLongNs) return false;
    }
    return false;
  }

  static Move::Leave LeaveOf(const Entry& entry, std::int64_t now_ns, bool may_begin) {
    Move::Leave leave{.deadline_us = std::max<std::int64_t>((entry.deadline_ns - now_ns) / 1000, 1),
                      .worth_us = kNoWorthLimit,
                      .may_begin = may_begin};
    if (entry.worth_ns != INT64_MAX) leave.worth_us = (entry.worth_ns - now_ns) / 1000;
    if (entry.worth_ns < now_ns) leave.worth_us = -1;
    return leave;
  }

  void MarkLeft(Entry& entry) {
    std::lock_guard lock(mutex_);
    if (entry.left_pages) return;
    entry.left_pages = true;
    finished_.notify_all();
  }

  const TransfersOptions options_;
  std::shared_ptr<Store> store_;  // null once closed: nothing is left to be begun
  Signal signal_;
  const client::ForkMark fork_mark_;

  mutable std::mutex mutex_;
  std::condition_variable finished_;
  std::array<Lane, 2> lanes_;                  // by TransferKind
  std::map<std::uint64_t, EntryPtr> entries_;  // not reported
  std::vector<TransferDone> done_;             // not given out
  std::uint64_t last_id_ = 0;
  bool closing_ = false;
  std::mutex close_mutex_;
  StagingBudget budget_;  // of the saving thread alone
};

Result<std::unique_ptr<Transfers>> Transfers::Make(std::shared_ptr<Store> store,
                                                   const TransfersOptions& options) {
  if (options.queue == 0 || options.queue > kMaxQueue)
    return Error(Code::kInvalid, Text("queue is ", options.queue, ", it has 1 to ", kMaxQueue));
  Result<Signal> signal = Signal::Make();
  if (!signal) return Error(std::move(signal.error()));
  Result<client::ForkMark> fork_mark = client::ForkMark::Make();
  if (!fork_mark) return Error(std::move(fork_mark.error()));
  auto shared =
      std::make_unique<Shared>(std::move(store), options, std::move(*signal), std::move(*fork_mark));
  if (Status started = shared->Start(); !started.ok()) return Error(std::move(started));
  return std::unique_ptr<Transfers>(new Transfers(std::move(shared)));
}

Transfers::Transfers(std::unique_ptr<Shared> shared) : shared_(std::move(shared)) {}

Transfers::~Transfers() {
  // The threads are the parent's, and so is what they hold.
  if (shared_->forked())
    static_cast<void>(shared_.release());
  else
    Close();
}

Result<std::uint64_t> Transfers::Submit(PageLoad load) {
  if (shared_->forked()) return Error(Code::kDenied, "these transfers belong to the parent process");
  if (Status status = CheckLoad(load); !status.ok()) return Error(std::move(status));
  auto entry = std::make_shared<Entry>();
  const std::int64_t deadline_us = load.deadline_us;
  entry->load = std::move(load);
  return shared_->Submit(std::move(entry), TransferKind::kLoad, deadline_us);
}

Result<std::uint64_t> Transfers::Submit(PageSave save) {
  if (shared_->forked()) return Error(Code::kDenied, "these transfers belong to the parent process");
  if (Status status = CheckSave(save); !status.ok()) return Error(std::move(status));
  auto entry = std::make_shared<Entry>();
  const std::int64_t deadline_us = save.deadline_us;
  entry->save = std::move(save);
  return shared_->Submit(std::move(entry), TransferKind::kSave, deadline_us);
}

std::vector<TransferDone> Transfers::Poll() {
  if (shared_->forked()) return {};
  return shared_->Poll();
}
std::vector<TransferDone> Transfers::Wait(std::int64_t timeout_us) {
  if (shared_->forked()) return {};
  return shared_->Wait(timeout_us);
}
bool Transfers::WaitPages(std::optional<std::span<const std::uint64_t>> ids, std::int64_t timeout_us) {
  return shared_->forked() || shared_->WaitPages(ids, timeout_us);
}
bool Transfers::Cancel(std::uint64_t id) { return !shared_->forked() && shared_->Cancel(id); }
std::size_t Transfers::in_flight() const { return shared_->forked() ? 0 : shared_->in_flight(); }
bool Transfers::IsInFlight(std::uint64_t id) const { return !shared_->forked() && shared_->IsInFlight(id); }
int Transfers::event_fd() const { return shared_->event_fd(); }
void Transfers::Close() {
  if (!shared_->forked()) shared_->Close();
}

}  // namespace cistern::transfer
