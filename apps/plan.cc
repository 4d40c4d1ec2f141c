// SPDX-License-Identifier: Apache-2.0
#include "planner/plan.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "base/utf8.h"
#include "command_line.h"
#include "commands.h"
#include "plan_page.h"
#include "planner/curve.h"
#include "planner/fields.h"
#include "planner/model_config.h"
#include "planner/report.h"
#include "sim_policy.h"
#include "values.h"

namespace cistern {
namespace {

constexpr double kMicroseconds = 1e-6;

// What the flags say, before names are looked up: --data comes first, wherever it stands.
struct PlanFlags {
  std::string model, config, gpu, data, html, trace;
  std::vector<std::string> tiers;
  std::optional<double> kv_bits, weight_bits, parameters, active_parameters, wanted, times, months;
  std::uint64_t think_us = 30'000'000, busy_us = 10'000'000, points = 24;
  workload::SimPolicy policy = workload::SimPolicy::kReuse;
  bool list = false, json = false;
  planner::PlanInput input;
};

void AddFlags(CommandLine& line, PlanFlags& f) {
  line.Text("--model", "NAME", "a model of the table (--list)", &f.model);
  line.Text("--config", "FILE", "a model's Hugging Face config.json, instead of --model", &f.config);
  line.Count("--context", "tokens of a session; default: 32768", &f.input.context_tokens, 1, 1ull << 30);
  line.Count("--sessions", "sessions at a time; default: 1", &f.input.sessions, 1, 1ull << 30);
  line.Flags("--tier", "NAME[:SIZE]",
             "a tier of the table (--list), with its room; may be given several times; default: all",
             [&f](std::string_view text) {
               f.tiers.emplace_back(text);
               return Status();
             });
  line.Text("--gpu", "NAME", "a GPU of the table (--list)", &f.gpu);
  line.Count("--gpus", "how many of them serve one copy of the model; default: 1", &f.input.gpus, 1,
             1u << 20);
  line.Text("--data", "FILE", "models, GPUs and media that replace or extend the table's", &f.data);
  Number(line, "--kv-bits", "bits of each number of KV; default: 16", &f.kv_bits, 1, 64);
  Number(line, "--weight-bits", "bits of each weight; default: the table's, or 16", &f.weight_bits, 1, 64);
  Number(line, "--parameters", "of the model; default: the table's, or by the configuration's shapes",
         &f.parameters, 1e3, 1e15);
  Number(line, "--active-parameters", "that a token meets; default: as many as there are, if dense",
         &f.active_parameters, 1e3, 1e15);
  Number(line, "--prefill-rate", "tokens a second as measured, instead of --prefill-efficiency",
         &f.input.prefill_tokens_per_s, 1e-3, 1e9);
  Share(line, "--prefill-efficiency", "share of the GPU's 16-bit rate that prefill reaches; default: 0.5",
        &f.input.prefill_efficiency);
  Share(line, "--usable-memory", "share of a GPU's memory for weights and KV; default: 0.9",
        &f.input.usable_memory);
  Number(line, "--rate", "requests a second, of --context tokens each", &f.input.requests_per_s, 1e-6, 1e9);
  Number(line, "--hit-rate",
         "share of tokens found in the store; with --trace the hit rate to size tiers for", &f.wanted, 0, 1);
  line.Duration("--think", "between an answer and the session's next turn; default: 30s", &f.think_us);
  line.Duration("--busy", "of a turn, prefill and decode; default: 10s", &f.busy_us);
  Number(line, "--monthly-cost", "of hardware of one's own, USD", &f.input.monthly_cost_usd, 0.01, 1e12);
  Number(line, "--api-price", "of a million tokens, USD", &f.input.api_usd_per_million_tokens, 1e-6, 1e6);
  line.Count("--request-tokens", "of a request, to count requests by; default: 10000",
             &f.input.request_tokens, 1, 1ull << 30);
  line.Text("--trace", "TRACE", "your own workload: JSON lines, or generated:KEY=VALUE,...", &f.trace);
  SimPolicyFlag(line, "eviction policy of --trace", &f.policy);
  line.Count("--points", "sizes of the curve of --trace; default: 24", &f.points, 2, 200);
  Number(line, "--times", "how many times as many requests as the trace has; default: 1", &f.times, 1e-3,
         1e6);
  Number(line, "--months", "over which what is bought is paid off; default: 36", &f.months, 1, 240);
  line.Text("--html", "FILE", "write one page with plots, nothing from outside", &f.html);
  line.Switch("--list", "show the table of models, GPUs and media with their sources", &f.list);
  line.Switch("--json", "one JSON object on stdout", &f.json);
}

Result<planner::Model> ChooseModel(const PlanFlags& f, const planner::Tables& tables) {
  const double bits = f.kv_bits.value_or(16);
  if (f.model.empty() == f.config.empty()) {
    return Error(Code::kInvalid, f.model.empty()
                                     ? "--model is missing; name one of --list, or give --config FILE"
                                     : "--model and --config are both given: one of them is needed");
  }
  if (!f.model.empty()) return tables.FindModel(f.model, bits);
  const Result<std::string> text = ReadFile("--config", f.config);
  if (!text) return Error(text.error());
  const Result<boost::json::object> object = planner::ParseObject(*text, f.config);
  if (!object) return Error(object.error());
  return planner::ModelFromConfig(*object, Utf8(f.config), bits);
}

// "flash" or "flash:4TB".
Result<planner::Tier> ChooseTier(std::string_view text, const planner::Tables& tables) {
  const std::size_t colon = text.find(':');
  Result<planner::Medium> medium = tables.FindMedium(text.substr(0, colon));
  if (!medium) return Error(medium.error());
  planner::Tier tier{.medium = std::move(*medium)};
  if (colon == text.npos) return tier;
  const Result<std::uint64_t> bytes =
      ParseSize(Text("--tier ", text.substr(0, colon)), text.substr(colon + 1));
  if (!bytes) return Error(bytes.error());
  if (*bytes == 0)
    return Error(Code::kInvalid, Text("--tier ", text, ": has no room; give it some, or leave the size out"));
  tier.bytes = static_cast<double>(*bytes);
  return tier;
}

Status CheckFlags(const CommandLine& line, const PlanFlags& f) {
  if (f.list) {
    const std::string beside = line.GivenBeside({"--list", "--data", "--json"});
    if (beside.empty()) return Status();
    return Status(Code::kInvalid, Text("--list shows the table alone: leave ", beside, " out"));
  }
  for (const std::string_view flag : {"--policy", "--points"}) {
    if (line.Given(flag) && f.trace.empty())
      return Status(Code::kInvalid, Text(flag, " is of a workload of yours: give --trace with it"));
  }
  for (const std::string_view flag : {"--times", "--months"}) {
    if (line.Given(flag) && (f.trace.empty() || !f.wanted))
      return Status(Code::kInvalid, Text(flag,
                                         " is of the tiers that a workload of yours takes: give --trace and "
                                         "--hit-rate with it"));
  }
  if (line.Given("--prefill-rate") && line.Given("--prefill-efficiency"))
    return Status(Code::kInvalid, "--prefill-rate stands instead of --prefill-efficiency: give one of them");
  return Status();
}

// Looks up all names, the user's table above the one that is compiled in.
Status Resolve(PlanFlags& f, const planner::Tables& tables) {
  Result<planner::Model> model = ChooseModel(f, tables);
  if (!model) return model.error();
  f.input.model = std::move(*model);
  if (f.parameters) f.input.model.parameters = f.input.model.active_parameters = f.parameters;
  if (f.active_parameters) f.input.model.active_parameters = f.active_parameters;
  if (f.weight_bits) f.input.model.weight_bits = *f.weight_bits;
  f.input.hit_rate = f.wanted;
  f.input.think_s = static_cast<double>(f.think_us) * kMicroseconds;
  f.input.busy_s = static_cast<double>(f.busy_us) * kMicroseconds;
  if (!f.gpu.empty()) {
    Result<planner::Gpu> gpu = tables.FindGpu(f.gpu);
    if (!gpu) return gpu.error();
    f.input.gpu = std::move(*gpu);
  }
  f.input.compared = tables.gpus;
  for (const planner::Medium& medium : tables.media) {
    if (f.tiers.empty()) f.input.tiers.push_back({.medium = medium});
  }
  for (const std::string& text : f.tiers) {
    Result<planner::Tier> tier = ChooseTier(text, tables);
    if (!tier) return tier.error();
    const std::string& name = tier->medium.name;
    if (std::ranges::find(f.input.tiers, name, [](const auto& one) { return one.medium.name; }) !=
        f.input.tiers.end())
      return Status(Code::kInvalid, Text("--tier ", name, ": is named twice; name each once"));
    f.input.tiers.push_back(std::move(*tier));
  }
  return Status();
}

// The curve of the user's own workload, and tiers for the wanted hit rate.
Status AddTrace(const PlanFlags& f, planner::Report& report) {
  const planner::OpenWorkload open = [&f] { return workload::OpenRequests(f.trace); };
  Result<planner::Curve> curve = planner::MeasureCurve(open, f.policy, f.points, f.wanted);
  if (!curve) return curve.error();
  report.curve = std::move(*curve);
  if (!f.wanted) return Status();
  const double block_bytes = workload::kTraceBlockTokens * f.input.model.BytesPerToken();
  if (block_bytes == 0)
    return Status(Code::kInvalid,
                  Text("--trace: no layer of ", f.input.model.name,
                       " keeps anything of a single token, so its blocks have no size to plan for"));
  planner::SizingInput sizing{.wanted = *f.wanted,
                              .block_bytes = block_bytes,
                              .times = f.times.value_or(1),
                              .months = f.months.value_or(36)};
  for (const planner::Tier& tier : f.input.tiers) sizing.media.push_back(tier.medium);
  auto choices = planner::CheapestTiers(*report.curve, sizing);
  if (!choices) return choices.error();
  report.choices = std::move(*choices);
  report.plan.sections.push_back(planner::SizingSection(*report.curve, sizing, report.choices.front()));
  return Status();
}

void PrintTable(const planner::Tables& tables, bool as_json) {
  boost::json::object all;
  const auto print = [&](const char* kind, const auto& entries) {
    boost::json::array rows;
    if (!as_json) std::printf("%s\n", kind);
    for (const auto& entry : entries) {
      rows.push_back(
          boost::json::object{{"name", entry.name}, {"source", entry.source}, {"date", entry.date}});
      if (!as_json)
        std::printf("  %-16s %s (%s)\n", entry.name.c_str(), entry.source.c_str(), entry.date.c_str());
    }
    all[kind] = std::move(rows);
  };
  print("models", tables.models);
  print("gpus", tables.gpus);
  print("media", tables.media);
  if (as_json) std::printf("%s\n", boost::json::serialize(all).c_str());
}

Status Plan(PlanFlags& f, const planner::Tables& tables) {
  if (Status status = Resolve(f, tables); !status.ok()) return status;
  Result<planner::Plan> plan = planner::MakePlan(f.input);
  if (!plan) return plan.error();
  planner::Report report{.input = f.input, .plan = std::move(*plan)};
  if (!f.trace.empty()) {
    if (Status status = AddTrace(f, report); !status.ok()) return status;
  }
  if (!f.html.empty()) {
    if (Status status = WriteFile("--html", f.html, PlanPageHtml(report)); !status.ok()) return status;
  }
  std::fputs((f.json ? planner::ReportJson(report) : planner::ReportText(report)).c_str(), stdout);
  return Status();
}

}  // namespace

int RunPlan(int argc, const char* const* argv) {
  PlanFlags f;
  CommandLine line(
      "cistern plan",
      "What a store of KV would buy a deployment: bytes of a token and a session, what fits where, load\n"
      "against recompute, bandwidth, concurrency, cost; each result with its formula and numbers. Nothing\n"
      "is measured here, and assumptions are named.",
      "  cistern plan --model Llama-3-70B --gpu H100-80GB --gpus 4 --context 32768 --sessions 64 --html "
      "plan.html\n"
      "  cistern plan --config config.json --kv-bits 8 --tier dram:512GB --tier flash:8TB --json\n"
      "  cistern plan --model GPT-OSS-120B --trace conversation.jsonl --hit-rate 0.3\n"
      "  cistern plan --model Llama-3-70B --monthly-cost 1170000 --api-price 0.87\n"
      "  cistern plan --list");
  AddFlags(line, f);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (Status status = CheckFlags(line, f); !status.ok()) return Complain("cistern plan", status);
  planner::Tables tables = planner::Tables::BuiltIn();
  if (!f.data.empty()) {
    const Result<std::string> text = ReadFile("--data", f.data);
    if (!text) return Complain("cistern plan", text.error());
    if (Status status = tables.Add(*text, f.data); !status.ok()) return Complain("cistern plan", status);
  }
  if (f.list) {
    PrintTable(tables, f.json);
    return kExitOk;
  }
  if (Status status = Plan(f, tables); !status.ok()) return Complain("cistern plan", status);
  return kExitOk;
}

}  // namespace cistern
