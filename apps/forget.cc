// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "base/clock.h"
#include "base/units.h"
#include "commands.h"
#include "memory/arena_file.h"
#include "node/options.h"
#include "prompt.h"

namespace cistern {

int RunForget(int argc, const char* const* argv) {
  node::NodeOptions options;
  bool json = false;
  CommandLine line(
      "cistern forget",
      "Free the memory of a node that is gone. What it held is lost; a running node is left alone.",
      "  cistern forget\n  cistern forget --memory-dir /dev/shm/kv --tenant default");
  line.Text("--memory-dir", "DIR", "the node's memory_dir; default: /dev/shm/cistern-UID",
            &options.memory_dir);
  line.Text("--tenant", "NAME", "tenant; default: default", &options.tenant);
  line.Switch("--json", "one JSON object on stdout", &json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  // Of the directory and the tenant alone: whether this host would have memory for a node is no matter.
  options.memory_bytes = node::kMinMemoryBytes;
  if (Status status = node::ResolveNodeOptions(options); !status.ok())
    return Complain("cistern forget", status);
  Result<std::uint64_t> freed = memory::ForgetArena(options.memory_dir, options.tenant, SystemClock());
  if (!freed) return Complain("cistern forget", freed.error());
  if (json) {
    std::printf("{\"freed_bytes\":%llu}\n", static_cast<unsigned long long>(*freed));
  } else {
    std::printf("freed %s of %s\n", RoughSizeText(*freed).c_str(), options.memory_dir.c_str());
  }
  return kExitOk;
}

}  // namespace cistern
