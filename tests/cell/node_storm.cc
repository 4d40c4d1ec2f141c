// SPDX-License-Identifier: Apache-2.0
// node_storm [--faults N] [--first S | --seed S] [--seconds T] [--json] [--trace]: worlds of the seeds from S
// on, until N faults were seen or T seconds have passed. Exits 1 where a promise is broken and names the
// seed.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "node_world.h"

namespace {

struct Arguments {
  unsigned long long faults = 2000, first = 1, seed = 0, seconds = 0;
  bool json = false, trace = false;
};

unsigned long long g_seed = 0;

// A failed assertion is a promise that was broken, too; it has said which.
void OnAbort(int) {
  char line[80];
  const int bytes = std::snprintf(line, sizeof(line), "FAILED: seed %llu: an assertion\n", g_seed);
  if (::write(2, line, static_cast<std::size_t>(bytes)) < 0) std::_Exit(2);
  std::_Exit(1);
}

bool Parse(int count, char** words, Arguments* arguments) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--json") {
      arguments->json = true;
    } else if (word == "--trace") {
      arguments->trace = true;
    } else {
      const std::size_t equals = word.find('=');
      const std::string_view name = word.substr(0, equals);
      const char* value = equals != word.npos ? words[i] + equals + 1 : i + 1 < count ? words[++i] : "";
      char* end = nullptr;
      const unsigned long long number = std::strtoull(value, &end, 10);
      if (*value == '\0' || *end != '\0') return false;
      if (name == "--faults") {
        arguments->faults = number;
      } else if (name == "--first") {
        arguments->first = number;
      } else if (name == "--seed") {
        arguments->seed = number;
      } else if (name == "--seconds") {
        arguments->seconds = number;
      } else {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

int main(int count, char** words) {
  Arguments arguments;
  if (!Parse(count, words, &arguments)) {
    std::fprintf(stderr,
                 "usage: node_storm [--faults N] [--first S | --seed S] [--seconds T] [--json] [--trace]\n");
    return 2;
  }
  std::signal(SIGABRT, OnAbort);
  const auto began = std::chrono::steady_clock::now();
  unsigned long long faults = 0, drops = 0, acknowledged = 0, hits = 0, peer_blocks = 0, worlds = 0;
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  for (unsigned long long seed = arguments.seed != 0 ? arguments.seed : arguments.first;; ++seed) {
    g_seed = seed;
    cistern::mesh::NodeWorld world(seed, arguments.trace);
    const std::string broken = world.Run();
    ++worlds;
    faults += world.faults;
    drops += world.drops;
    acknowledged += world.acknowledged;
    hits += world.hits;
    peer_blocks += world.peer_blocks;
    if (!broken.empty()) {
      std::fprintf(stderr, "FAILED: seed %llu: %s\nagain: node_storm --seed %llu\n", seed, broken.c_str(),
                   seed);
      return 1;
    }
    if (arguments.seed != 0 || faults >= arguments.faults) break;
    if (arguments.seconds != 0 && passed() >= static_cast<double>(arguments.seconds)) break;
  }
  const char* format =
      arguments.json ? "{\"worlds\":%llu,\"faults\":%llu,\"drops\":%llu,\"acknowledged\":%llu,\"hits\":%llu,"
                       "\"peer_blocks\":%llu,\"seconds\":%.1f}\n"
                     : "%llu worlds, %llu faults, %llu drops, %llu acknowledged, %llu blocks read, %llu of "
                       "others, 0 violations in %.1f s\n";
  std::printf(format, worlds, faults, drops, acknowledged, hits, peer_blocks, passed());
  return 0;
}
