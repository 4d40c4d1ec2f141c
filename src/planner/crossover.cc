// SPDX-License-Identifier: Apache-2.0
// Loading against computing, and what storage must be able to do for it.
#include <array>

#include "base/format.h"
#include "planner/sections.h"

namespace cistern::planner {
namespace {

constexpr std::array<std::uint64_t, 8> kContexts = {1'024,  4'096,  8'192,   16'384,
                                                    32'768, 65'536, 131'072, 262'144};

std::string ComputeFormula(const PlanInput& input) {
  return input.prefill_tokens_per_s
             ? "tokens / measured prefill rate"
             : "(2 x active parameters x tokens + attention) / (GPUs x FLOP/s x prefill efficiency)";
}

std::string ComputeNumbers(const PlanInput& input, std::uint64_t tokens) {
  if (input.prefill_tokens_per_s)
    return Text(NumberText(static_cast<double>(tokens)), " / ", NumberText(*input.prefill_tokens_per_s),
                " tokens/s");
  const double all = input.model.PrefillFlops(0, tokens);
  const double linear = 2 * *input.model.active_parameters * static_cast<double>(tokens);
  return Text("(2 x ", NumberText(*input.model.active_parameters), " x ",
              NumberText(static_cast<double>(tokens)), " + ", NumberText(all - linear), ") / (", input.gpus,
              " x ", NumberText(input.gpu->flops), " x ", NumberText(input.prefill_efficiency), ")");
}

std::string LoadNumbers(const Medium& medium, double bytes) {
  return Text(QuantityText(medium.latency_s, "s"), " + ", NumberText(bytes), " B / ",
              NumberText(medium.bytes_per_s), " B/s");
}

std::string WhatLacks(const PlanInput& input) {
  return input.gpu && !input.model.active_parameters
             ? Text("How many parameters a token of ", input.model.name,
                    " meets is not known: give --active-parameters, or --prefill-rate as measured")
             : "What computing takes is not known: give --gpu, or --prefill-rate as measured";
}

}  // namespace

double LoadSeconds(const Medium& medium, double bytes) {
  return medium.latency_s + bytes / medium.bytes_per_s;
}

std::optional<double> ComputeSeconds(const PlanInput& input, std::uint64_t from, std::uint64_t to) {
  if (input.prefill_tokens_per_s) return static_cast<double>(to - from) / *input.prefill_tokens_per_s;
  if (!input.gpu || !input.model.active_parameters) return std::nullopt;
  return input.model.PrefillFlops(from, to) /
         (static_cast<double>(input.gpus) * input.gpu->flops * input.prefill_efficiency);
}

std::vector<CrossoverRow> LoadOrCompute(const PlanInput& input) {
  std::vector<CrossoverRow> rows;
  for (const Tier& tier : input.tiers) {
    for (const std::uint64_t tokens : kContexts) {
      const std::optional<double> compute = ComputeSeconds(input, 0, tokens);
      if (!compute) return {};
      const double bytes = input.model.Bytes(tokens);
      rows.push_back({tier.medium.name, tokens, bytes, LoadSeconds(tier.medium, bytes), *compute});
    }
  }
  return rows;
}

Section Crossover(const PlanInput& input) {
  Section section{.key = "crossover", .title = "Load or recompute"};
  const double bytes = input.model.Bytes(input.context_tokens);
  const std::optional<double> compute = ComputeSeconds(input, 0, input.context_tokens);
  if (compute) {
    section.figures.push_back(
        {"compute_s", Text("computing ", NumberText(static_cast<double>(input.context_tokens)), " tokens"),
         *compute, "s", ComputeFormula(input), ComputeNumbers(input, input.context_tokens)});
    if (!input.prefill_tokens_per_s) {
      section.notes.push_back(
          Text("Prefill is assumed to reach ", NumberText(input.prefill_efficiency),
               " of the GPU's dense 16-bit rate (--prefill-efficiency); a measured rate is "
               "better: --prefill-rate"));
    }
  } else {
    section.notes.push_back(WhatLacks(input));
  }
  for (const Tier& tier : input.tiers) {
    const double load = LoadSeconds(tier.medium, bytes);
    section.figures.push_back({Text(tier.medium.name, "_load_s"),
                               Text("loading them from one ", tier.medium.name), load, "s",
                               "latency + bytes / bandwidth", LoadNumbers(tier.medium, bytes)});
    if (compute) {
      section.figures.push_back(
          {Text(tier.medium.name, "_speedup"), Text("times sooner from ", tier.medium.name), *compute / load,
           "times", "computing / loading", Text(NumberText(*compute), " s / ", NumberText(load), " s")});
    }
  }
  return section;
}

Section ByGpu(const PlanInput& input) {
  Section section{.key = "gpus", .title = "Computing them on each GPU of the table"};
  if (!input.model.active_parameters) {
    section.notes.push_back(Text("How many parameters a token of ", input.model.name,
                                 " meets is not known: give --active-parameters"));
    return section;
  }
  const double bytes = input.model.Bytes(input.context_tokens);
  PlanInput one = input;
  one.prefill_tokens_per_s.reset();  // it was measured on one of them
  for (const Gpu& gpu : input.compared) {
    const double room = static_cast<double>(input.gpus) * gpu.memory_bytes * input.usable_memory;
    if (input.model.parameters && input.model.WeightBytes() >= room) {
      section.notes.push_back(Text(input.gpus, " x ", gpu.name,
                                   " cannot hold the weights: ", QuantityText(input.model.WeightBytes(), "B"),
                                   " of ", QuantityText(room, "B")));
      continue;
    }
    one.gpu = gpu;
    const double compute = *ComputeSeconds(one, 0, input.context_tokens);
    section.figures.push_back({Text(gpu.name, "_compute_s"),
                               Text("computing them on ", input.gpus, " x ", gpu.name), compute, "s",
                               ComputeFormula(one), ComputeNumbers(one, input.context_tokens)});
    section.figures.push_back(
        {Text(gpu.name, "_break_even_bytes_per_s"), "bandwidth from which loading is sooner", bytes / compute,
         "B/s", "one session / computing it", Text(NumberText(bytes), " B / ", NumberText(compute), " s")});
  }
  return section;
}

Section Bandwidth(const PlanInput& input) {
  Section section{.key = "bandwidth", .title = "Bandwidth that the storage needs"};
  const double bytes = input.model.Bytes(input.context_tokens);
  const std::optional<double> compute = ComputeSeconds(input, 0, input.context_tokens);
  if (compute) {
    section.figures.push_back({"break_even_bytes_per_s", "below it, computing is sooner than loading",
                               bytes / *compute, "B/s", "one session / computing it",
                               Text(NumberText(bytes), " B / ", NumberText(*compute), " s")});
  }
  if (compute && input.hit_rate && *input.hit_rate > 0 && *input.hit_rate < 1) {
    const auto cached =
        static_cast<std::uint64_t>(*input.hit_rate * static_cast<double>(input.context_tokens));
    const double rest = *ComputeSeconds(input, cached, input.context_tokens);
    section.figures.push_back({"hidden_bytes_per_s", "at it, loads hide behind computing the rest",
                               input.model.Bytes(cached) / rest, "B/s",
                               "KV of the tokens that are there / computing the others",
                               Text(NumberText(input.model.Bytes(cached)), " B / ", NumberText(rest), " s")});
  }
  if (input.hit_rate && input.requests_per_s) {
    section.figures.push_back({"load_bytes_per_s", "what loads take at that rate of requests",
                               *input.requests_per_s * *input.hit_rate * bytes, "B/s",
                               "requests/s x hit rate x one session",
                               Text(NumberText(*input.requests_per_s), " x ", NumberText(*input.hit_rate),
                                    " x ", NumberText(bytes), " B")});
    section.figures.push_back({"store_bytes_per_s", "what puts take at that rate of requests",
                               *input.requests_per_s * (1 - *input.hit_rate) * bytes, "B/s",
                               "requests/s x (1 - hit rate) x one session",
                               Text(NumberText(*input.requests_per_s), " x (1 - ",
                                    NumberText(*input.hit_rate), ") x ", NumberText(bytes), " B")});
  } else {
    section.notes.push_back(
        "Give --hit-rate and --rate (requests a second) for the bandwidth of a load of your own");
  }
  return section;
}

Section Prefetch(const PlanInput& input) {
  Section section{.key = "prefetch", .title = "Prefetch window"};
  const double bytes = input.model.Bytes(input.context_tokens);
  for (const Tier& tier : input.tiers) {
    const double load = LoadSeconds(tier.medium, bytes);
    section.figures.push_back({Text(tier.medium.name, "_window_s"),
                               Text("from ", tier.medium.name, ", begun this long before the turn"), load,
                               "s", "latency + bytes / bandwidth", LoadNumbers(tier.medium, bytes)});
    section.figures.push_back({Text(tier.medium.name, "_prefetched_sessions"),
                               "sessions brought back one after the other in a think time",
                               input.think_s / load, "sessions", "think / window",
                               Text(NumberText(input.think_s), " s / ", NumberText(load), " s")});
  }
  return section;
}

}  // namespace cistern::planner
