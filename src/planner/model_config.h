// SPDX-License-Identifier: Apache-2.0
// A model from a Hugging Face config.json, or from a description of Cistern's own where no configuration says
// what its layers keep.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "cistern/status.h"
#include "planner/model.h"

namespace cistern::planner {

// Understood are: multi-head and grouped attention; latent attention (kv_lora_rank), with index keys; sliding
// windows (layer_types, sliding_window, sliding_window_pattern, max_window_layers); recurrent state of Mamba,
// Mamba 2 and gated delta nets, alone or between attention layers (layer_types, hybrid_override_pattern,
// attn_layer_period, full_attention_interval). What a multimodal model says of its text model (text_config)
// counts. `kv_bits` is of each number kept for attention; recurrent state has the configuration's type.
//
// parameters and active_parameters are set where the shapes say all of them: dense and mixture-of-experts
// layers over grouped attention. kInvalid names the field that is missing or not understood; nothing is
// guessed.
Result<Model> ModelFromConfig(const boost::json::object& config, std::string name, double kv_bits);

// {"kv_layers": [{"layers": 30, "values": 640, "tokens_per_entry": 4}, {"layers": 61, "values": 512,
// "window": 128},
// {"layers": 8, "state_bytes": 1048576}], "bits": 16}, for models that a configuration does not describe.
Result<Model> ModelFromDescription(const boost::json::object& description, std::string name, double kv_bits);

}  // namespace cistern::planner
