// SPDX-License-Identifier: Apache-2.0
// An etcd in one process, on the executor's time, with many clients and everything that goes wrong with a
// real one. With a simulated clock the seed decides every lag and every chance, so a run replays exactly.
//
// It keeps what etcd keeps (revisions, versions, leases, what is compacted) and answers what etcd answers;
// etcd/contract_test.cc asks both the same. Faults come by call, or by chance (SimulatedChances).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/random.h"
#include "etcd/etcd.h"

namespace cistern::etcd {

// Each lag takes half of it to one and a half, by chance.
struct SimulatedLags {
  std::int64_t answer_us = 1'000;   // from a question to its answer, half of it each way
  std::int64_t event_us = 1'000;    // from a change to its event at a watch
  std::int64_t lapse_us = 500'000;  // from a lease's end until it is noticed
};

// What happens by itself: the chance of each, a call or a delivery of events.
struct SimulatedChances {
  double lost_question = 0;    // it never arrives, and nobody says so
  double lost_answer = 0;      // what was asked has taken effect, and nobody says so
  double broken_call = 0;      // the connection breaks, before what was asked takes effect or after
  double slow = 0;             // a question, an answer or a delivery takes 100 times its lag
  double cancelled_watch = 0;  // instead of what it was to deliver
  double silent_watch = 0;     // delivers nothing any more, while calls are answered
  double split = 0;            // some of the revisions are delivered, the rest later
};

class SimulatedEtcd final {
 public:
  // The executor is borrowed and outlives etcd; etcd outlives its clients, and a client its calls and
  // watches.
  SimulatedEtcd(Executor& executor, std::uint64_t seed, const SimulatedLags& lags = {});
  ~SimulatedEtcd();
  SimulatedEtcd(const SimulatedEtcd&) = delete;
  SimulatedEtcd& operator=(const SimulatedEtcd&) = delete;

  // Etcd as whoever has this name sees it; several may have one name. A client may have an executor of its
  // own, on the same clock, which outlives it and its calls: where that does not run, answers wait.
  std::unique_ptr<Etcd> Client(std::string name) { return Client(std::move(name), executor_); }
  std::unique_ptr<Etcd> Client(std::string name, Executor& executor);

  void SetLags(const SimulatedLags& lags) { lags_ = lags; }
  void SetChances(const SimulatedChances& chances) { chances_ = chances; }

  // A stopped process: it takes questions and answers none, watches give nothing, and nobody says so. Its
  // leases' time runs on. Once it wakes it answers; of the questions whose asker has gone, half take effect.
  void FallSilent() { silent_ = true; }
  void Wake();
  // The same for whoever has this name, while etcd goes on: the way is cut, in both directions.
  void Cut(const std::string& client) { cut_.insert(client); }
  void Heal(const std::string& client);
  // A killed process: connections break, and nobody can be reached until it starts. Nothing is lost that was
  // answered; leases then have all their time again.
  void Stop();
  void Start();

  // All that etcd keeps, as of now.
  class Backup;
  std::shared_ptr<const Backup> TakeBackup() const;
  // It is stopped, begins with what the backup has (as another cluster if so asked), and is started: answers
  // say a lower revision, and nobody says why.
  void Restore(const Backup& backup, bool another_cluster = false);

  // Watches end with kGone, or deliver nothing any more until their owner gives them up.
  void CancelWatches();
  void SilenceWatches();
  // The same for whoever has this name, also of watches to come, or no more for those that come then.
  void Deafen(const std::string& client, bool deaf = true) {
    deaf ? (void)deaf_.insert(client) : (void)deaf_.erase(client);
  }
  // As another of its users may. `revision` is one that has been.
  void Compact(std::int64_t revision);
  // Every lease ends now.
  void LoseLeases();
  // The quota of its disk is exceeded: the next change takes effect or not, by chance, and from then on
  // nothing may be put and no lease be granted until there is room.
  void SetFull(bool full);
  // Whoever has this name is asked for a login.
  void Deny(const std::string& client) { denied_.insert(client); }
  void Admit(const std::string& client) { denied_.erase(client); }
  // Of the client's calls only those for its leases are answered well, or all again.
  void DenyKeys(const std::string& client, bool deny = true) {
    deny ? (void)keyless_.insert(client) : (void)keyless_.erase(client);
  }
  // So many of the next answers to whoever has this name are lost, although what was asked takes effect.
  void LoseAnswers(const std::string& client, int count) { to_lose_[client] = count; }

  Header header() const;
  // Watches whose owner has not given them up.
  std::size_t watches() const { return watches_.size(); }
  // What its clients have asked of it: calls, and watches that they began.
  std::uint64_t questions() const { return calls_ + last_watch_; }

 private:
  friend class SimulatedClient;
  friend class SimulatedWatch;
  struct State;
  class Call;
  template <class Answer>
  class CallFor;

  void At(Instant when, Callback callback);
  void RunDue();
  // When what is sent now arrives, after this lag.
  Instant After(std::int64_t lag_us);
  bool IsHeld(const std::string& client) const { return silent_ || cut_.contains(client); }
  // What waited for the way or for etcd goes on.
  void Release();

  void Send(std::shared_ptr<Call> call);
  void Arrive(std::shared_ptr<Call> call);
  void Answer(std::shared_ptr<Call> call);

  Result<RangeAnswer> DoRange(const RangeRequest& request) const;
  Result<TransactionAnswer> DoCommit(const Transaction& transaction);
  Result<LeaseAnswer> DoGrant(std::int64_t ttl_s);
  Result<LeaseAnswer> DoKeepAlive(std::int64_t lease);
  Result<Header> DoRevoke(std::int64_t lease);
  Result<Header> DoCompact(std::int64_t revision);
  // Ok where there is room, by chance for the first that has none.
  Status TakeRoom(bool& exceeds);
  void Renew(std::int64_t lease);
  void LapseIfDue(std::int64_t lease);
  void Lapse(std::int64_t lease);

  void ScheduleWatches();

  Executor& executor_;
  Random random_;
  SimulatedLags lags_;
  SimulatedChances chances_;
  std::unique_ptr<State> state_;
  std::map<std::int64_t, Instant> lease_ends_;
  std::map<std::uint64_t, class SimulatedWatch*> watches_;  // in order of their making
  std::uint64_t last_watch_ = 0, calls_ = 0;
  std::multimap<Instant, Callback> due_;  // of one instant in order of their making
  Timer timer_;
  std::vector<std::pair<std::string, Callback>> held_;  // with the client whose way they wait for
  std::set<std::string> cut_, denied_, keyless_, deaf_;
  std::map<std::string, int> to_lose_;
  bool silent_ = false, stopped_ = false;
  bool full_ = false, refuses_puts_ = false;
  std::uint64_t life_ = 0;  // each Stop begins another: connections of an earlier one are broken
};

}  // namespace cistern::etcd
