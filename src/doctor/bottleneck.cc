// SPDX-License-Identifier: Apache-2.0
#include "doctor/bottleneck.h"

#include <algorithm>
#include <array>

#include "base/format.h"
#include "base/units.h"
#include "doctor/status_fields.h"

namespace cistern::doctor {
namespace {

namespace json = boost::json;

constexpr std::uint64_t kWorthMendingPercent = 5;   // of the blocks that were asked for
constexpr std::uint64_t kCoreLateUs = 100'000;      // as the alarm CisternCoreLate has it
constexpr std::uint64_t kTicksToJudgeBy = 20 * 60;  // a minute's

struct Lack {
  std::string_view of;
  std::string_view counters[2];  // of blocks that were not had for it
  std::string_view mend;         // empty: nothing is to be mended
};

constexpr Lack kLacks[] = {
    {"compute", {"/misses/unknown"}, ""},
    {"memory capacity",
     {"/misses/evicted"},
     "blocks went before they were asked for again: more `memory`, or flash below it; `cistern plan` and "
     "`cistern sim` say what more buys, `cistern namespaces` who takes it"},
    {"bandwidth",
     {"/misses/too_late"},
     "blocks are on flash, and reading them is slower than computing: `cistern device list` for a slow "
     "device, "
     "a second one, or more `flash_read_ahead`"},
    {"network",
     {"/cell/peer_late_blocks"},
     "blocks of other nodes did not come in time: `cistern cell`, and the links and `cell_bandwidth` of "
     "those "
     "that have them"},
    {"scheduling",
     {"/misses/pending", "/misses/lease_lost"},
     "blocks were asked for while they were being written, or went between match and hold: let requests of "
     "one prefix follow each other, and engines hold what they match"},
};

std::string PercentText(std::uint64_t part, std::uint64_t whole) {
  const std::uint64_t percent = part * 100 / whole;
  return percent == 0 ? "under 1 %" : Text(percent, " %");
}

bool WorthMending(std::uint64_t blocks, std::uint64_t asked) {
  return blocks * 100 >= asked * kWorthMendingPercent;
}

void AddOrder(const json::object& status, std::uint64_t asked, Findings& findings) {
  std::array<std::pair<std::uint64_t, const Lack*>, std::size(kLacks)> order;
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = {0, &kLacks[i]};
    for (const std::string_view counter : kLacks[i].counters) {
      if (!counter.empty()) order[i].first += NumberAt(status, counter);
    }
  }
  // As in kLacks where they are equal.
  std::ranges::sort(order, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  Finding finding{.name = "bottleneck", .limit = "nothing but compute, which fills an empty cache"};
  for (const auto& [blocks, lack] : order) {
    if (blocks == 0) continue;
    finding.value += Text(finding.value.empty() ? "" : ", ", lack->of, " ", PercentText(blocks, asked));
    if (!finding.mend.empty() || lack->mend.empty() || !WorthMending(blocks, asked)) continue;
    finding.verdict = Verdict::kWarning;
    finding.mend = Text(lack->of, ": ", lack->mend);
  }
  finding.value = finding.value.empty()
                      ? Text("none: ", asked, " blocks were asked for and had")
                      : Text(finding.value, " of ", asked, " blocks asked for were not had for it");
  findings.push_back(std::move(finding));
}

}  // namespace

void AddBottlenecks(const json::object& status, Findings& findings) {
  const std::uint64_t asked = NumberAt(status, "/reads/asked_blocks");
  if (asked > 0) AddOrder(status, asked, findings);
  const std::uint64_t elsewhere = NumberAt(status, "/misses/other_namespace");
  if (elsewhere > 0 && WorthMending(elsewhere, asked)) {
    findings.push_back(
        {.name = "sharing",
         .verdict = Verdict::kWarning,
         .value = Text(elsewhere, " blocks that were asked for are in another namespace of the same model"),
         .limit = "0 where its engines are to share",
         .mend = "`cistern namespaces`, and `cistern namespaces diff A B`: what differs there has to be the "
                 "same"});
  }
  const std::uint64_t late_us = NumberAt(status, "/waits/tick/p99_us");
  if (late_us > kCoreLateUs && NumberAt(status, "/waits/tick/count") >= kTicksToJudgeBy) {
    findings.push_back({.name = "core",
                        .verdict = Verdict::kWarning,
                        .value = Text("comes ", DurationText(late_us), " late once in a hundred times"),
                        .limit = DurationText(kCoreLateUs),
                        .mend = "calls wait for it: give the node's cgroup CPU, and see what else the host "
                                "runs and whether it swaps"});
  }
  const std::uint64_t saved_us = NumberAt(status, "/engines/saved_us");
  const std::uint64_t spent_us = NumberAt(status, "/engines/spent_us");
  if (spent_us > saved_us) {
    findings.push_back(
        {.name = "worth",
         .verdict = Verdict::kWarning,
         .value = Text("engines waited ", DurationText(spent_us), " for what saved them ",
                       DurationText(saved_us), " of prefill"),
         .limit = "less waiting than it saves",
         .mend = "raise the engines' `min_load_tokens`, or make flash faster; `cistern admin reads "
                 "off` takes the cache out of the way at once"});
  }
}

}  // namespace cistern::doctor
