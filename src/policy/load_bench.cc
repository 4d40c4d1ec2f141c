// SPDX-License-Identifier: Apache-2.0
// What one load-or-compute decision takes for 1,000 blocks: in a few runs, as prompts have them, and with
// every block on another source than its neighbour.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/random.h"
#include "policy/load.h"

namespace cistern::policy {
namespace {

constexpr int kDecisions = 2'000;

void Row(const char* name, std::uint32_t blocks_a_run, bool loads_behind) {
  Random random(1);
  std::vector<LoadRun> runs;
  for (std::uint32_t left = 1'000; left > 0; left -= runs.back().blocks)
    runs.push_back({std::min(left, blocks_a_run), static_cast<std::uint32_t>(random.Below(3))});
  const LoadSource sources[] = {{10, 0, 40}, {100, 0, 150}, {30'000, 0, 700}};
  Prefill prefill{.us_per_token = 20, .us_per_square = 2e-4, .tail_tokens = 64, .loads_behind = loads_behind};
  std::uint64_t work = 0;
  double sum = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kDecisions; ++i) {
    prefill.us_per_token = 20 + i % 16;
    const LoadPlan plan = PlanLoad(runs, sources, prefill);
    work += plan.work;
    sum += plan.first_token_us;
  }
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  std::printf("%-34s %8.2f us a decision, %6llu runs looked at (%g)\n", name, took.count() / kDecisions,
              static_cast<unsigned long long>(work / kDecisions), sum);
}

}  // namespace
}  // namespace cistern::policy

int main() {
  using cistern::policy::Row;
  Row("loads behind, 10 runs", 100, true);
  Row("loads behind, 100 runs", 10, true);
  Row("loads behind, 1,000 runs", 1, true);
  Row("loads first, 10 runs", 100, false);
  Row("loads first, 1,000 runs", 1, false);
}
