// SPDX-License-Identifier: Apache-2.0
// A serving fleet as a discrete-event model: requests arrive, a router sends each to a node, which loads what
// is stored of its prompt, computes the rest and decodes the answer, itself or on a node of another pool.
// Every event costs the same however many nodes there are, but for what the processor's caches hold.
//
// Not modelled: time that an iteration takes beside its operations and bytes; KV in a node's GPUs after an
// answer (all reuse is loaded from a tier); writing to tiers (it is behind).
#pragma once

#include "fleet/result.h"
#include "workload/request.h"

namespace cistern::fleet {

// Runs all of `requests`. The same options and requests give the same result. Fails as Check and the source
// fail.
Result<ClusterResult> RunCluster(const ClusterOptions& options, workload::RequestSource& requests);

}  // namespace cistern::fleet
