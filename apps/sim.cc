// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string_view>

#include "base/format.h"
#include "commands.h"
#include "prompt.h"
#include "sim_policy.h"
#include "workload/simulator.h"

namespace cistern {

int RunSim(int argc, const char* const* argv) {
  std::string trace;
  workload::SimPolicy policy = workload::SimPolicy::kReuse;
  std::uint64_t blocks = 0;
  bool told = false, told_when = false;
  bool json = false;
  CommandLine line(
      "cistern sim",
      "Run a trace through the eviction policy alone: decisions, no bytes. A hit is a block of the\n"
      "longest resident run from block 0. `cistern sim cluster` simulates a fleet.",
      "  cistern sim conversation.jsonl --blocks 10000 --policy reuse --json\n"
      "  cistern sim generated:sessions=200,turns=8,seed=1 --blocks 1000");
  line.Argument("TRACE", "a trace of JSON lines, or generated:KEY=VALUE,...", &trace);
  line.Count("--blocks", "blocks that fit (required)", &blocks, 1, 1u << 30);
  SimPolicyFlag(line, "eviction policy", &policy);
  line.Switch("--told", "with reuse: each request says whether a later prompt extends it, as it turns out",
              &told);
  line.Switch("--told-when", "and in how long, where one does", &told_when);
  line.Switch("--json", "one JSON object on stdout", &json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (blocks == 0) {
    return Complain("cistern sim", Status(Code::kInvalid, "--blocks is missing; say how many blocks fit"));
  }
  Result<std::unique_ptr<workload::RequestSource>> requests = workload::OpenRequests(trace);
  if (!requests) return Complain("cistern sim", requests.error());
  told = told || told_when;
  if (told && policy != workload::SimPolicy::kReuse) {
    return Complain("cistern sim", Status(Code::kInvalid, Text("--told is of no use to policy ",
                                                               ToString(policy), ": give --policy reuse")));
  }
  std::vector<PromptHints> hints;
  if (told) {
    Result<std::vector<PromptHints>> found = workload::Foretell(**requests, told_when);
    if (found) requests = workload::OpenRequests(trace);
    if (!found || !requests) return Complain("cistern sim", found ? requests.error() : found.error());
    hints = *std::move(found);
  }
  Result<workload::SimResult> result = workload::Simulate(**requests, policy, blocks, hints);
  if (!result) return Complain("cistern sim", result.error());
  std::string text =
      json ? Text("{\"policy\":\"", ToString(result->policy), "\",\"blocks\":", result->blocks,
                  ",\"requests\":", result->requests, ",\"accesses\":", result->accesses,
                  ",\"hits\":", result->hits, ",\"hit_rate\":", result->hit_rate(), "}\n")
           : Text("policy ", ToString(result->policy), ", ", result->blocks, " blocks: ", result->hits,
                  " of ", result->accesses, " accesses hit (", 100 * result->hit_rate(), " %)\n");
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

}  // namespace cistern
