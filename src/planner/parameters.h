// SPDX-License-Identifier: Apache-2.0
// How many parameters a configuration's shapes come to.
#pragma once

#include "planner/fields.h"
#include "planner/model.h"

namespace cistern::planner {

// Sets parameters and active_parameters: embeddings, attention, and gated feed-forward layers, dense or of
// experts. Norms and biases are left out (less than 0.1 %). Leaves both unset where the shapes are not all
// there, or where they are of latent attention's or another kind: then only the model's card knows.
void CountParameters(Fields& config, Model& model);

}  // namespace cistern::planner
