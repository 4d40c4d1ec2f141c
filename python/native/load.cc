// SPDX-License-Identifier: Apache-2.0
#include "load.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "errors.h"
#include "policy/load.h"

namespace cistern::python {
namespace {

namespace nb = nanobind;

using Runs = std::vector<std::tuple<std::uint32_t, std::uint32_t>>;
using Sources = std::vector<std::tuple<double, double, double>>;
using PrefillTuple = std::tuple<double, double, std::uint32_t, std::uint64_t, double, bool>;

nb::tuple PlanLoad(const Runs& runs_in, const Sources& sources_in, const PrefillTuple& prefill_in) {
  std::vector<policy::LoadRun> runs;
  for (const auto& [blocks, source] : runs_in) runs.push_back({blocks, source});
  std::vector<policy::LoadSource> sources;
  for (const auto& [latency, queued, each] : sources_in) sources.push_back({latency, queued, each});
  const auto& [token, square, block, tail, overhead, behind] = prefill_in;
  const policy::Prefill prefill{token, square, block, tail, overhead, behind};
  if (Status status = policy::CheckLoad(runs, sources, prefill); !status.ok()) throw StatusError(status);
  const policy::LoadPlan plan = policy::PlanLoad(runs, sources, prefill);
  nb::list loads;
  for (const policy::LoadStretch& one : plan.loads)
    loads.append(nb::make_tuple(one.first, one.blocks, one.source, one.from_back));
  return nb::make_tuple(loads, plan.first_token_us, plan.compute_us, plan.worth_us);
}

}  // namespace

void BindLoad(nb::module_& m) {
  m.def("plan_load", &PlanLoad, nb::arg("runs"), nb::arg("sources"), nb::arg("prefill"));
}

}  // namespace cistern::python
