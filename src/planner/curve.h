// SPDX-License-Identifier: Apache-2.0
// The miss-ratio curve of a workload, by the simulator's own decisions, and the cheapest tiers that reach a
// hit rate on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cistern/status.h"
#include "planner/figure.h"
#include "planner/tables.h"
#include "workload/request.h"
#include "workload/simulator.h"

namespace cistern::planner {

struct CurvePoint {
  std::uint64_t blocks = 0;
  std::uint64_t hits = 0;
};

struct Curve {
  workload::SimPolicy policy = workload::SimPolicy::kLru;
  std::uint64_t requests = 0;
  std::uint64_t accesses = 0;      // blocks of all requests
  std::uint64_t distinct = 0;      // blocks; a store of so many evicts nothing
  double span_s = 0;               // from the first request to the last
  double peak_accesses_per_s = 0;  // in the busiest minute
  std::vector<CurvePoint> points;  // by size, the last of them at `distinct`

  double hit_rate(const CurvePoint& point) const {
    return accesses ? static_cast<double>(point.hits) / static_cast<double>(accesses) : 0.0;
  }
  // What no size passes.
  double most() const { return points.empty() ? 0.0 : hit_rate(points.back()); }
  // The smallest measured size that reaches a hit rate, or null.
  const CurvePoint* Reaching(double hit_rate) const;
};

// Opens the workload afresh: it is read several times, never kept.
using OpenWorkload = std::function<Result<std::unique_ptr<workload::RequestSource>>()>;

// Measures `points` sizes, evenly spaced by ratio from one block to all. With `wanted`, more sizes about the
// smallest that reaches it, until it is known to one in 200. Fails as the source fails, and where the
// workload has no block.
Result<Curve> MeasureCurve(const OpenWorkload& open, workload::SimPolicy policy, std::uint64_t points,
                           std::optional<double> wanted);

// A way to reach a hit rate: what the upper tier holds lies in the lower one too; without an upper one, all
// hits are read from the lower.
struct TierChoice {
  std::string upper;  // "": none
  std::string lower;
  std::uint64_t upper_blocks = 0;
  std::uint64_t lower_blocks = 0;
  double lower_bytes_per_s = 0;  // what it has to read in the busiest minute
  double usd_per_month = 0;
};

struct SizingInput {
  double wanted = 0;       // hit rate
  double block_bytes = 0;  // KV of one block of the trace
  double times = 1;        // requests, beside the trace's
  double months = 36;      // over which what is bought is paid off
  std::vector<Medium> media;
};

// Each medium alone that has a price and the bandwidth for the hits of the busiest minute, and each that has
// not the bandwidth below a faster one; the cheapest first. kInvalid where no size reaches the hit rate (says
// the most), where no medium has a price, or none the bandwidth.
Result<std::vector<TierChoice>> CheapestTiers(const Curve& curve, const SizingInput& input);

// A month's price of bytes on a medium at the higher end, or nothing where it has none.
std::optional<double> UsdPerMonth(const Medium& medium, double bytes, double months);

// The best choice as figures with their arithmetic.
Section SizingSection(const Curve& curve, const SizingInput& input, const TierChoice& choice);

}  // namespace cistern::planner
