// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "commands.h"
#include "prompt.h"

namespace cistern {

int RunDrop(int argc, const char* const* argv) {
  Prompt prompt;
  std::vector<std::string> texts;
  bool all = false;
  CommandLine line("cistern drop",
                   "Remove blocks and all that descends from them, for good. Exits 1 where the node does not "
                   "know the namespace.",
                   "  cistern drop --namespace demo 00112233445566778899aabbccddeeff\n"
                   "  cistern drop --namespace demo --all");
  prompt.AddTo(line, true);
  line.Switch("--all", "everything in the namespace", &all);
  line.Arguments("KEY", "keys of the blocks, in hex", &texts, false);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (all == !texts.empty()) {
    return Complain("cistern drop", Status(Code::kInvalid, "give either keys or --all; see --help"));
  }
  Result<std::vector<BlockKey>> keys = KeysFromHex(texts);
  if (!keys) return Complain("cistern drop", keys.error());
  Result<Attachment> at = AttachByName(prompt, IfNew::kRefuse);
  if (!at) return Complain("cistern drop", at.error());
  auto deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  Result<std::uint64_t> dropped = all ? at->store.DropNamespace(at->ns, deadline_us).Wait()
                                      : at->store.Drop(at->ns, *keys, deadline_us).Wait();
  if (!dropped) return Complain("cistern drop", dropped.error());
  std::printf(prompt.json ? "{\"dropped\":%llu}\n" : "%llu blocks dropped\n",
              static_cast<unsigned long long>(*dropped));
  return kExitOk;
}

}  // namespace cistern
