// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "commands.h"
#include "fleet/cluster.h"
#include "planner/tables.h"
#include "sim_cluster_page.h"
#include "values.h"

namespace cistern {
namespace {

constexpr double kMicroseconds = 1e-6;

struct ClusterFlags {
  std::string trace, model = "Llama-3-70B", gpu = "H100-80GB", data, html;
  std::string own = "dram", peer = "peer";
  std::vector<fleet::Routing> routers;
  std::optional<bool> global_store;
  std::optional<double> kv_bits, weight_bits, parameters, active_parameters;
  std::uint64_t nodes = 16, decode_nodes = 0, cache_tokens = 3'000'000;
  std::uint64_t fail_every_us = 0, repair_us = 60'000'000;
  std::optional<std::uint64_t> first_token_us, per_token_us;
  std::optional<double> times;
  bool json = false;
  fleet::EngineInput engine{.gpus = 8};
  fleet::ClusterOptions options;
};

Status AddRouters(std::string_view text, std::vector<fleet::Routing>& routers) {
  using fleet::Routing;
  if (text == "all") {
    routers = {Routing::kRandom,   Routing::kRoundRobin, Routing::kLeastLoaded,
               Routing::kAffinity, Routing::kLocal,      Routing::kGlobal};
    return Status();
  }
  const Result<Routing> routing = fleet::ParseRouting(text);
  if (!routing) return routing.error();
  if (std::ranges::find(routers, *routing) != routers.end())
    return Status(Code::kInvalid, Text("--router: ", text, " is named twice; name each once"));
  routers.push_back(*routing);
  return Status();
}

void AddFleetFlags(CommandLine& line, ClusterFlags& f) {
  line.Count("--nodes", "engines, each with its own tier; default: 16", &f.nodes, 1, 10'000);
  line.Count("--decode-nodes", "of them, for decoding alone; default: 0, every node does both",
             &f.decode_nodes, 0, 9'999);
  line.Flags("--router", "NAME",
             Text(fleet::Routings(), ", or all; may be given several times; default: least-loaded"),
             [&f](std::string_view text) { return AddRouters(text, f.routers); });
  line.Flag(
      "--store", "local|global",
      "what a node can load: what it computed itself, or what any did; default: global for the router of "
      "that name, else local",
      [&f](std::string_view text) {
        if (text != "local" && text != "global")
          return Status(Code::kInvalid, Text("--store: '", Shown(text), "' is neither local nor global"));
        f.global_store = text == "global";
        return Status();
      });
  line.Count("--cache", "tokens that each node keeps, 0 for none; default: 3000000", &f.cache_tokens, 0,
             1ull << 40);
  line.Policy("--policy", "which blocks leave", &f.options.policy);
  line.Text("--own", "NAME", "medium of a node's own tier; default: dram", &f.own);
  line.Text("--peer", "NAME", "medium between nodes; default: peer", &f.peer);
  line.Count("--ports", "of a node to other nodes; default: 1", &f.options.ports, 1, 64);
  line.Duration("--fail-every", "mean time from a node's return to its failure; default: none fails",
                &f.fail_every_us);
  line.Duration("--repair", "until a node that failed is back, empty; default: 1min", &f.repair_us);
}

void Objective(CommandLine& line, std::string_view flag, std::string_view help,
               std::optional<std::uint64_t>* wanted_us) {
  line.Flag(flag, "DURATION", help, [flag, wanted_us](std::string_view text) {
    const Result<std::uint64_t> given = ParseDurationUs(flag, text);
    if (given) *wanted_us = *given;
    return given ? Status() : given.error();
  });
}

void AddFlags(CommandLine& line, ClusterFlags& f) {
  line.Argument("TRACE", "--trace", "TRACE", "a trace of JSON lines, or generated:KEY=VALUE,...", &f.trace);
  line.Text("--model", "NAME", "a model of `cistern plan --list`; default: Llama-3-70B", &f.model);
  line.Text("--gpu", "NAME", "a GPU of that list; default: H100-80GB", &f.gpu);
  line.Count("--gpus", "of a node; default: 8", &f.engine.gpus, 1, 1u << 16);
  line.Text("--data", "FILE", "models, GPUs and media that replace or extend the table's", &f.data);
  Number(line, "--kv-bits", "bits of each number of KV; default: 16", &f.kv_bits, 1, 64);
  Number(line, "--weight-bits", "bits of each weight; default: the table's, or 16", &f.weight_bits, 1, 64);
  Number(line, "--parameters", "of the model; default: the table's", &f.parameters, 1e3, 1e15);
  Number(line, "--active-parameters", "that a token meets; default: the table's, or all",
         &f.active_parameters, 1e3, 1e15);
  Share(line, "--prefill-efficiency", "share of the GPU's 16-bit rate that is reached; default: 0.5",
        &f.engine.prefill_efficiency);
  Share(line, "--memory-efficiency", "share of its memory's bandwidth that is reached; default: 0.7",
        &f.engine.memory_efficiency);
  Share(line, "--usable-memory", "share of its memory for weights and KV; default: 0.9",
        &f.engine.usable_memory);
  line.Count("--chunk", "tokens of an iteration; default: 8192", &f.engine.chunk_tokens, 1, 1u << 24);
  AddFleetFlags(line, f);
  line.Switch("--closed", "a turn waits for the answer before it in its session", &f.options.closed_loop);
  Number(line, "--times", "the trace's pace; default: 1", &f.times, 1e-3, 1e6);
  Objective(line, "--first-token", "objective of a request's first token", &f.first_token_us);
  Objective(line, "--per-token", "objective of each token after it, mean of an answer", &f.per_token_us);
  Number(line, "--gpu-hour", "price of a GPU for an hour, USD", &f.options.gpu_hour_usd, 1e-3, 1e6);
  line.Count("--seed", "of random routing and failures; default: 1", &f.options.seed, 0, ~std::uint64_t{0});
  line.Text("--html", "FILE", "write one page with plots, nothing from outside", &f.html);
  line.Switch("--json", "one JSON object on stdout", &f.json);
}

// Names to entries, units to seconds.
Status Resolve(ClusterFlags& f) {
  planner::Tables tables = planner::Tables::BuiltIn();
  if (!f.data.empty()) {
    const Result<std::string> text = ReadFile("--data", f.data);
    if (!text) return text.error();
    if (Status status = tables.Add(*text, f.data); !status.ok()) return status;
  }
  Result<planner::Model> model = tables.FindModel(f.model, f.kv_bits.value_or(16));
  if (!model) return model.error();
  Result<planner::Gpu> gpu = tables.FindGpu(f.gpu);
  if (!gpu) return gpu.error();
  Result<planner::Medium> own = tables.FindMedium(f.own);
  if (!own) return own.error();
  Result<planner::Medium> peer = tables.FindMedium(f.peer);
  if (!peer) return peer.error();
  if (f.parameters) model->parameters = model->active_parameters = f.parameters;
  if (f.active_parameters) model->active_parameters = f.active_parameters;
  if (Status status = planner::CheckActive(*model); !status.ok()) return status;
  if (f.weight_bits) model->weight_bits = *f.weight_bits;
  f.engine.model = std::move(*model);
  f.engine.gpu = std::move(*gpu);
  Result<fleet::EngineSpec> engine = fleet::MakeEngine(f.engine);
  if (!engine) return engine.error();
  fleet::ClusterOptions& options = f.options;
  options.engine = std::move(*engine);
  options.own = std::move(*own);
  options.peer = std::move(*peer);
  options.gpus = f.engine.gpus;
  options.nodes = static_cast<std::uint32_t>(f.nodes);
  options.decode_nodes = static_cast<std::uint32_t>(f.decode_nodes);
  options.blocks_per_node = f.cache_tokens / workload::kTraceBlockTokens;
  options.times = f.times.value_or(1);
  options.fail_every_s = static_cast<double>(f.fail_every_us) * kMicroseconds;
  options.repair_s = static_cast<double>(f.repair_us) * kMicroseconds;
  if (f.first_token_us) options.first_token_s = static_cast<double>(*f.first_token_us) * kMicroseconds;
  if (f.per_token_us) options.per_token_s = static_cast<double>(*f.per_token_us) * kMicroseconds;
  if (f.routers.empty()) f.routers = {fleet::Routing::kLeastLoaded};
  return fleet::Check(options);
}

Status Simulate(ClusterFlags& f) {
  if (Status status = Resolve(f); !status.ok()) return status;
  std::vector<fleet::ClusterResult> results;
  for (const fleet::Routing routing : f.routers) {
    f.options.routing = routing;
    f.options.global_store = f.global_store.value_or(routing == fleet::Routing::kGlobal);
    Result<std::unique_ptr<workload::RequestSource>> requests = workload::OpenRequests(f.trace);
    if (!requests) return requests.error();
    Result<fleet::ClusterResult> result = fleet::RunCluster(f.options, **requests);
    if (!result) return result.error();
    results.push_back(std::move(*result));
  }
  if (!f.html.empty()) {
    if (Status status = WriteFile("--html", f.html, ClusterPageHtml(f.trace, f.options, results));
        !status.ok())
      return status;
  }
  std::fputs((f.json ? ResultsJson(f.options, results) : ResultsText(f.options, results)).c_str(), stdout);
  return Status();
}

}  // namespace

int RunSimCluster(int argc, const char* const* argv) {
  ClusterFlags f;
  CommandLine line(
      "cistern sim cluster",
      "A fleet of engines under a trace, as a discrete-event model: routers compared by first-token and\n"
      "per-token time, hits, load and bytes moved. Nothing is measured here; docs/fleet.md has what is\n"
      "modelled and what not.",
      "  cistern sim cluster conversation.jsonl --nodes 16 --router all --html fleet.html\n"
      "  cistern sim cluster conversation.jsonl --nodes 16 --decode-nodes 8 --router global --first-token "
      "10s\n"
      "  cistern sim cluster generated:sessions=1000,turns=8 --nodes 100 --closed --fail-every 1h --json");
  AddFlags(line, f);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (line.Given("--repair") && f.fail_every_us == 0) {
    return Complain("cistern sim cluster", Status(Code::kInvalid,
                                                  "--repair is of nodes that fail: give "
                                                  "--fail-every with it"));
  }
  if (Status status = Simulate(f); !status.ok()) return Complain("cistern sim cluster", status);
  return kExitOk;
}

}  // namespace cistern
