// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string_view>

#include "base/format.h"
#include "cistern/options.h"
#include "commands.h"
#include "prompt.h"
#include "sim_policy.h"
#include "workload/simulator.h"
#include "workload/tier_simulator.h"

namespace cistern {
namespace {

// Of each request, where it is told; else none.
Result<std::vector<PromptHints>> Hints(const std::string& trace, bool told, bool when) {
  if (!told) return std::vector<PromptHints>();
  Result<std::unique_ptr<workload::RequestSource>> requests = workload::OpenRequests(trace);
  if (!requests) return Error(requests.error());
  return workload::Foretell(**requests, when);
}

std::string Percent(double rate) {
  char text[16];
  std::snprintf(text, sizeof(text), "%.2f %%", 100 * rate);
  return text;
}

// With flash below memory: hits of both.
struct TierRun {
  std::string trace;
  workload::SimPolicy policy;
  std::uint64_t blocks;
  Promotion promote;
  workload::SimAdmission admit;
  std::uint64_t lower_blocks, lower_budget;
  bool told, told_when, ahead, json;
};

int RunTiers(const TierRun& run) {
  const auto& [trace, policy, blocks, promote, admit, lower_blocks, lower_budget, told, told_when, ahead,
               json] = run;
  if (policy != workload::SimPolicy::kReuse && policy != workload::SimPolicy::kLru) {
    return Complain("cistern sim", Status(Code::kInvalid, Text("--flash has no policy ", ToString(policy),
                                                               ": give --policy reuse or lru")));
  }
  if (promote == Promotion::kSecondHit) {
    return Complain("cistern sim",
                    Status(Code::kInvalid,
                           "--flash-promote second-hit hangs on when a device has written a block, which is "
                           "not simulated: give worth or all, or take `cistern replay`"));
  }
  Result<std::vector<PromptHints>> hints = Hints(trace, told, told_when);
  if (!hints) return Complain("cistern sim", hints.error());
  Result<std::unique_ptr<workload::RequestSource>> requests = workload::OpenRequests(trace);
  if (!requests) return Complain("cistern sim", requests.error());
  const EvictionPolicy evicts =
      policy == workload::SimPolicy::kLru ? EvictionPolicy::kLru : EvictionPolicy::kReuse;
  const Result<workload::TierSimResult> result = workload::SimulateTiers(**requests,
                                                                         {.policy = evicts,
                                                                          .promote = promote,
                                                                          .blocks = blocks,
                                                                          .ahead = ahead,
                                                                          .admit = admit,
                                                                          .lower_blocks = lower_blocks,
                                                                          .lower_budget = lower_budget},
                                                                         *hints);
  if (!result) return Complain("cistern sim", result.error());
  const auto rate = [&](std::uint64_t hits) {
    return result->accesses == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(result->accesses);
  };
  const std::uint64_t hits = result->memory_hits + result->lower_hits;
  const std::string text =
      json ? Text("{\"policy\":\"", ToString(policy), "\",\"blocks\":", blocks, ",\"promote\":\"",
                  ToString(promote), "\",\"requests\":", result->requests, ",\"accesses\":", result->accesses,
                  ",\"hits\":", hits, ",\"hit_rate\":", rate(hits),
                  ",\"hits_by_tier\":{\"memory\":", result->memory_hits, ",\"flash\":", result->lower_hits,
                  "},\"memory_hit_rate\":", rate(result->memory_hits), ",\"passing\":", result->passing,
                  ",\"ahead\":", result->ahead, ",\"ahead_used\":", result->ahead_used, ",\"admit\":\"",
                  ToString(admit), "\",\"flash_blocks\":", lower_blocks, ",\"written\":", result->written,
                  ",\"moved\":", result->moved, "}\n")
           : Text("policy ", ToString(policy), ", ", blocks, " blocks of memory, promote ", ToString(promote),
                  ": of ", result->accesses, " accesses ", result->memory_hits, " hit in memory (",
                  Percent(rate(result->memory_hits)), "), ", result->lower_hits, " on flash, of which ",
                  result->passing, " passed; ", result->ahead, " were fetched ahead, of which ",
                  result->ahead_used, " were then hit\nflash of ",
                  lower_blocks == 0 ? std::string("any number of") : Text(lower_blocks), " blocks, admit ",
                  ToString(admit), ": ", result->written, " blocks were written, ", result->moved,
                  " again to keep them; ", hits, " hits in all (", Percent(rate(hits)), ")\n");
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

std::string FarText(const workload::SimResult& result, const workload::SimFar& far, bool json) {
  if (far.blocks == 0) return {};
  return json ? Text(",\"far_hits\":", result.far_hits, ",\"moved_far\":", result.moved_far,
                     ",\"moved_near\":", result.moved_near)
              : Text(", ", result.far_hits, " of them in far memory; ", result.moved_far,
                     " blocks moved there, ", result.moved_near, " back");
}

}  // namespace

int RunSim(int argc, const char* const* argv) {
  std::string trace;
  workload::SimPolicy policy = workload::SimPolicy::kReuse;
  std::uint64_t blocks = 0;
  bool told = false, told_when = false, flash = false, ahead = false;
  workload::SimAdmission admit = workload::TierSimOptions().admit;
  std::uint64_t lower_blocks = 0, lower_budget = 0;
  workload::SimFar far;
  bool anywhere = false;
  Promotion promote = OpenOptions().flash_promote;
  bool json = false;
  CommandLine line(
      "cistern sim",
      "Run a trace through the eviction policy alone: decisions, no bytes. A hit is a block of the\n"
      "longest resident run from block 0. `cistern sim cluster` simulates a fleet.",
      "  cistern sim conversation.jsonl --blocks 10000 --policy reuse --json\n"
      "  cistern sim generated:sessions=200,turns=8,seed=1 --blocks 1000");
  line.Argument("TRACE", "--trace", "TRACE", "a trace of JSON lines, or generated:KEY=VALUE,...", &trace);
  line.Count("--blocks", "blocks that fit (required)", &blocks, 1, 1u << 30);
  SimPolicyFlag(line, "eviction policy", &policy);
  line.Switch("--told", "with reuse: each request says whether a later prompt extends it, as it turns out",
              &told);
  line.Switch("--told-when", "and in how long, where one does", &told_when);
  line.Switch("--flash", "flash below memory: hits of both", &flash);
  line.Count("--flash-blocks", "with --flash, blocks that fit there; default: all", &lower_blocks, 64,
             1u << 30);
  line.Flag("--flash-admit", "POLICY",
            Text("with --flash, which blocks are written there: ", workload::SimAdmissions(),
                 "; default: ", ToString(admit)),
            [&admit](std::string_view text) {
              Result<workload::SimAdmission> value = workload::ParseSimAdmission(text);
              if (value) admit = *value;
              return value ? Status() : value.error();
            });
  line.Count("--flash-budget", "with --flash, blocks an hour that may be written there; default: all",
             &lower_budget, 1, 1u << 30);
  line.Flag(
      "--flash-promote", "POLICY",
      "with --flash, which blocks stay in memory once they were read from there: worth, all; default: worth",
      [&promote](std::string_view text) {
        Result<Promotion> value = ParsePromotion(text);
        if (value) promote = *value;
        return value ? Status() : value.error();
      });
  line.Switch("--flash-ahead",
              "with --flash and --told-when: what lies on flash is fetched shortly before the next turn",
              &ahead);
  line.Count("--far", "of the blocks that fit, those in memory of nodes without processors, with reuse",
             &far.blocks, 0, 1u << 30);
  line.Switch("--far-anywhere", "with --far: blocks lie where there is room, as without the policy",
              &anywhere);
  line.Switch("--json", "one JSON object on stdout", &json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (blocks == 0) {
    return Complain("cistern sim", Status(Code::kInvalid, "--blocks is missing; say how many blocks fit"));
  }
  told = told || told_when;
  far.placed = !anywhere;
  if (far.blocks >= blocks) {
    return Complain("cistern sim",
                    Status(Code::kInvalid, Text("--far ", far.blocks, ": of the ", blocks,
                                                " blocks of --blocks some lie near: give fewer")));
  }
  if (far.blocks > 0 && (flash || policy != workload::SimPolicy::kReuse)) {
    return Complain("cistern sim",
                    Status(Code::kInvalid, "--far is simulated with policy reuse and without --flash"));
  }
  if (anywhere && far.blocks == 0) {
    return Complain("cistern sim",
                    Status(Code::kInvalid, "--far-anywhere says where blocks of --far lie: give it too"));
  }
  if (!flash && (lower_blocks > 0 || lower_budget > 0 || admit != workload::TierSimOptions().admit ||
                 promote != OpenOptions().flash_promote)) {
    return Complain("cistern sim",
                    Status(Code::kInvalid,
                           "--flash-blocks, --flash-admit, --flash-promote and --flash-budget say what flash "
                           "is like: give --flash with them"));
  }
  if (ahead && !(flash && told_when)) {
    return Complain("cistern sim", Status(Code::kInvalid,
                                          "--flash-ahead fetches from flash, before turns that are told of: "
                                          "give --flash and --told-when with it"));
  }
  if (told && policy != workload::SimPolicy::kReuse) {
    return Complain("cistern sim", Status(Code::kInvalid, Text("--told is of no use to policy ",
                                                               ToString(policy), ": give --policy reuse")));
  }
  if (flash)
    return RunTiers(
        {trace, policy, blocks, promote, admit, lower_blocks, lower_budget, told, told_when, ahead, json});
  Result<std::vector<PromptHints>> hints = Hints(trace, told, told_when);
  if (!hints) return Complain("cistern sim", hints.error());
  Result<std::unique_ptr<workload::RequestSource>> requests = workload::OpenRequests(trace);
  if (!requests) return Complain("cistern sim", requests.error());
  Result<workload::SimResult> result = workload::Simulate(**requests, policy, blocks, *hints, far);
  if (!result) return Complain("cistern sim", result.error());
  std::string text = json ? Text("{\"policy\":\"", ToString(result->policy), "\",\"blocks\":", result->blocks,
                                 ",\"requests\":", result->requests, ",\"accesses\":", result->accesses,
                                 ",\"hits\":", result->hits, ",\"hit_rate\":", result->hit_rate(),
                                 FarText(*result, far, true), "}\n")
                          : Text("policy ", ToString(result->policy), ", ", result->blocks,
                                 " blocks: ", result->hits, " of ", result->accesses, " accesses hit (",
                                 Percent(result->hit_rate()), ")", FarText(*result, far, false), "\n");
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

}  // namespace cistern
