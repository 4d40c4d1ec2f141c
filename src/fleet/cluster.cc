// SPDX-License-Identifier: Apache-2.0
#include "fleet/cluster.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/format.h"
#include "fleet/event_queue.h"
#include "fleet/router.h"
#include "planner/figure.h"

namespace cistern::fleet {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::uint32_t kMostRestarts = 1'000;  // of one request: it would hardly ever be answered

std::uint64_t Milliseconds(double seconds) { return static_cast<std::uint64_t>(seconds * 1e3); }

std::uint64_t Layers(const planner::Model& model) {
  std::uint64_t layers = 0;
  for (const planner::KvLayers& group : model.kv) layers += group.layers;
  return std::max<std::uint64_t>(1, layers);
}

// Of decoding one request: what it has to read, an iteration.
double DecodeLoad(const workload::Request& request) {
  return static_cast<double>(request.input_tokens) + request.output_tokens;
}

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

Cluster::Cluster(const ClusterOptions& options, workload::RequestSource& requests)
    : options_(options),
      requests_(requests),
      engines_(options.nodes, Engine(options_.engine)),
      steps_(options.nodes),
      backlogs_(options.prefill_nodes()),
      decoding_(options.decode_nodes),
      router_(options_, backlogs_, caches_, links_),
      failures_(SplitMix(options.seed)),
      block_bytes_(options.block_bytes()) {
  const std::uint32_t nodes = options_.prefill_nodes();
  for (std::uint32_t i = 0; i < (options_.global_store ? 1 : nodes); ++i)
    caches_.emplace_back(options_.policy, options_.blocks_per_node * (options_.global_store ? nodes : 1));
  const planner::Medium& own = options_.own;
  const planner::Medium& peer = options_.peer;
  const double port = peer.bytes_per_s * static_cast<double>(options_.ports);
  links_.assign(options_.nodes,
                {.own = Link(own.bytes_per_s * static_cast<double>(options_.gpus), own.latency_s),
                 .in = Link(port, peer.latency_s),
                 .out = Link(port, peer.latency_s)});
  result_.routing = options_.routing;
  result_.global_store = options_.global_store;
}

Result<ClusterResult> Cluster::Run() {
  if (options_.fail_every_s > 0) {
    for (NodeNumber node = 0; node < options_.nodes; ++node) ScheduleFailure(node);
  }
  Read();
  while ((next_ || active_ > 0) && status_.ok()) {
    CISTERN_ASSERT(!queue_.empty());
    const Happening happening = queue_.Take();
    Prefetch();
    Handle(happening);
  }
  if (!status_.ok()) return Error(status_);
  Summarize();
  return std::move(result_);
}

// What the next events will touch, read while this one is handled: with many nodes it is in no cache. What is
// found by it is read when an event is nearer.
void Cluster::Prefetch() const {
  const auto read = [](const auto& object) {
    const char* const first = reinterpret_cast<const char*>(&object);
    for (std::size_t at = 0; at < sizeof(object); at += kCacheLine) __builtin_prefetch(first + at);
  };
  const auto is_of_job = [](const Happening& happening) {
    return happening.what == What::kLoaded || happening.what == What::kHandedOver;
  };
  if (const Happening* far = queue_.Ahead(3)) {
    if (far->what == What::kStep) read(engines_[far->which]);
    if (is_of_job(*far)) read(jobs_[far->which]);
  }
  if (const Happening* near = queue_.Ahead(2)) {
    if (near->what == What::kStep) engines_[near->which].Prefetch();
    if (is_of_job(*near)) __builtin_prefetch(jobs_[near->which].request.hash_ids.data());
  }
  if (const Happening* next = queue_.Ahead(1); next != nullptr && next->what == What::kStep)
    engines_[next->which].ForNext([&](WorkId id) { read(jobs_[id]); });
}

void Cluster::Handle(const Happening& happening) {
  switch (happening.what) {
    case What::kArrival: return Arrive();
    case What::kTurn: return NextTurn(happening.which);
    case What::kLoaded: return Loaded(happening.which, happening.number);
    case What::kStep:
      if (steps_[happening.which] == happening.number) EndStep(happening.which);
      return;
    case What::kHandedOver: {
      Job& job = jobs_[happening.which];
      if (job.attempt != happening.number) return;
      engines_[job.node].Decode(happening.which, job.request.input_tokens, job.request.output_tokens);
      return Kick(job.node);
    }
    case What::kFailure: return FailNode(happening.which);
    case What::kReturn: return ReturnNode(happening.which);
  }
}

void Cluster::Read() {
  workload::Request request;
  if (!spare_ids_.empty()) {
    request.hash_ids = std::move(spare_ids_.back());
    spare_ids_.pop_back();
  }
  const Result<bool> more = requests_.Next(request);
  next_.reset();
  if (!more) {
    status_ = more.error();
    return;
  }
  if (!*more) return;
  if (!first_ms_) first_ms_ = request.timestamp_ms;
  const std::uint64_t since_ms = request.timestamp_ms - *first_ms_;
  const double at_s = static_cast<double>(since_ms) / 1e3 / options_.times;
  next_ = std::move(request);
  queue_.Schedule(std::max(at_s, queue_.now_s()), {What::kArrival});
}

void Cluster::Arrive() {
  workload::Request request = *std::exchange(next_, std::nullopt);
  Read();
  ++result_.requests;
  if (request.input_tokens == 0) {
    ++result_.empty;
    return;
  }
  request.output_tokens = std::max(1u, request.output_tokens);
  if (!options_.closed_loop) return Send(std::move(request), 0);
  const std::uint64_t session = SessionOf(request);
  if (sessions_[session].answering) {
    sessions_[session].waiting.push_back(std::move(request));
  } else {
    sessions_[session].answering = true;
    Send(std::move(request), session);
  }
}

// Where the trace does not say it: a prompt goes on with the session whose last one it extends.
std::uint64_t Cluster::SessionOf(const workload::Request& request) {
  std::uint64_t session = sessions_.size();
  if (request.session) {
    session = session_numbers_.try_emplace(*request.session, session).first->second;
  } else {
    for (const std::uint64_t id : request.hash_ids) {
      const auto end = session_ends_.find(id);
      if (end == session_ends_.end()) continue;
      session = end->second;
      session_ends_.erase(end);
    }
    const std::size_t whole = request.hash_ids.size() - (LastIsPartial(request) ? 1 : 0);
    if (whole > 0) session_ends_[request.hash_ids[whole - 1]] = session;
  }
  if (session == sessions_.size()) sessions_.emplace_back();
  return session;
}

void Cluster::Send(workload::Request request, std::uint64_t session) {
  if (free_jobs_.empty()) {
    free_jobs_.push_back(static_cast<WorkId>(jobs_.size()));
    jobs_.emplace_back();
  }
  const WorkId id = free_jobs_.back();
  free_jobs_.pop_back();
  Job& job = jobs_[id];
  job = {.request = std::move(request),
         .session = session,
         .attempt = job.attempt + 1,
         .sent_s = queue_.now_s(),
         .active = true};
  ++active_;
  const std::uint64_t tokens = std::uint64_t{job.request.input_tokens} + job.request.output_tokens;
  if (!engines_[0].Fits(tokens)) return Refuse(id, result_.too_large);
  Dispatch(id);
}

void Cluster::Refuse(WorkId id, std::uint64_t& count) {
  ++count;
  Release(id);
}

void Cluster::Dispatch(WorkId id) {
  Job& job = jobs_[id];
  job.prefilled = false;
  std::optional<Decision> decision = router_.Choose(job.request, queue_.now_s());
  if (!decision) {
    Strand(id);
    return;
  }
  // What has waited already counts too.
  const double expected = queue_.now_s() - job.sent_s + decision->first_token_s;
  if (options_.routing == Routing::kGlobal && options_.first_token_s && job.first_token_s < 0 &&
      expected > *options_.first_token_s) {
    return Refuse(id, result_.refused);
  }
  job.node = decision->node;
  job.turn = ++turns_;
  job.compute_s = decision->compute_s;
  job.loaded_tokens = decision->blocks * workload::kTraceBlockTokens;
  backlogs_.Add(job.node, job.compute_s);
  router_.Note(job.request, job.node);
  result_.accesses += job.request.hash_ids.size();
  if (decision->loads.empty()) return Enqueue(id);
  ++result_.reused;
  queue_.Schedule(Load(*decision), {What::kLoaded, id, job.attempt});
}

void Cluster::Strand(WorkId id) {
  jobs_[id].stranded = true;
  stranded_.push_back(id);
}

double Cluster::Load(const Decision& decision) {
  const double now = queue_.now_s();
  double end = now;
  for (const HomeRun& run : decision.loads) {
    const double bytes = static_cast<double>(run.blocks) * block_bytes_;
    if (run.home == decision.node) {
      result_.own_hits += run.blocks;
      end = std::max(end, links_[run.home].own.Reserve(now, bytes));
    } else {
      result_.peer_hits += run.blocks;
      end = std::max(
          {end, links_[run.home].out.Reserve(now, bytes), links_[decision.node].in.Reserve(now, bytes)});
    }
  }
  return end;
}

void Cluster::Loaded(WorkId id, std::uint32_t attempt) {
  const Job& job = jobs_[id];
  if (job.attempt != attempt) return;
  if (options_.global_store) {
    caches_[0].Move(std::span(job.request.hash_ids).first(job.loaded_tokens / workload::kTraceBlockTokens),
                    job.node);
  }
  Enqueue(id);
}

void Cluster::Enqueue(WorkId id) {
  const Job& job = jobs_[id];
  const std::uint64_t answer = options_.decode_nodes ? 1 : job.request.output_tokens;
  engines_[job.node].Prefill(id, job.turn, job.loaded_tokens, job.request.input_tokens, answer);
  Kick(job.node);
}

void Cluster::Kick(NodeNumber node) {
  std::optional<double> takes = engines_[node].Begin(queue_.now_s());
  if (!takes) takes = engines_[node].Cut(queue_.now_s());
  if (takes) queue_.Schedule(queue_.now_s() + *takes, {What::kStep, node, ++steps_[node]});
}

void Cluster::EndStep(NodeNumber node) {
  engines_[node].End(ended_);
  // Handlers send new requests, whose steps may end only later: ended_ stays as it is.
  for (const WorkId id : ended_.first) Prefilled(id);
  for (const WorkId id : ended_.done) {
    if (options_.decode_nodes && !Decodes(node) && jobs_[id].request.output_tokens > 1) {
      HandOver(id);
    } else {
      Finish(id);
    }
  }
  Kick(node);
}

void Cluster::Prefilled(WorkId id) {
  Job& job = jobs_[id];
  job.prefilled = true;
  if (job.first_token_s < 0) job.first_token_s = queue_.now_s();
  backlogs_.Drop(job.node, job.compute_s);
  CacheOf(job.node).Store(job.request.hash_ids, LastIsPartial(job.request), Milliseconds(queue_.now_s()),
                          job.node);
}

// Layers go over as they are computed: the transfer began with the prefill, and ends a layer after it at the
// soonest.
void Cluster::HandOver(WorkId id) {
  Job& job = jobs_[id];
  if (decoding_.order().empty()) {
    Strand(id);
    return;
  }
  const NodeNumber from = job.node;
  const NodeNumber decode = decoding_.order().first();
  const double now = queue_.now_s();
  const double bytes = options_.engine.model.Bytes(job.request.input_tokens);
  const double began = std::max(job.sent_s, now - job.compute_s);
  job.node = options_.prefill_nodes() + decode;
  decoding_.Add(decode, DecodeLoad(job.request));
  result_.handover_bytes += bytes;
  const double moved =
      std::max(links_[from].out.Reserve(began, bytes), links_[job.node].in.Reserve(began, bytes));
  const double layer =
      bytes / static_cast<double>(Layers(options_.engine.model)) / links_[from].out.bytes_per_s();
  queue_.Schedule(std::max(moved, now + layer), {What::kHandedOver, id, job.attempt});
}

void Cluster::Finish(WorkId id) {
  Job& job = jobs_[id];
  const double now = queue_.now_s();
  if (Decodes(job.node)) decoding_.Drop(job.node - options_.prefill_nodes(), DecodeLoad(job.request));
  ++result_.answered;
  result_.span_s = now;
  tokens_ += DecodeLoad(job.request);
  const double first = job.first_token_s - job.sent_s;
  result_.first_tokens.push_back(static_cast<float>(first));
  double each = 0;
  if (job.request.output_tokens > 1) {
    each = (now - job.first_token_s) / (job.request.output_tokens - 1);
    per_token_.push_back(static_cast<float>(each));
  }
  if ((!options_.first_token_s || first <= *options_.first_token_s) &&
      (!options_.per_token_s || each <= *options_.per_token_s)) {
    ++result_.good;
  }
  Release(id);
}

void Cluster::Release(WorkId id) {
  Job& job = jobs_[id];
  job.active = false;
  ++job.attempt;
  spare_ids_.push_back(std::move(job.request.hash_ids));
  free_jobs_.push_back(id);
  --active_;
  if (!options_.closed_loop) return;
  Session& session = sessions_[job.session];
  session.answering = !session.waiting.empty();
  if (!session.answering) return;
  ++active_;
  queue_.Schedule(queue_.now_s(), {What::kTurn, static_cast<std::uint32_t>(job.session)});
}

void Cluster::NextTurn(std::uint64_t session) {
  workload::Request turn = std::move(sessions_[session].waiting.front());
  sessions_[session].waiting.pop_front();
  --active_;
  Send(std::move(turn), session);
}

void Cluster::ScheduleFailure(NodeNumber node) {
  const double after = -std::log(1 - failures_.Unit()) * options_.fail_every_s;
  queue_.Schedule(queue_.now_s() + after, {What::kFailure, node});
}

// What it had is gone, in memory and on its way; what it was asked for is asked of others.
void Cluster::FailNode(NodeNumber node) {
  ++result_.failures;
  engines_[node].Fail();
  ++steps_[node];
  links_[node].own.Clear();
  links_[node].in.Clear();
  links_[node].out.Clear();
  if (Decodes(node)) {
    decoding_.Remove(node - options_.prefill_nodes());
  } else {
    backlogs_.Remove(node);
    CacheOf(node).Lose(node);
  }
  queue_.Schedule(queue_.now_s() + options_.repair_s, {What::kReturn, node});
  for (WorkId id = 0; id < jobs_.size(); ++id) {
    Job& job = jobs_[id];
    // A prompt that waits for a node that decodes is where it was computed; one that is not computed is
    // nowhere.
    const bool waits = job.stranded && !job.prefilled;
    if (!job.active || job.node != node || waits) continue;
    if (std::exchange(job.stranded, false)) std::erase(stranded_, id);
    ++job.attempt;
    ++result_.restarted;
    if (++job.restarts > kMostRestarts) {
      status_ = Status(
          Code::kInvalid,
          Text("--fail-every ", planner::QuantityText(options_.fail_every_s, "s"), ": a request of ",
               job.request.input_tokens, " tokens with an answer of ", job.request.output_tokens, " began ",
               kMostRestarts, " times again: hardly any node stays up for as long as that takes"));
      return;
    }
    Dispatch(id);
  }
}

void Cluster::ReturnNode(NodeNumber node) {
  Decodes(node) ? decoding_.Return(node - options_.prefill_nodes()) : backlogs_.Return(node);
  ScheduleFailure(node);
  for (const WorkId id : std::exchange(stranded_, {})) {
    jobs_[id].stranded = false;
    jobs_[id].prefilled ? HandOver(id) : Dispatch(id);
  }
}

void Cluster::Summarize() {
  const double span = std::max(result_.span_s, 1e-9);
  for (NodeNumber node = 0; node < options_.nodes; ++node) {
    const Engine& engine = engines_[node];
    if (Decodes(node)) {
      result_.decode_busy += engine.busy_s() / span / options_.decode_nodes;
    } else {
      result_.prefill_s.push_back(engine.prefill_s());
      result_.prefill_busy += engine.prefill_s() / span / options_.prefill_nodes();
    }
    result_.own_bytes += links_[node].own.bytes();
  }
  result_.peer_bytes = static_cast<double>(result_.peer_hits) * options_.block_bytes();
  const double nodes = options_.prefill_nodes();
  const double mean = std::accumulate(result_.prefill_s.begin(), result_.prefill_s.end(), 0.0) / nodes;
  double squares = 0;
  for (const double load : result_.prefill_s) squares += (load - mean) * (load - mean);
  result_.load_cv = mean > 0 ? std::sqrt(squares / nodes) / mean : 0;
  result_.first_token_s = SpreadOf(result_.first_tokens);
  result_.per_token_s = SpreadOf(std::move(per_token_));
  result_.gpu_hours = result_.span_s / 3600 * static_cast<double>(options_.gpus) * options_.nodes;
  if (options_.gpu_hour_usd) {
    result_.usd = result_.gpu_hours * *options_.gpu_hour_usd;
    result_.usd_per_million_tokens = tokens_ > 0 ? result_.usd / tokens_ * 1e6 : 0;
  }
  result_.events = queue_.taken();
}

}  // namespace

Result<ClusterResult> RunCluster(const ClusterOptions& options, workload::RequestSource& requests) {
  if (Status status = Check(options); !status.ok()) return Error(status);
  return Cluster(options, requests).Run();
}

}  // namespace cistern::fleet
