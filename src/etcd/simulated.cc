// SPDX-License-Identifier: Apache-2.0
#include "etcd/simulated.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/event.h"
#include "base/format.h"

namespace cistern::etcd {
namespace {

constexpr std::int64_t kLeastLeaseS = 2;  // with etcd's own election timeout
constexpr std::int64_t kSlowness = 100;

// Of a key, as the gateway says it besides key and value.
constexpr std::size_t kKeyBytes = 150;

// What the gateway's answer takes, which has keys and values in base64.
std::size_t AnswerBytes(std::span<const RangeAnswer> ranges) {
  std::size_t bytes = 0;
  for (const RangeAnswer& range : ranges) {
    for (const KeyValue& key : range.keys) bytes += (key.key.size() + key.value.size()) * 4 / 3 + kKeyBytes;
  }
  return bytes;
}

Status TooLong(Code code) {
  return Status(code, Text("simulated etcd: the answer is longer than ", Limits::kAnswerBytes, " bytes"));
}

// A key as one revision left it.
struct KeyVersion {
  std::int64_t revision = 0, create_revision = 0;  // created by 0: deleted
  std::int64_t lease = 0;
  std::string value;
};

}  // namespace

struct SimulatedEtcd::State {
  std::uint64_t cluster_id = 0;
  std::int64_t revision = 1, compacted = 0;
  std::map<std::string, std::vector<KeyVersion>, std::less<>> keys;
  std::map<std::int64_t, std::vector<WatchEvent>> log;  // what changed, from `compacted` on
  std::map<std::int64_t, std::int64_t> leases;          // and their seconds

  Header header() const { return {cluster_id, revision}; }

  // What the key was as of the revision; null: it was not there.
  static const KeyVersion* Find(const std::vector<KeyVersion>& versions, std::int64_t as_of) {
    auto behind = std::ranges::upper_bound(versions, as_of, {}, &KeyVersion::revision);
    if (behind == versions.begin() || std::prev(behind)->create_revision == 0) return nullptr;
    return &*std::prev(behind);
  }
  const KeyVersion* Find(const std::string& key) const {
    const auto found = keys.find(key);
    return found == keys.end() ? nullptr : Find(found->second, revision);
  }

  RangeAnswer Range(const KeyRange& range, std::int64_t as_of, std::int64_t limit) const {
    RangeAnswer answer;
    for (auto at = keys.lower_bound(range.key); at != keys.end() && range.Contains(at->first); ++at) {
      const KeyVersion* version = Find(at->second, as_of);
      if (version == nullptr) continue;
      if (limit > 0 && answer.keys.size() == static_cast<std::size_t>(limit)) {
        answer.more = true;
        break;
      }
      answer.keys.push_back(
          {at->first, version->value, version->create_revision, version->revision, version->lease});
    }
    return answer;
  }

  void Put(const Operation& operation, std::int64_t at_revision, std::vector<WatchEvent>& events) {
    const std::string& key = operation.keys.key;
    std::vector<KeyVersion>& versions = keys[key];
    const KeyVersion* before = Find(versions, at_revision);
    const std::int64_t created = before != nullptr ? before->create_revision : at_revision;
    versions.push_back({at_revision, created, operation.lease, operation.value});
    events.push_back({WatchEvent::Kind::kPut, {key, operation.value, created, at_revision, operation.lease}});
  }
  void Delete(const KeyRange& range, std::int64_t at_revision, std::vector<WatchEvent>& events) {
    for (auto at = keys.lower_bound(range.key); at != keys.end() && range.Contains(at->first); ++at) {
      if (Find(at->second, at_revision) == nullptr) continue;
      at->second.push_back({.revision = at_revision});
      events.push_back({WatchEvent::Kind::kDelete, {.key = at->first, .mod_revision = at_revision}});
    }
  }
  // The next revision is what these events say, if they say anything.
  void Advance(std::vector<WatchEvent> events) {
    if (events.empty()) return;
    log.emplace(++revision, std::move(events));
  }

  bool Holds(const Compare& condition) const {
    const KeyVersion* version = Find(condition.key);
    if (condition.what == Compare::What::kValue)
      return version != nullptr && version->value == condition.value;
    if (version == nullptr) return condition.number == 0;
    const bool created = condition.what == Compare::What::kCreateRevision;
    return (created ? version->create_revision : version->revision) == condition.number;
  }

  // Versions that no revision from `upto` on shows go, and so do deletes at it, as etcd has it.
  void Compact(std::int64_t upto) {
    compacted = upto;
    for (auto at = keys.begin(); at != keys.end();) {
      std::vector<KeyVersion>& versions = at->second;
      auto keep = std::ranges::upper_bound(versions, upto, {}, &KeyVersion::revision);
      if (keep != versions.begin() && std::prev(keep)->create_revision != 0) --keep;
      versions.erase(versions.begin(), keep);
      at = versions.empty() ? keys.erase(at) : std::next(at);
    }
    log.erase(log.begin(), log.lower_bound(upto));
    if (const auto at = log.find(upto); at != log.end())
      std::erase_if(at->second,
                    [](const WatchEvent& event) { return event.kind == WatchEvent::Kind::kDelete; });
  }
};

class SimulatedEtcd::Backup {
 public:
  explicit Backup(State state) : state_(std::move(state)) {}

 private:
  friend class SimulatedEtcd;
  const State state_;
};

// A question on its way, and its answer. It may outlive who asked.
class SimulatedEtcd::Call {
 public:
  Call(SimulatedEtcd& etcd, std::string client) : client_(std::move(client)), life_(etcd.life_) {}
  virtual ~Call() = default;
  virtual void TakeEffect() = 0;
  virtual void Fail(Status status) = 0;
  void End() { answered_.Set(); }

 protected:
  friend class SimulatedEtcd;
  const std::string client_;
  const std::uint64_t life_;
  bool given_up_ = false;
  Event answered_;
};

template <class A>
class SimulatedEtcd::CallFor final : public Call {
 public:
  CallFor(SimulatedEtcd& etcd, std::string client, std::function<Result<A>()> effect)
      : Call(etcd, std::move(client)), effect_(std::move(effect)) {}
  void TakeEffect() override { answer_ = effect_(); }
  void Fail(Status status) override { answer_ = Error(std::move(status)); }

  // For who asks; a dropped wait gives up as a deadline does.
  Task<Result<A>> Wait(Executor& executor, std::shared_ptr<Call> self, Instant deadline) {
    struct GiveUp {
      std::shared_ptr<Call> call;
      CallFor& mine;
      ~GiveUp() { mine.given_up_ = true; }
    } give_up{std::move(self), *this};
    (void)executor;
    const Status in_time = co_await answered_.Wait(deadline);
    if (!in_time.ok())
      co_return Error(Code::kTooLate, Text("simulated etcd: no answer for ", client_, " by its deadline"));
    co_return std::move(answer_);
  }

 private:
  std::function<Result<A>()> effect_;
  Result<A> answer_;
};

class SimulatedWatch final : public Watch {
 public:
  SimulatedWatch(SimulatedEtcd& etcd, Executor& runs_on, std::string client, KeyRange keys,
                 std::int64_t revision)
      : etcd_(etcd),
        executor_(runs_on),
        client_(std::move(client)),
        keys_(std::move(keys)),
        number_(++etcd.last_watch_),
        position_(revision),
        next_revision_(revision),
        delivery_(etcd.executor_, [this] { Deliver(); }) {
    CISTERN_ASSERT(revision >= 1);
    etcd_.watches_.emplace(number_, this);
    Schedule();
  }
  ~SimulatedWatch() override { etcd_.watches_.erase(number_); }

  Executor& executor() const { return executor_; }
  Task<Result<std::vector<WatchEvent>>> Next(Instant deadline) override {
    while (unread_.empty()) {
      if (!end_.ok()) co_return Error(end_);
      const Status came = co_await news_.Wait(deadline);
      if (!came.ok())
        co_return Error(Code::kTooLate, Text("simulated etcd: no change for ", client_, " by its deadline"));
    }
    next_revision_ = unread_.back().key.mod_revision + 1;
    unread_bytes_ = 0;
    co_return std::exchange(unread_, {});
  }
  std::int64_t next_revision() const override { return next_revision_; }
  std::int64_t compact_revision() const override { return compact_revision_; }

  void Schedule() {
    if (!end_.ok() || silenced_ || delivery_.armed()) return;
    delivery_.Arm(etcd_.After(etcd_.lags_.event_us));
  }
  void Break() { broken_ = true, Schedule(); }
  void Silence() {
    silenced_ = true;
    delivery_.Disarm();
  }

 private:
  void End(Code code, std::string_view why) {
    end_ = Status(code, Text("simulated etcd: the watch of ", client_, " ended: ", why));
    news_.Pulse();
  }

  // What has happened since the last delivery, if it gets through.
  void Deliver() {
    const SimulatedEtcd::State& state = *etcd_.state_;
    if (etcd_.cut_.contains(client_)) return;  // until it is healed
    if (broken_) return End(Code::kGone, "the connection broke");
    if (etcd_.silent_) return;  // until it wakes
    if (etcd_.stopped_) return End(Code::kGone, "no endpoint can be reached");
    if (etcd_.denied_.contains(client_)) return End(Code::kDenied, "it asks for a login");
    if (etcd_.deaf_.contains(client_)) return Silence();
    if (position_ < state.compacted) {
      compact_revision_ = state.compacted;
      return End(Code::kLapsed, Text("revision ", position_, " is compacted, up to ", state.compacted));
    }
    if (position_ > state.revision) return;
    if (etcd_.random_.Chance(etcd_.chances_.cancelled_watch)) return End(Code::kGone, "it was cancelled");
    if (etcd_.random_.Chance(etcd_.chances_.silent_watch)) return Silence();
    std::int64_t until = state.revision;
    if (etcd_.random_.Chance(etcd_.chances_.split)) {
      until = static_cast<std::int64_t>(etcd_.random_.Between(static_cast<std::uint64_t>(position_),
                                                              static_cast<std::uint64_t>(state.revision)));
    }
    for (auto at = state.log.lower_bound(position_); at != state.log.end() && at->first <= until; ++at) {
      for (const WatchEvent& event : at->second) {
        if (!keys_.Contains(event.key.key)) continue;
        unread_bytes_ += event.key.key.size() + event.key.value.size() + Limits::kEventBytes;
        unread_.push_back(event);
      }
    }
    position_ = until + 1;
    if (!unread_.empty()) news_.Pulse();
    if (unread_bytes_ > Limits::kUnreadBytes)
      return End(Code::kBusy, Text(unread_.size(), " changes are unread, ", unread_bytes_, " bytes"));
    if (position_ <= state.revision) Schedule();
  }

  SimulatedEtcd& etcd_;
  Executor& executor_;
  const std::string client_;
  const KeyRange keys_;
  const std::uint64_t number_;
  std::int64_t position_;  // behind what was delivered
  std::int64_t next_revision_, compact_revision_ = 0;
  std::vector<WatchEvent> unread_;
  std::size_t unread_bytes_ = 0;
  Status end_;
  Event news_;
  bool broken_ = false, silenced_ = false;
  Timer delivery_;
};

class SimulatedClient final : public Etcd {
 public:
  SimulatedClient(SimulatedEtcd& etcd, Executor& runs_on, std::string name)
      : etcd_(etcd), executor_(runs_on), name_(std::move(name)) {}

  Executor& executor() override { return executor_; }

  Task<Result<RangeAnswer>> Range(RangeRequest request, Instant deadline) override {
    Status valid = Validate(request);
    return Ask<RangeAnswer>(
        std::move(valid),
        [&etcd = etcd_, name = name_, request = std::move(request)]() -> Result<RangeAnswer> {
          if (etcd.keyless_.contains(name)) return Error(TooLong(Code::kInvalid));
          return etcd.DoRange(request);
        },
        deadline);
  }
  Task<Result<TransactionAnswer>> Commit(Transaction transaction, Instant deadline) override {
    Status valid = Validate(transaction);
    return Ask<TransactionAnswer>(
        std::move(valid),
        [&etcd = etcd_, name = name_, transaction = std::move(transaction)]() -> Result<TransactionAnswer> {
          if (etcd.keyless_.contains(name)) return Error(TooLong(Code::kInvalid));
          return etcd.DoCommit(transaction);
        },
        deadline);
  }
  Task<Result<LeaseAnswer>> Grant(std::int64_t ttl_s, Instant deadline) override {
    return Ask<LeaseAnswer>(
        ValidateLeaseTtl(ttl_s), [&etcd = etcd_, ttl_s] { return etcd.DoGrant(ttl_s); }, deadline);
  }
  Task<Result<LeaseAnswer>> KeepAlive(std::int64_t lease, Instant deadline) override {
    return Ask<LeaseAnswer>(Status(), [&etcd = etcd_, lease] { return etcd.DoKeepAlive(lease); }, deadline);
  }
  Task<Status> Revoke(std::int64_t lease, Instant deadline) override {
    return StatusOf(executor(),
                    Ask<Header>(Status(), [&etcd = etcd_, lease] { return etcd.DoRevoke(lease); }, deadline));
  }
  std::unique_ptr<Watch> WatchFrom(KeyRange keys, std::int64_t revision) override {
    return std::make_unique<SimulatedWatch>(etcd_, executor_, name_, std::move(keys), revision);
  }
  Task<Status> Compact(std::int64_t revision, Instant deadline) override {
    return StatusOf(
        executor(),
        Ask<Header>(Status(), [&etcd = etcd_, revision] { return etcd.DoCompact(revision); }, deadline));
  }

 private:
  template <class A>
  Task<Result<A>> Ask(Status valid, std::function<Result<A>()> effect, Instant deadline) {
    auto call = std::make_shared<SimulatedEtcd::CallFor<A>>(etcd_, name_, std::move(effect));
    if (valid.ok()) {
      etcd_.Send(call);
    } else {
      call->Fail(std::move(valid));
      call->End();
    }
    return call->Wait(executor_, call, deadline);
  }
  static Task<Status> StatusOf(Executor&, Task<Result<Header>> asked) {
    auto answer = co_await asked;
    co_return answer ? Status() : std::move(answer.error());
  }

  SimulatedEtcd& etcd_;
  Executor& executor_;
  const std::string name_;
};

SimulatedEtcd::SimulatedEtcd(Executor& executor, std::uint64_t seed, const SimulatedLags& lags)
    : executor_(executor),
      random_(seed),
      lags_(lags),
      state_(std::make_unique<State>()),
      timer_(executor, [this] { RunDue(); }) {
  state_->cluster_id = random_.Next();
}

SimulatedEtcd::~SimulatedEtcd() { CISTERN_ASSERT(watches_.empty()); }

std::unique_ptr<Etcd> SimulatedEtcd::Client(std::string name, Executor& executor) {
  return std::make_unique<SimulatedClient>(*this, executor, std::move(name));
}

Header SimulatedEtcd::header() const { return state_->header(); }

void SimulatedEtcd::At(Instant when, Callback callback) {
  due_.emplace(when, std::move(callback));
  timer_.Arm(due_.begin()->first);
}

void SimulatedEtcd::RunDue() {
  while (!due_.empty() && due_.begin()->first <= executor_.Now()) {
    const auto first = due_.extract(due_.begin());
    first.mapped()();
  }
  if (!due_.empty()) timer_.Arm(due_.begin()->first);
}

Instant SimulatedEtcd::After(std::int64_t lag_us) {
  const auto lag_ns = static_cast<std::uint64_t>(lag_us) * 1'000;
  const auto by_chance_ns = static_cast<std::int64_t>(lag_ns / 2 + random_.Below(lag_ns + 1));
  return executor_.Now().PlusNs(by_chance_ns * (random_.Chance(chances_.slow) ? kSlowness : 1));
}

// ------------------------------------------------------------------------------------------------- calls

void SimulatedEtcd::Send(std::shared_ptr<Call> call) {
  ++calls_;
  if (random_.Chance(chances_.lost_question)) return;
  At(After(lags_.answer_us / 2), [this, call = std::move(call)] { Arrive(call); });
}

void SimulatedEtcd::Arrive(std::shared_ptr<Call> call) {
  const auto fails = [&](Code code, std::string_view why) {
    call->Fail(Status(code, Text("simulated etcd: ", why, " for ", call->client_)));
    Answer(std::move(call));
  };
  if (IsHeld(call->client_) && call->life_ == life_) {
    held_.emplace_back(call->client_, [this, call] { Arrive(call); });
    return;
  }
  // Who has gone has closed its connection, and etcd may see that first.
  if (call->given_up_ && random_.Chance(0.5)) return;
  if (call->life_ != life_) return fails(Code::kTooLate, "the connection broke");
  if (stopped_) return fails(Code::kGone, "no endpoint can be reached");
  if (denied_.contains(call->client_)) return fails(Code::kDenied, "it asks for a login");
  const bool breaks = random_.Chance(chances_.broken_call);
  if (!breaks || random_.Chance(0.5)) call->TakeEffect();
  if (breaks) return fails(Code::kTooLate, "the connection broke");
  if (random_.Chance(chances_.lost_answer)) return;
  if (const auto lose = to_lose_.find(call->client_); lose != to_lose_.end() && lose->second > 0) {
    --lose->second;
    return;
  }
  At(After(lags_.answer_us / 2), [this, call = std::move(call)] { Answer(call); });
}

void SimulatedEtcd::Answer(std::shared_ptr<Call> call) {
  if (cut_.contains(call->client_) || (silent_ && call->life_ == life_)) {
    held_.emplace_back(call->client_, [this, call] { Answer(call); });
    return;
  }
  if (call->life_ != life_)
    call->Fail(Status(Code::kTooLate, Text("simulated etcd: the connection broke for ", call->client_)));
  call->End();
}

void SimulatedEtcd::Release() {
  // In their order, among what else happens now.
  for (auto& [client, callback] : std::exchange(held_, {}))
    At(After(lags_.answer_us / 2), std::move(callback));
  for (const auto& [number, watch] : watches_) watch->Schedule();
}

void SimulatedEtcd::Wake() {
  silent_ = false;
  Release();
  for (const auto& [lease, end] : lease_ends_)
    At(std::max(end, After(lags_.lapse_us)), [this, id = lease] { LapseIfDue(id); });
}

void SimulatedEtcd::Heal(const std::string& client) {
  cut_.erase(client);
  Release();
}

void SimulatedEtcd::Stop() {
  stopped_ = true;
  silent_ = false;
  ++life_;
  Release();
  for (const auto& [number, watch] : watches_) watch->Break();
}

void SimulatedEtcd::Start() {
  stopped_ = false;
  lease_ends_.clear();
  for (const auto& [lease, ttl_s] : state_->leases) Renew(lease);
}

std::shared_ptr<const SimulatedEtcd::Backup> SimulatedEtcd::TakeBackup() const {
  return std::make_shared<const Backup>(*state_);
}

void SimulatedEtcd::Restore(const Backup& backup, bool another_cluster) {
  Stop();
  *state_ = backup.state_;
  if (another_cluster) state_->cluster_id = random_.Next();
  Start();
}

void SimulatedEtcd::CancelWatches() {
  for (const auto& [number, watch] : watches_) watch->Break();
}

void SimulatedEtcd::SilenceWatches() {
  for (const auto& [number, watch] : watches_) watch->Silence();
}

void SimulatedEtcd::ScheduleWatches() {
  for (const auto& [number, watch] : watches_) watch->Schedule();
}

void SimulatedEtcd::SetFull(bool full) {
  full_ = full;
  refuses_puts_ = false;
}

// ------------------------------------------------------------------------------------ what etcd does

Result<RangeAnswer> SimulatedEtcd::DoRange(const RangeRequest& request) const {
  if (request.revision > state_->revision)
    return Error(Code::kMismatch, Text("simulated etcd: it has not come to revision ", request.revision,
                                       "; it is at ", state_->revision));
  if (request.revision > 0 && request.revision < state_->compacted)
    return Error(Code::kLapsed, Text("simulated etcd: revision ", request.revision, " is compacted, up to ",
                                     state_->compacted));
  RangeAnswer answer =
      state_->Range(request.keys, request.revision > 0 ? request.revision : state_->revision, request.limit);
  if (AnswerBytes({&answer, 1}) > Limits::kAnswerBytes) return Error(TooLong(Code::kInvalid));
  answer.header = header();
  return answer;
}

Status SimulatedEtcd::TakeRoom(bool& exceeds) {
  exceeds = false;
  if (!full_) return Status();
  if (!std::exchange(refuses_puts_, true) && random_.Chance(0.5)) {
    exceeds = true;
    return Status();
  }
  return Status(Code::kBusy,
                "simulated etcd: its disk quota is exceeded; compact and defragment it, or raise its quota");
}

Result<TransactionAnswer> SimulatedEtcd::DoCommit(const Transaction& transaction) {
  const auto puts = [](const Operation& operation) { return operation.kind == Operation::Kind::kPut; };
  bool exceeds = false;
  if (std::ranges::any_of(transaction.then, puts) || std::ranges::any_of(transaction.otherwise, puts)) {
    if (Status status = TakeRoom(exceeds); !status.ok()) return Error(std::move(status));
  }
  TransactionAnswer answer;
  answer.succeeded = std::ranges::all_of(
      transaction.conditions, [this](const Compare& condition) { return state_->Holds(condition); });
  const std::vector<Operation>& operations = answer.succeeded ? transaction.then : transaction.otherwise;
  for (const Operation& operation : operations) {
    if (operation.lease != 0 && puts(operation) && !state_->leases.contains(operation.lease))
      return Error(Code::kLapsed, Text("simulated etcd: lease ", operation.lease, " has ended"));
  }
  const std::int64_t revision = state_->revision + 1;
  std::vector<WatchEvent> events;
  for (const Operation& operation : operations) {
    switch (operation.kind) {
      case Operation::Kind::kPut: state_->Put(operation, revision, events); break;
      case Operation::Kind::kDelete: state_->Delete(operation.keys, revision, events); break;
      case Operation::Kind::kRange:
        answer.ranges.push_back(state_->Range(operation.keys, revision, operation.limit));
        break;
    }
  }
  state_->Advance(std::move(events));
  ScheduleWatches();
  if (exceeds) {
    bool again = false;
    return Error(TakeRoom(again));
  }
  // It has taken effect.
  if (AnswerBytes(answer.ranges) > Limits::kAnswerBytes) return Error(TooLong(Code::kTooLate));
  answer.header = header();
  for (RangeAnswer& range : answer.ranges) range.header = answer.header;
  return answer;
}

Result<LeaseAnswer> SimulatedEtcd::DoGrant(std::int64_t ttl_s) {
  bool exceeds = false;
  if (Status status = TakeRoom(exceeds); !status.ok()) return Error(std::move(status));
  const auto id = static_cast<std::int64_t>(random_.Next() >> 1 | 1);
  ttl_s = std::max(ttl_s, kLeastLeaseS);
  state_->leases.emplace(id, ttl_s);
  Renew(id);
  if (exceeds) {
    bool again = false;
    return Error(TakeRoom(again));
  }
  return LeaseAnswer{header(), id, ttl_s};
}

Result<LeaseAnswer> SimulatedEtcd::DoKeepAlive(std::int64_t lease) {
  const auto found = state_->leases.find(lease);
  if (found == state_->leases.end()) return LeaseAnswer{header(), lease, 0};
  Renew(lease);
  return LeaseAnswer{header(), lease, found->second};
}

Result<Header> SimulatedEtcd::DoRevoke(std::int64_t lease) {
  if (state_->leases.contains(lease)) Lapse(lease);
  return header();
}

Result<Header> SimulatedEtcd::DoCompact(std::int64_t revision) {
  if (revision > state_->revision)
    return Error(Code::kMismatch, Text("simulated etcd: it has not come to revision ", revision,
                                       "; it is at ", state_->revision));
  Compact(revision);
  return header();
}

void SimulatedEtcd::Compact(std::int64_t revision) {
  CISTERN_ASSERT(revision <= state_->revision);
  if (revision <= state_->compacted) return;
  state_->Compact(revision);
  ScheduleWatches();
}

void SimulatedEtcd::Renew(std::int64_t lease) {
  const Instant end = executor_.Now().PlusUs(state_->leases.at(lease) * 1'000'000);
  lease_ends_[lease] = end;
  const std::int64_t late_ns = After(lags_.lapse_us).NsSince(executor_.Now());
  At(end.PlusNs(late_ns), [this, lease] { LapseIfDue(lease); });
}

// One that was renewed since has been told to look again later; so has each when a silent etcd wakes.
void SimulatedEtcd::LapseIfDue(std::int64_t lease) {
  const auto end = lease_ends_.find(lease);
  if (silent_ || stopped_ || end == lease_ends_.end() || end->second > executor_.Now()) return;
  Lapse(lease);
}

void SimulatedEtcd::Lapse(std::int64_t lease) {
  std::vector<WatchEvent> events;
  const std::int64_t revision = state_->revision + 1;
  std::vector<std::string> attached;
  for (const auto& [key, versions] : state_->keys) {
    if (versions.back().create_revision != 0 && versions.back().lease == lease) attached.push_back(key);
  }
  for (std::string& key : attached) state_->Delete({std::move(key), ""}, revision, events);
  state_->Advance(std::move(events));
  state_->leases.erase(lease);
  lease_ends_.erase(lease);
  ScheduleWatches();
}

void SimulatedEtcd::LoseLeases() {
  while (!state_->leases.empty()) Lapse(state_->leases.begin()->first);
}

}  // namespace cistern::etcd
