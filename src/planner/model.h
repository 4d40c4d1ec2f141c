// SPDX-License-Identifier: Apache-2.0
// What a model keeps of a context, and what computing it costs: layers of a kind together, each kind a closed
// form of the number of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cistern/status.h"

namespace cistern::planner {

// Layers that keep the same. A layer with two kinds of memory (a compressed past and a window) is in two
// groups.
//
// Bytes of one session at n tokens:
//   layers x (entries(n) x values x bits / 8 + state_bytes)
//   entries(n) = min(n, window) / tokens_per_entry, rounded down; window 0: no window
struct KvLayers {
  std::string kind;  // "multi-head", "grouped", "latent", "sliding", "index", "compressed", "state"
  std::uint64_t layers = 0;
  double values = 0;        // numbers that one layer keeps of one entry
  std::string values_text;  // how they come about: "2 x 8 heads x 128"
  double bits = 16;         // of a number
  std::uint64_t window = 0;
  std::uint64_t tokens_per_entry = 1;
  double state_bytes = 0;  // of a layer and session, however long: recurrent state
  std::string state_text;
  double pair_flops = 0;  // of attention, for each query and each entry that it sees, a layer

  double EntryBytes() const { return values * bits / 8; }
};

struct Model {
  std::string name;
  std::string source;  // where the configuration is from
  std::string date;
  std::vector<KvLayers> kv;
  std::optional<double> parameters;  // all of them: what the weights weigh
  std::optional<double>
      active_parameters;  // that one token is multiplied with; as many as there are, if dense
  double weight_bits = 16;

  // Bytes that one more token takes while no window is full. Recurrent state takes none.
  double BytesPerToken() const;
  // Bytes that one more token takes once all windows are full.
  double BytesPerTokenBeyondWindows() const;
  // Bytes of one session of so many tokens.
  double Bytes(std::uint64_t tokens) const;
  // Operations to compute the tokens from `from` to `to` of a prompt whose first `from` are there: two for
  // each active parameter and token, and attention's, which grow with the square. active_parameters is
  // needed.
  double PrefillFlops(std::uint64_t from, std::uint64_t to) const;
  double WeightBytes() const { return *parameters * weight_bits / 8; }

  // "2 x 8 heads x 128 x 2 B x 32 layers", a line a group: the numbers behind BytesPerToken and Bytes.
  std::string BytesPerTokenText() const;
  std::string BytesText(std::uint64_t tokens) const;
};

// kInvalid where a token meets more parameters than there are.
Status CheckActive(const Model& model);

// (query, key) pairs of causal attention for queries `from` to `to` that each see at most `window` tokens (0:
// all).
double Pairs(std::uint64_t from, std::uint64_t to, std::uint64_t window);

}  // namespace cistern::planner
