// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "base/format.h"
#include "commands.h"
#include "prompt.h"

namespace cistern {

int RunMatch(int argc, const char* const* argv) {
  Prompt prompt;
  std::vector<std::string> texts;
  CommandLine line(
      "cistern match",
      "How many blocks of a chain, from its first on, can be read now. Exits 1 where the node does not "
      "know\nthe namespace.",
      "  cistern match --namespace demo 00112233445566778899aabbccddeeff 0112233445566778899aabbccddeeff0");
  prompt.AddTo(line, true);
  line.Arguments("KEY", "the chain's keys from block 0 on", &texts);
  if (auto exit = line.Parse(argc, argv)) return *exit;

  Result<std::vector<BlockKey>> keys = KeysFromHex(texts);
  if (!keys) return Complain("cistern match", keys.error());
  Result<Attachment> at = AttachByName(prompt, IfNew::kRefuse);
  if (!at) return Complain("cistern match", at.error());
  MatchOptions options;
  options.deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  Result<MatchResult> match = at->store.Match(at->ns, *keys, options).Wait();
  if (!match) return Complain("cistern match", match.error());
  std::string runs, words;
  for (const MatchRun& run : match->runs) {
    runs += Text(runs.empty() ? "" : ",", "{\"blocks\":", run.blocks, ",\"where\":\"", ToString(run.where),
                 "\",\"ready_in_us\":", run.ready_in_us, "}");
    words += Text(words.empty() ? ": " : ", ", run.blocks, " ", ToString(run.where));
  }
  const std::string why = match->blocks == 0 ? WhyReadsAreOff(*at, options.deadline_us) : std::string();
  if (prompt.json) {
    std::printf("{\"blocks\":%u,\"of\":%zu,\"runs\":[%s],\"why\":%s}\n", match->blocks, keys->size(),
                runs.c_str(), why.empty() ? "null" : Quoted(why).c_str());
  } else if (!why.empty()) {
    std::printf("%u of %zu blocks: %s\n", match->blocks, keys->size(), why.c_str());
  } else {
    std::printf("%u of %zu blocks%s\n", match->blocks, keys->size(), words.c_str());
  }
  return kExitOk;
}

}  // namespace cistern
