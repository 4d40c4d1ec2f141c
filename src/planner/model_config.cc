// SPDX-License-Identifier: Apache-2.0
#include "planner/model_config.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/format.h"
#include "base/nearest.h"
#include "planner/fields.h"
#include "planner/figure.h"
#include "planner/parameters.h"

namespace cistern::planner {
namespace {

namespace json = boost::json;

enum class Kind { kFull, kSliding, kMamba, kDelta, kNothing };

struct Recurrent {
  double bytes = 0;
  std::string text;
};

double BitsOfType(Fields& config, std::string_view field, double by_default) {
  const std::string type = config.String(field, "");
  if (type.empty()) return by_default;
  if (type == "bfloat16" || type == "float16") return 16;
  if (type == "float32") return 32;
  config.Fail(field, Text("is ", Shown(type), ": known are bfloat16, float16, float32"));
  return by_default;
}

double StateBits(Fields& config) {
  const double model = BitsOfType(config, config.Has("torch_dtype") ? "torch_dtype" : "dtype", 16);
  return BitsOfType(config, "mamba_ssm_dtype", model);
}

Kind KindOf(Fields& config, std::string_view type) {
  if (type == "full_attention" || type == "attention") return Kind::kFull;
  if (type == "sliding_attention") return Kind::kSliding;
  if (type == "linear_attention") return Kind::kDelta;
  if (type == "mamba" || type == "mamba2") return Kind::kMamba;
  config.Fail("layer_types",
              Text("has ", Shown(type),
                   ": known are full_attention, sliding_attention, linear_attention, attention, mamba"));
  return Kind::kNothing;
}

std::vector<Kind> KindsFromTypes(Fields& config, const json::array& types, std::uint64_t layers) {
  std::vector<Kind> kinds;
  for (const json::value& type : types)
    kinds.push_back(type.is_string() ? KindOf(config, type.get_string()) : KindOf(config, "no text"));
  if (kinds.size() != layers)
    config.Fail("layer_types", Text("names ", kinds.size(), " layers, num_hidden_layers is ", layers));
  return kinds;
}

// "M-M*-": a letter a layer.
std::vector<Kind> KindsFromPattern(Fields& config, std::string_view pattern, std::uint64_t layers) {
  std::vector<Kind> kinds;
  for (const char c : pattern) {
    if (c != 'M' && c != '*' && c != '-' && c != 'E')
      config.Fail("hybrid_override_pattern",
                  Text("has '", c, "': known are M (Mamba), * (attention), - and E"));
    kinds.push_back(c == 'M' ? Kind::kMamba : c == '*' ? Kind::kFull : Kind::kNothing);
  }
  if (kinds.size() != layers)
    config.Fail("hybrid_override_pattern",
                Text("names ", kinds.size(), " layers, num_hidden_layers is ", layers));
  return kinds;
}

// Which layers slide where no list says it: the rules of the models' own code.
std::vector<Kind> KindsOfWindows(Fields& config, std::uint64_t layers) {
  std::vector<Kind> kinds(layers, Kind::kFull);
  if (!config.Has("sliding_window") || !config.Flag("use_sliding_window", true)) return kinds;
  const bool every_second = config.String("model_type", "") == "gemma2";
  const std::uint64_t pattern = config.Count("sliding_window_pattern", 1, every_second ? 2 : 0);
  const std::uint64_t first = config.Count("max_window_layers", 0, 0);
  for (std::uint64_t i = 0; i < layers; ++i) {
    const bool full = pattern ? (i + 1) % pattern == 0 : i < first;
    kinds[i] = full ? Kind::kFull : Kind::kSliding;
  }
  return kinds;
}

std::vector<Kind> LayerKinds(Fields& config, std::uint64_t layers) {
  const std::string type = config.String("model_type", "");
  if (const json::array* types = config.Array("layer_types")) return KindsFromTypes(config, *types, layers);
  if (config.Has("hybrid_override_pattern"))
    return KindsFromPattern(config, config.String("hybrid_override_pattern"), layers);
  if (type == "mamba" || type == "mamba2" || type == "falcon_mamba") return std::vector(layers, Kind::kMamba);
  std::vector<Kind> kinds(layers, Kind::kFull);
  if (config.Has("attn_layer_period")) {
    const std::uint64_t period = config.Count("attn_layer_period");
    const std::uint64_t offset = config.Count("attn_layer_offset", 0);
    for (std::uint64_t i = 0; i < layers && config.status().ok(); ++i)
      kinds[i] = i % period == offset ? Kind::kFull : Kind::kMamba;
    return kinds;
  }
  if (config.Has("full_attention_interval")) {
    const std::uint64_t interval = config.Count("full_attention_interval");
    for (std::uint64_t i = 0; i < layers && config.status().ok(); ++i)
      kinds[i] = (i + 1) % interval == 0 ? Kind::kFull : Kind::kDelta;
    return kinds;
  }
  for (const std::string_view field :
       {"attention_chunk_size", "compress_ratios", "mamba_d_ssm", "block_types"}) {
    if (config.Has(field)) {
      config.Fail(field,
                  "is there and layer_types is missing: which layers it is of is not said; describe the "
                  "model by kv_layers (docs/planner.md)");
    }
  }
  return KindsOfWindows(config, layers);
}

Recurrent StateText(double values, double conv, double state_bits, std::string_view state_text,
                    std::string_view conv_text) {
  const double bytes = state_bits / 8;
  return {.bytes = values * bytes + conv * bytes,
          .text = Text("(", state_text, " + ", conv_text, ") x ", NumberText(bytes), " B")};
}

// Mamba 2 has heads, Mamba one state a channel.
Recurrent MambaState(Fields& config) {
  const double bits = StateBits(config);
  const std::uint64_t conv = config.CountOf({"conv_kernel", "mamba_d_conv"});
  const std::uint64_t state = config.CountOf({"ssm_state_size", "mamba_d_state", "state_size"});
  const bool second = config.Has("mamba_n_heads") || config.Has("mamba_num_heads") ||
                      config.String("model_type", "") == "mamba2";
  const auto d = [](std::uint64_t n) { return static_cast<double>(n); };
  if (second) {
    const std::uint64_t heads = config.CountOf({"mamba_num_heads", "mamba_n_heads", "num_heads"});
    const std::uint64_t dim = config.CountOf({"mamba_head_dim", "mamba_d_head", "head_dim"});
    const std::uint64_t groups = config.CountOf({"n_groups", "mamba_n_groups"});
    const std::uint64_t channels = heads * dim + 2 * groups * state;
    return StateText(d(heads * dim * state), d(channels * (conv - 1)), bits,
                     Text(heads, " heads x ", dim, " x ", state), Text(channels, " x ", conv - 1));
  }
  const std::uint64_t inner = config.Has("intermediate_size") && config.String("model_type", "") != "jamba"
                                  ? config.Count("intermediate_size")
                                  : config.CountOf({"mamba_expand", "expand"}) * config.Count("hidden_size");
  return StateText(d(inner * state), d(inner * (conv - 1)), bits, Text(inner, " x ", state),
                   Text(inner, " x ", conv - 1));
}

Recurrent DeltaState(Fields& config) {
  const std::uint64_t keys = config.Count("linear_num_key_heads");
  const std::uint64_t values = config.Count("linear_num_value_heads");
  const std::uint64_t key_dim = config.Count("linear_key_head_dim");
  const std::uint64_t value_dim = config.Count("linear_value_head_dim");
  const std::uint64_t conv = config.Count("linear_conv_kernel_dim");
  const std::uint64_t channels = 2 * keys * key_dim + values * value_dim;
  return StateText(static_cast<double>(values * key_dim * value_dim),
                   static_cast<double>(channels * (conv - 1)), StateBits(config),
                   Text(values, " heads x ", key_dim, " x ", value_dim), Text(channels, " x ", conv - 1));
}

// What one attention layer keeps of a token.
KvLayers AttentionEntry(Fields& config, double kv_bits) {
  KvLayers kv{.bits = kv_bits};
  const std::uint64_t heads = config.CountOf({"num_attention_heads", "n_head"});
  if (config.Has("kv_lora_rank")) {
    const std::uint64_t rank = config.Count("kv_lora_rank");
    const std::uint64_t rope = config.Count("qk_rope_head_dim");
    kv.kind = "latent";
    kv.values = static_cast<double>(rank + rope);
    kv.values_text = Text("(", rank, " + ", rope, ")");
    kv.pair_flops = 2.0 * static_cast<double>(
                              heads * (config.Count("qk_nope_head_dim") + rope + config.Count("v_head_dim")));
    return kv;
  }
  const std::uint64_t kv_heads = config.Has("num_key_value_heads")
                                     ? config.Count("num_key_value_heads")
                                     : (config.Flag("multi_query", false) ? 1 : heads);
  std::uint64_t dim = 0;
  if (config.Has("head_dim")) {
    dim = config.Count("head_dim");
  } else {
    const std::uint64_t hidden = config.CountOf({"hidden_size", "n_embd"});
    if (heads > 0 && hidden % heads != 0)
      config.Fail("head_dim",
                  Text("is missing and hidden_size ", hidden, " is no multiple of the ", heads, " heads"));
    dim = heads > 0 ? hidden / heads : 0;
  }
  if (kv_heads > 0 && heads % kv_heads != 0)
    config.Fail("num_key_value_heads",
                Text("is ", kv_heads, ", which does not divide the ", heads, " heads"));
  kv.kind = kv_heads == heads ? "multi-head" : "grouped";
  kv.values = 2.0 * static_cast<double>(kv_heads * dim);
  kv.values_text = Text("2 x ", kv_heads, " heads x ", dim);
  kv.pair_flops = 4.0 * static_cast<double>(heads * dim);
  return kv;
}

void AddAttention(Fields& config, std::uint64_t full, std::uint64_t sliding, double kv_bits, Model& model) {
  if (full + sliding == 0) return;
  KvLayers kv = AttentionEntry(config, kv_bits);
  if (full > 0) {
    kv.layers = full;
    model.kv.push_back(kv);
  }
  if (sliding > 0) {
    kv.layers = sliding;
    kv.kind = "sliding";
    kv.window = config.Count("sliding_window");
    model.kv.push_back(kv);
  }
  if (config.Has("index_head_dim")) {
    const std::uint64_t dim = config.Count("index_head_dim");
    model.kv.push_back({.kind = "index",
                        .layers = full + sliding,
                        .values = static_cast<double>(dim),
                        .values_text = Text(dim),
                        .bits = kv_bits});
  }
}

void AddRecurrent(const Recurrent& state, std::uint64_t layers, Model& model) {
  model.kv.push_back(
      {.kind = "state", .layers = layers, .state_bytes = state.bytes, .state_text = state.text});
}

}  // namespace

Result<Model> ModelFromConfig(const json::object& config, std::string name, double kv_bits) {
  if (config.contains("kv_layers")) return ModelFromDescription(config, std::move(name), kv_bits);
  Fields whole(config, Text("model ", Shown(name)));
  if (const json::object* text = whole.Object("text_config"))
    return ModelFromConfig(*text, std::move(name), kv_bits);
  if (!whole.status().ok()) return Error(whole.status());
  const std::uint64_t layers = whole.CountOf({"num_hidden_layers", "n_layer"});
  if (whole.status().ok() && layers > 10'000)
    whole.Fail("num_hidden_layers", Text("is ", layers, ": at most 10000"));
  if (!whole.status().ok()) return Error(whole.status());
  const std::vector<Kind> kinds = LayerKinds(whole, layers);
  const auto count = [&kinds](Kind kind) {
    return static_cast<std::uint64_t>(std::ranges::count(kinds, kind));
  };
  Model model{.name = std::move(name)};
  if (whole.status().ok()) AddAttention(whole, count(Kind::kFull), count(Kind::kSliding), kv_bits, model);
  if (whole.status().ok() && count(Kind::kMamba) > 0)
    AddRecurrent(MambaState(whole), count(Kind::kMamba), model);
  if (whole.status().ok() && count(Kind::kDelta) > 0)
    AddRecurrent(DeltaState(whole), count(Kind::kDelta), model);
  if (whole.status().ok() && count(Kind::kMamba) + count(Kind::kDelta) == 0) CountParameters(whole, model);
  if (!whole.status().ok()) return Error(whole.status());
  return model;
}

Result<Model> ModelFromDescription(const json::object& description, std::string name, double kv_bits) {
  Fields whole(description, Text("model ", Shown(name)));
  const double bits = whole.OptionalNumber("bits", 1, 64).value_or(kv_bits);
  const json::array* layers = whole.Array("kv_layers");
  if (!layers || layers->empty()) whole.Fail("kv_layers", "is empty: expected an array of groups of layers");
  if (!whole.status().ok()) return Error(whole.status());
  Model model{.name = std::move(name)};
  for (std::size_t i = 0; i < layers->size(); ++i) {
    const json::object* group = (*layers)[i].if_object();
    if (!group) whole.Fail("kv_layers", Text("[", i, "] is no object"));
    if (!group) return Error(whole.status());
    Fields fields(*group, Text(whole.where(), ": kv_layers[", i, "]"));
    KvLayers kv{.layers = fields.Count("layers"),
                .values = fields.OptionalNumber("values", 0, 1e9).value_or(0),
                .bits = fields.OptionalNumber("bits", 1, 64).value_or(bits),
                .window = fields.Count("window", 1, 0),
                .tokens_per_entry = fields.Count("tokens_per_entry", 1, 1),
                .state_bytes = fields.OptionalNumber("state_bytes", 0, 1e15).value_or(0),
                .pair_flops = fields.OptionalNumber("pair_flops", 0, 1e15).value_or(0)};
    if (fields.status().ok() && kv.values == 0 && kv.state_bytes == 0)
      fields.Fail("values", "and state_bytes are missing: the layers keep nothing");
    if (!fields.status().ok()) return Error(fields.status());
    kv.kind = kv.values == 0            ? "state"
              : kv.window               ? "sliding"
              : kv.tokens_per_entry > 1 ? "compressed"
                                        : "attention";
    kv.values_text = NumberText(kv.values);
    kv.state_text = Text(NumberText(kv.state_bytes), " B");
    model.kv.push_back(std::move(kv));
  }
  return model;
}

}  // namespace cistern::planner
