// SPDX-License-Identifier: Apache-2.0
// How much there is to keep, and where it fits.
#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "planner/sections.h"

namespace cistern::planner {
namespace {

double SessionBytes(const PlanInput& input) { return input.model.Bytes(input.context_tokens); }

std::string Bytes(double bytes) { return Text(NumberText(bytes), " B"); }

// Bytes that the fleet has for weights and KV.
double FleetBytes(const PlanInput& input) {
  return static_cast<double>(input.gpus) * input.gpu->memory_bytes * input.usable_memory;
}

double KvRoom(const PlanInput& input) { return FleetBytes(input) - input.model.WeightBytes(); }

Status CannotHold(const PlanInput& input) {
  const double weights = input.model.WeightBytes();
  const double each = input.gpu->memory_bytes * input.usable_memory;
  return Status(Code::kInvalid,
                Text(input.model.name, " has ", QuantityText(weights, "B"), " of weights (",
                     NumberText(*input.model.parameters), " parameters x ",
                     NumberText(input.model.weight_bits), " bits), and ", input.gpus, " x ", input.gpu->name,
                     " have room for ", QuantityText(FleetBytes(input), "B"), " (",
                     NumberText(input.usable_memory), " of their memory): give --gpus ",
                     NumberText(std::floor(weights / each) + 1), " or more, or fewer --weight-bits"));
}

}  // namespace

double InflectionTokens(double weight_bytes, double bytes_per_token) {
  return weight_bytes / 2 / bytes_per_token;
}

Section KvSize(const PlanInput& input) {
  const Model& model = input.model;
  Section section{.key = "kv", .title = "What KV takes"};
  section.figures.push_back({"kv_bytes_per_token", "KV of one token", model.BytesPerToken(), "B",
                             "values x bytes x layers", model.BytesPerTokenText()});
  if (model.BytesPerTokenBeyondWindows() != model.BytesPerToken()) {
    section.figures.push_back({"kv_bytes_per_token_beyond_windows", "KV of one token more, all windows full",
                               model.BytesPerTokenBeyondWindows(), "B", "the same without layers of a window",
                               Text(NumberText(model.BytesPerToken()), " B less the layers that slide")});
  }
  const double session = SessionBytes(input);
  section.figures.push_back(
      {"kv_session_bytes",
       Text("one session of ", NumberText(static_cast<double>(input.context_tokens)), " tokens"), session,
       "B", "tokens x KV of one token, as far as each layer keeps them",
       model.BytesText(input.context_tokens)});
  section.figures.push_back({"kv_all_sessions_bytes", Text("all sessions (", input.sessions, ")"),
                             static_cast<double>(input.sessions) * session, "B", "sessions x one session",
                             Text(NumberText(static_cast<double>(input.sessions)), " x ", Bytes(session))});
  return section;
}

Result<Section> Fit(const PlanInput& input) {
  Section section{.key = "fit", .title = "What fits where"};
  const double session = SessionBytes(input);
  if (input.model.parameters) {
    section.figures.push_back(
        {"weight_bytes", "weights", input.model.WeightBytes(), "B", "parameters x bits / 8",
         Text(NumberText(*input.model.parameters), " x ", NumberText(input.model.weight_bits), " / 8")});
  } else {
    section.notes.push_back(Text("How many parameters ", input.model.name,
                                 " has is not known, so nothing is said of its weights: give --parameters"));
  }
  if (input.gpu && input.model.parameters) {
    const double room = KvRoom(input);
    if (room <= 0) return Error(CannotHold(input));
    section.figures.push_back(
        {"gpu_kv_bytes", Text("room for KV in ", input.gpus, " x ", input.gpu->name), room, "B",
         "GPUs x memory x usable share - weights",
         Text(input.gpus, " x ", Bytes(input.gpu->memory_bytes), " x ", NumberText(input.usable_memory),
              " - ", Bytes(input.model.WeightBytes()))});
    section.figures.push_back({"gpu_sessions", "sessions that fit there", std::floor(room / session),
                               "sessions", "floor(room / one session)",
                               Text("floor(", Bytes(room), " / ", Bytes(session), ")")});
  }
  for (const Tier& tier : input.tiers) {
    if (!tier.bytes) continue;
    section.figures.push_back(
        {Text(tier.medium.name, "_sessions"),
         Text("sessions that fit in ", QuantityText(*tier.bytes, "B"), " of ", tier.medium.name),
         std::floor(*tier.bytes / session), "sessions", "floor(room / one session)",
         Text("floor(", Bytes(*tier.bytes), " / ", Bytes(session), ")")});
  }
  return section;
}

Section Concurrency(const PlanInput& input) {
  Section section{.key = "concurrency", .title = "Sessions at a time"};
  const double period = input.think_s + input.busy_s;
  const double session = SessionBytes(input);
  section.notes.push_back(Text("A session is assumed to be busy for ", NumberText(input.busy_s),
                               " s (--busy) and to think for ", NumberText(input.think_s), " s (--think)"));
  if (input.gpu && input.model.parameters && KvRoom(input) > 0) {
    const double resident = std::floor(KvRoom(input) / session);
    section.figures.push_back({"sessions_without_offload", "sessions whose KV stays in the GPUs", resident,
                               "sessions", "floor(room / one session)",
                               Text("floor(", Bytes(KvRoom(input)), " / ", Bytes(session), ")")});
    section.figures.push_back({"sessions_with_offload", "sessions where only busy ones are in the GPUs",
                               std::floor(resident * period / input.busy_s), "sessions",
                               "floor(resident x (busy + think) / busy)",
                               Text("floor(", NumberText(resident), " x ", NumberText(period), " s / ",
                                    NumberText(input.busy_s), " s)")});
  }
  for (const Tier& tier : input.tiers) {
    const double by_bandwidth = std::floor(tier.medium.bytes_per_s * period / session);
    section.figures.push_back({Text(tier.medium.name, "_sessions_by_bandwidth"),
                               Text("sessions that one ", tier.medium.name, " can bring back each turn"),
                               by_bandwidth, "sessions", "floor(bandwidth x (busy + think) / one session)",
                               Text("floor(", NumberText(tier.medium.bytes_per_s), " B/s x ",
                                    NumberText(period), " s / ", Bytes(session), ")")});
  }
  return section;
}

Section OffloadPays(const PlanInput& input) {
  Section section{.key = "offload", .title = "When offload pays"};
  const double each = input.model.BytesPerToken();
  if (!input.model.parameters || each == 0) {
    section.notes.push_back(each == 0 ? "No layer keeps anything of a single token: KV does not grow"
                                      : "The weights are not known: give --parameters");
    return section;
  }
  const double weights = input.model.WeightBytes();
  const double tokens = InflectionTokens(weights, each);
  section.figures.push_back({"inflection_tokens", "tokens in all sessions from which KV is half the weights",
                             tokens, "tokens", "weights / 2 / KV of one token",
                             Text(Bytes(weights), " / 2 / ", Bytes(each))});
  const double have = static_cast<double>(input.sessions) * static_cast<double>(input.context_tokens);
  section.figures.push_back(
      {"inflection_share", "what this deployment has of that", have / tokens, "times",
       "sessions x tokens / inflection",
       Text(NumberText(static_cast<double>(input.sessions)), " x ",
            NumberText(static_cast<double>(input.context_tokens)), " / ", NumberText(tokens))});
  section.notes.push_back(have >= tokens
                              ? "KV takes more than half of what the weights take: offload pays"
                              : "KV takes less than half of what the weights take: the GPUs' own memory "
                                "may be enough");
  return section;
}

}  // namespace cistern::planner
