// SPDX-License-Identifier: Apache-2.0
// A serving fleet as a discrete-event model: requests arrive, a router sends each to a node, which loads what
// is stored of its prompt, computes the rest and decodes the answer, itself or on a node of another pool.
// Every event costs the same however many nodes there are, but for what the processor's caches hold.
//
// Not modelled: time that an iteration takes beside its operations and bytes; KV in a node's GPUs after an
// answer (all reuse is loaded from a tier); writing to tiers (it is behind).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "fleet/event_queue.h"
#include "fleet/result.h"
#include "fleet/router.h"
#include "workload/request.h"

namespace cistern::fleet {

// Runs all of `requests`. The same options and requests give the same result. Fails as Check and the source
// fail.
Result<ClusterResult> RunCluster(const ClusterOptions& options, workload::RequestSource& requests);

class Cluster final {
 public:
  Cluster(const ClusterOptions& options, workload::RequestSource& requests);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  Result<ClusterResult> Run();

 private:
  enum class What : std::uint8_t { kArrival, kTurn, kLoaded, kStep, kHandedOver, kFailure, kReturn };
  struct Happening {
    What what;
    std::uint32_t which = 0;   // a job, a node or a session
    std::uint32_t number = 0;  // of the job's attempt or the node's step: others are of the past
  };
  struct Job {
    workload::Request request;
    std::uint64_t session = 0;  // closed loop alone
    std::uint32_t attempt = 0;
    std::uint32_t restarts = 0;  // because its node failed
    NodeNumber node = 0;         // where it is, of all nodes
    std::uint64_t turn = 0;      // by when it was sent there
    double sent_s = 0;
    double first_token_s = -1;  // when; below 0: not yet
    std::uint64_t loaded_tokens = 0;
    double compute_s = 0;  // as the router expected it
    bool active = false, prefilled = false;
    bool stranded = false;  // in stranded_
  };
  struct Session {
    bool answering = false;
    std::deque<workload::Request> waiting;
  };

  void Prefetch() const;
  void Handle(const Happening& happening);
  void Read();
  void Arrive();
  void NextTurn(std::uint64_t session);
  std::uint64_t SessionOf(const workload::Request& request);
  void Send(workload::Request request, std::uint64_t session);
  void Dispatch(WorkId id);
  void Strand(WorkId id);
  double Load(const Decision& decision);
  void Refuse(WorkId id, std::uint64_t& count);
  void Loaded(WorkId id, std::uint32_t attempt);
  void Enqueue(WorkId id);
  void Kick(NodeNumber node);
  void EndStep(NodeNumber node);
  void Prefilled(WorkId id);
  void HandOver(WorkId id);
  void Finish(WorkId id);
  void Release(WorkId id);
  void FailNode(NodeNumber node);
  void ReturnNode(NodeNumber node);
  void ScheduleFailure(NodeNumber node);
  bool Decodes(NodeNumber node) const { return node >= options_.prefill_nodes(); }
  BlockCache& CacheOf(NodeNumber node) { return caches_[options_.global_store ? 0 : node]; }
  void Summarize();

  const ClusterOptions options_;
  workload::RequestSource& requests_;
  Status status_;
  EventQueue<Happening> queue_;
  std::vector<Engine> engines_;
  std::vector<std::uint32_t> steps_;  // of each node: the number of the one under way
  std::vector<BlockCache> caches_;
  std::vector<NodeLinks> links_;
  Backlogs backlogs_;  // of nodes that prefill
  Backlogs decoding_;  // of nodes that decode alone, in tokens of those that run there
  Router router_;
  Random failures_;
  const double block_bytes_;

  std::deque<Job> jobs_;
  std::vector<WorkId> free_jobs_;
  std::vector<std::vector<std::uint64_t>> spare_ids_;  // memory of requests that have ended
  std::uint64_t turns_ = 0;
  std::uint64_t active_ = 0;      // jobs, and sessions whose next turn is about to be sent
  std::vector<WorkId> stranded_;  // no node is up for them
  std::optional<workload::Request> next_;
  std::optional<std::uint64_t> first_ms_;  // of the trace's first request, at which the run begins
  Engine::Ended ended_;

  std::vector<Session> sessions_;
  boost::unordered_flat_map<std::uint64_t, std::uint64_t> session_numbers_;  // of a trace that names them
  boost::unordered_flat_map<std::uint64_t, std::uint64_t> session_ends_;     // by a prompt's last whole block

  ClusterResult result_;
  std::vector<float> per_token_;
  double tokens_ = 0;
};

}  // namespace cistern::fleet
