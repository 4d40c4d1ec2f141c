// SPDX-License-Identifier: Apache-2.0
#include "planner/parameters.h"

#include <algorithm>

namespace cistern::planner {
namespace {

bool HasAll(const Fields& config, std::initializer_list<std::string_view> fields) {
  return std::ranges::all_of(fields, [&config](std::string_view field) { return config.Has(field); });
}

// Models whose layers are attention and a gated feed-forward, dense or of experts, and nothing else of
// weight.
constexpr std::string_view kGatedTypes[] = {"llama",     "mistral", "mixtral",     "qwen2",   "qwen3",
                                            "qwen3_moe", "gemma2",  "gemma3_text", "gpt_oss", "glm4_moe"};

struct FeedForward {
  double all = 0;
  double active = 0;
};

FeedForward Experts(Fields& config, double hidden, double experts, std::uint64_t layers) {
  const auto inner =
      static_cast<double>(config.Has("moe_intermediate_size") ? config.Count("moe_intermediate_size")
                                                              : config.Count("intermediate_size"));
  const auto shared = static_cast<double>(config.Count("n_shared_experts", 0, 0));
  const auto chosen = static_cast<double>(config.Count("num_experts_per_tok"));
  const auto dense = static_cast<double>(std::min(config.Count("first_k_dense_replace", 0, 0), layers));
  const double rest = static_cast<double>(layers) - dense;
  const double one = 3 * hidden * inner;
  const double first = dense * 3 * hidden * static_cast<double>(config.Count("intermediate_size", 1, 0));
  return {.all = first + rest * ((experts + shared) * one + hidden * experts),
          .active = first + rest * ((chosen + shared) * one + hidden * experts)};
}

}  // namespace

void CountParameters(Fields& config, Model& model) {
  if (!HasAll(config, {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                       "intermediate_size", "tie_word_embeddings"}))
    return;
  const std::string type = config.String("model_type", "");
  if (std::ranges::find(kGatedTypes, type) == std::end(kGatedTypes)) return;
  if (config.Count("decoder_sparse_step", 1, 1) != 1) return;
  if (const auto* dense = config.Array("mlp_only_layers"); dense && !dense->empty()) return;
  const auto hidden = static_cast<double>(config.Count("hidden_size"));
  const std::uint64_t layers = config.Count("num_hidden_layers");
  const std::uint64_t heads = config.Count("num_attention_heads");
  const auto dim = config.Has("head_dim") ? static_cast<double>(config.Count("head_dim"))
                                          : hidden / static_cast<double>(heads);
  const auto kv_heads = static_cast<double>(config.Count("num_key_value_heads", 1, heads));
  const double attention = 2 * hidden * dim * (static_cast<double>(heads) + kv_heads);
  const double embedding = hidden * static_cast<double>(config.Count("vocab_size"));
  const double embeddings = config.Flag("tie_word_embeddings", false) ? embedding : 2 * embedding;

  const std::string_view names[] = {"num_local_experts", "n_routed_experts", "num_experts"};
  const auto* const experts = std::ranges::find_if(names, [&config](auto name) { return config.Has(name); });
  FeedForward feed;
  if (experts != std::end(names)) {
    feed = Experts(config, hidden, static_cast<double>(config.Count(*experts)), layers);
  } else {
    feed.all = feed.active =
        static_cast<double>(layers) * 3 * hidden * static_cast<double>(config.Count("intermediate_size"));
  }
  const double rest = embeddings + static_cast<double>(layers) * attention;
  model.parameters = rest + feed.all;
  model.active_parameters = rest + feed.active;
}

}  // namespace cistern::planner
