// SPDX-License-Identifier: Apache-2.0
// What models keep of a token, by published configurations: the vectors that the planner answers for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/fields.h"
#include "planner/model_config.h"
#include "planner/tables.h"

namespace cistern::planner {
namespace {

using ::testing::HasSubstr;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kWithin = 1e-3;  // of the value

Model Named(std::string_view name) {
  Result<Model> model = Tables::BuiltIn().FindModel(name, 16);
  EXPECT_TRUE(model) << name;
  return model ? *model : Model();
}

Result<Model> FromText(std::string_view config) {
  Result<boost::json::object> object = ParseObject(config, "config.json");
  if (!object) return Error(object.error());
  return ModelFromConfig(*object, "m", 16);
}

std::string Refusal(std::string_view config) {
  const Result<Model> model = FromText(config);
  return model ? "accepted" : std::string(model.error().message());
}

TEST(ModelVector, Llama3_8BGrouped) { EXPECT_EQ(Named("Llama-3-8B").BytesPerToken(), 131'072); }
TEST(ModelVector, Llama3_70BGrouped) { EXPECT_EQ(Named("Llama-3-70B").BytesPerToken(), 327'680); }
TEST(ModelVector, Llama31_405BGrouped) { EXPECT_EQ(Named("Llama-3.1-405B").BytesPerToken(), 516'096); }
TEST(ModelVector, Qwen3_8BGrouped) { EXPECT_EQ(Named("Qwen3-8B").BytesPerToken(), 147'456); }
TEST(ModelVector, Glm45Grouped) { EXPECT_EQ(Named("GLM-4.5").BytesPerToken(), 376'832); }
TEST(ModelVector, DeepSeekV3AndR1Latent) {
  EXPECT_EQ(Named("DeepSeek-V3").BytesPerToken(), 70'272);
  EXPECT_EQ(Named("deepseek-r1").BytesPerToken(), 70'272);
}

TEST(ModelVector, GptOssHalfTheLayersSlideOver128Tokens) {
  const Model small = Named("GPT-OSS-20B");
  const Model large = Named("GPT-OSS-120B");
  EXPECT_EQ(small.BytesPerToken(), 49'152);
  EXPECT_EQ(large.BytesPerToken(), 73'728);
  EXPECT_EQ(small.BytesPerTokenBeyondWindows(), 49'152 / 2);
  EXPECT_EQ(large.Bytes(128), 128 * 73'728.0);
  EXPECT_EQ(large.Bytes(10'128), 128 * 73'728.0 + 10'000 * 73'728.0 / 2);
}

TEST(ModelVector, Llama3_70BAt131072Tokens40GiB) {
  EXPECT_NEAR(Named("Llama-3-70B").Bytes(131'072) / kGiB, 40, 40 * kWithin);
}

TEST(ModelVector, CompressedAttentionAt2To20Tokens) {
  const Result<Model> model = FromText(R"({"kv_layers": [
    {"layers": 30, "values": 640, "tokens_per_entry": 4},
    {"layers": 31, "values": 512, "tokens_per_entry": 128},
    {"layers": 61, "values": 512, "window": 128}]})");
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_NEAR(model->Bytes(1 << 20) / kGiB, 9.62, 9.62 * kWithin);
}

TEST(ModelConfig, ParametersOfDenseAndExpertLayersAsPublished) {
  const Tables tables = Tables::BuiltIn();
  for (const ModelEntry& entry : tables.models) {
    const Result<Model> counted = ModelFromConfig(entry.config, entry.name, 16);
    ASSERT_TRUE(counted) << entry.name;
    if (!counted->parameters) continue;  // the shapes do not say all
    EXPECT_NEAR(*counted->parameters, *entry.parameters, 0.01 * *entry.parameters) << entry.name;
  }
  EXPECT_NEAR(*Named("Llama-3-8B").active_parameters, 8.03e9, 8.03e7);
}

TEST(ModelConfig, MultiHeadWhereNoKeyValueHeadsAreNamed) {
  const Result<Model> model =
      FromText(R"({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "vocab_size": 10})");
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(model->kv[0].kind, "multi-head");
  EXPECT_EQ(model->BytesPerToken(), 2 * 4 * 8 * 2 * 2);
}

TEST(ModelConfig, TextModelOfAMultimodalOne) {
  const Result<Model> model = FromText(
      R"({"text_config": {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}})");
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(model->BytesPerToken(), 2 * 8 * 2);
}

TEST(ModelConfig, SlidingPatternEverySixthLayerFull) {
  const Result<Model> model = FromText(R"({"num_hidden_layers": 12, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 1, "sliding_window": 64, "sliding_window_pattern": 6})");
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(model->BytesPerToken(), 12 * 32);
  EXPECT_EQ(model->BytesPerTokenBeyondWindows(), 2 * 32);
  EXPECT_EQ(model->Bytes(1000), (2 * 1000 + 10 * 64) * 32);
}

TEST(ModelConfig, WindowThatIsNotUsedIsNone) {
  const Result<Model> model = FromText(R"({"num_hidden_layers": 3, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 1, "sliding_window": 64, "use_sliding_window": false})");
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(model->BytesPerTokenBeyondWindows(), 3 * 32);
}

TEST(ModelConfig, GatedDeltaNetKeepsStateAndEveryFourthLayerTokens) {
  const Result<Model> model = FromText(R"({"model_type": "qwen3_next", "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4})");
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(model->BytesPerToken(), 2 * (2 * 2 * 256 * 2));
  const double state = (32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 3) * 2.0;
  EXPECT_EQ(model->Bytes(0), 6 * state);
  EXPECT_EQ(model->Bytes(100), 6 * state + 100 * 4096);
}

TEST(ModelConfig, Mamba2LayersOfAPattern) {
  const Result<Model> model = FromText(R"({"num_hidden_layers": 5, "hybrid_override_pattern": "M-M*-",
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 4,
    "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4, "mamba_ssm_dtype": "float32"})");
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(model->BytesPerToken(), 2 * 2 * 16 * 2);
  EXPECT_EQ(model->Bytes(0), 2 * (8 * 4 * 16 + (8 * 4 + 2 * 2 * 16) * 3) * 4.0);
}

TEST(ModelConfig, MambaAloneKeepsNothingOfASingleToken) {
  const Result<Model> model = FromText(R"({"model_type": "mamba", "num_hidden_layers": 3, "state_size": 16,
    "conv_kernel": 4, "intermediate_size": 100})");
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(model->BytesPerToken(), 0);
  EXPECT_EQ(model->Bytes(1 << 20), 3 * (100 * 16 + 100 * 3) * 2.0);
}

TEST(ModelBadInput, FieldThatIsMissingIsNamed) {
  EXPECT_THAT(Refusal(R"({"num_attention_heads": 2, "head_dim": 8})"),
              HasSubstr("num_hidden_layers is missing"));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 2, "head_dim": 8})"),
              HasSubstr("num_attention_heads is missing"));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 2, "num_attention_heads": 8})"),
              HasSubstr("hidden_size is missing"));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 2, "num_attention_heads": 8, "kv_lora_rank": 512})"),
              HasSubstr("qk_rope_head_dim is missing"));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8,
                          "layer_types": ["sliding_attention"]})"),
              HasSubstr("sliding_window is missing"));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8,
                          "layer_types": ["mamba"]})"),
              HasSubstr("conv_kernel is missing"));
}

TEST(ModelBadInput, ValueThatCannotBe) {
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": "many"})"), HasSubstr("num_hidden_layers is \"many\""));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 2.5, "num_attention_heads": 2, "head_dim": 8})"),
              HasSubstr("2.5"));
  EXPECT_THAT(
      Refusal(
          R"({"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 4, "head_dim": 8})"),
      HasSubstr("num_key_value_heads is 4, which does not divide the 6 heads"));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 32})"),
              HasSubstr("no multiple of the 3 heads"));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 2, "num_attention_heads": 1, "head_dim": 8,
                          "layer_types": ["full_attention"]})"),
              HasSubstr("layer_types names 1 layers, num_hidden_layers is 2"));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8,
                          "layer_types": ["telepathy"]})"),
              HasSubstr("telepathy"));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 1, "num_attention_heads": 1e12, "head_dim": 8})"),
              HasSubstr("num_attention_heads is 1e+12: expected a number from 1 to 2097152"));
  EXPECT_THAT(Refusal("[1]"), HasSubstr("expected an object"));
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": )"), HasSubstr("is not JSON"));
}

TEST(ModelBadInput, ChunksOfWhichLayersIsNotSaid) {
  EXPECT_THAT(Refusal(R"({"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8,
                          "attention_chunk_size": 8192})"),
              HasSubstr("attention_chunk_size is there and layer_types is missing"));
}

TEST(Tables, EveryEntryHasASourceAndADate) {
  const Tables tables = Tables::BuiltIn();
  const auto check = [](const auto& entries) {
    EXPECT_FALSE(entries.empty());
    for (const auto& entry : entries) EXPECT_TRUE(!entry.source.empty() && !entry.date.empty()) << entry.name;
  };
  check(tables.models);
  check(tables.gpus);
  check(tables.media);
}

TEST(Tables, FileOfAUserReplacesAndAdds) {
  Tables tables = Tables::BuiltIn();
  const std::size_t before = tables.media.size();
  ASSERT_TRUE(tables
                  .Add(R"({"media": [{"name": "Flash", "gb_per_s": 7, "latency_us": 80, "source": "measured",
                       "date": "2026-11"}, {"name": "tape", "gb_per_s": 0.4, "latency_us": 60000000,
                       "source": "s", "date": "d"}]})",
                       "mine.json")
                  .ok());
  EXPECT_EQ(tables.media.size(), before + 1);
  EXPECT_EQ(tables.FindMedium("flash")->bytes_per_s, 7e9);
}

TEST(Tables, BadFileOfAUserChangesNothingAndSaysWhere) {
  const auto refusal = [](std::string_view text) {
    Tables tables = Tables::BuiltIn();
    const Status status = tables.Add(text, "mine.json");
    EXPECT_EQ(tables.FindMedium("flash")->bytes_per_s, 14e9);
    return std::string(status.message());
  };
  constexpr std::string_view kFlash =
      R"({"media": [{"name": "flash", "source": "s", "date": "d", "latency_us": 1, )";
  EXPECT_THAT(refusal(std::string(kFlash) + R"("gb_per_s": -1}]})"), HasSubstr("media[0]: gb_per_s is -1"));
  EXPECT_THAT(refusal(std::string(kFlash) + R"("gb_per_s": 1, "price_per_gb": [2, 1]}]})"),
              HasSubstr("media[0]: price_per_gb is [2, 1]"));
  EXPECT_THAT(refusal(std::string(kFlash) + R"("gb_per_s": 1, "price_per_gb": 2}]})"),
              HasSubstr("price_per_gb is 2"));
  EXPECT_THAT(refusal(R"({"media": [{"name": "flash", "gb_per_s": 1, "latency_us": 1}]})"),
              HasSubstr("source is missing"));
  EXPECT_THAT(refusal(R"({"medium": []})"), HasSubstr("did you mean media"));
  EXPECT_THAT(refusal(R"({"models": [{"name": "m", "source": "s", "date": "d", "config": {}}]})"),
              HasSubstr("num_hidden_layers is missing"));
}

TEST(Tables, UnknownNamesHaveTheNearest) {
  const Tables tables = Tables::BuiltIn();
  EXPECT_THAT(std::string(tables.FindModel("Llama-3-7B", 16).error().message()),
              HasSubstr("did you mean Llama-3-8B"));
  EXPECT_THAT(std::string(tables.FindGpu("H100-80G").error().message()), HasSubstr("H100-80GB"));
}

}  // namespace
}  // namespace cistern::planner
