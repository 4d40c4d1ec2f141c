// SPDX-License-Identifier: Apache-2.0
#include "planner/model.h"

#include <algorithm>

#include "base/assert.h"
#include "base/format.h"
#include "planner/figure.h"

namespace cistern::planner {
namespace {

std::uint64_t Entries(const KvLayers& kv, std::uint64_t tokens) {
  return (kv.window ? std::min(tokens, kv.window) : tokens) / kv.tokens_per_entry;
}

void Join(std::string& sum, const std::string& summand) {
  AppendText(sum, sum.empty() ? "" : " + "), sum += summand;
}

std::string LayerText(const KvLayers& kv) {
  return Text(kv.values_text, " x ", NumberText(kv.bits / 8), " B x ", kv.layers, " layers");
}

}  // namespace

double Pairs(std::uint64_t from, std::uint64_t to, std::uint64_t window) {
  const auto below = [window](std::uint64_t tokens) {
    const auto n = static_cast<double>(tokens);
    const auto w = static_cast<double>(window);
    if (window == 0 || tokens <= window) return n * (n + 1) / 2;
    return w * (w + 1) / 2 + (n - w) * w;
  };
  return below(to) - below(from);
}

double Model::BytesPerToken() const {
  double bytes = 0;
  for (const KvLayers& one : kv)
    bytes += static_cast<double>(one.layers) * one.EntryBytes() / static_cast<double>(one.tokens_per_entry);
  return bytes;
}

double Model::BytesPerTokenBeyondWindows() const {
  double bytes = 0;
  for (const KvLayers& one : kv) {
    if (one.window == 0)
      bytes += static_cast<double>(one.layers) * one.EntryBytes() / static_cast<double>(one.tokens_per_entry);
  }
  return bytes;
}

double Model::Bytes(std::uint64_t tokens) const {
  double bytes = 0;
  for (const KvLayers& one : kv) {
    bytes += static_cast<double>(one.layers) *
             (static_cast<double>(Entries(one, tokens)) * one.EntryBytes() + one.state_bytes);
  }
  return bytes;
}

double Model::PrefillFlops(std::uint64_t from, std::uint64_t to) const {
  CISTERN_ASSERT(active_parameters && from <= to);
  double flops = 2 * *active_parameters * static_cast<double>(to - from);
  for (const KvLayers& one : kv) {
    flops += static_cast<double>(one.layers) * one.pair_flops * Pairs(from, to, one.window) /
             static_cast<double>(one.tokens_per_entry);
  }
  return flops;
}

std::string Model::BytesPerTokenText() const {
  std::string sum;
  for (const KvLayers& one : kv) {
    if (one.values == 0) continue;
    std::string text = LayerText(one);
    if (one.tokens_per_entry > 1) AppendText(text, Text(" / ", one.tokens_per_entry, " tokens an entry"));
    Join(sum, text);
  }
  return sum.empty() ? "no layer keeps anything of a single token" : sum;
}

std::string Model::BytesText(std::uint64_t tokens) const {
  std::string sum;
  for (const KvLayers& one : kv) {
    if (one.values > 0) {
      std::string entries = NumberText(static_cast<double>(tokens));
      if (one.window) entries = Text("min(", entries, ", ", one.window, ")");
      if (one.tokens_per_entry > 1) entries = Text("floor(", entries, " / ", one.tokens_per_entry, ")");
      Join(sum, Text(entries, " x ", LayerText(one)));
    }
    if (one.state_bytes > 0) Join(sum, Text(one.state_text, " x ", one.layers, " layers"));
  }
  return sum;
}

Status CheckActive(const Model& model) {
  if (!model.parameters || !model.active_parameters || *model.active_parameters <= *model.parameters)
    return Status();
  return Status(Code::kInvalid, Text("--active-parameters is ", *model.active_parameters, ", above the ",
                                     *model.parameters, " that ", model.name, " has: give at most as many"));
}

}  // namespace cistern::planner
