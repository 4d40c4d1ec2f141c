// SPDX-License-Identifier: Apache-2.0
// A storm's program: PROGRAM [--faults N] [--first S | --seed S] [--seconds T] [--json] [--trace]: worlds of
// the seeds from S on, until N faults were seen or T seconds have passed. Exits 1 where a promise is broken
// and names the seed, and where a kind of fault was seen too seldom.
#pragma once

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "../fault_share.h"

namespace cistern {

struct StormArguments {
  unsigned long long faults = 2000, first = 1, seed = 0, seconds = 0;
  bool json = false, trace = false;
};

inline unsigned long long g_seed = 0;

// A failed assertion is a promise that was broken, too; it has said which.
inline void OnAbort(int) {
  char line[80];
  const int bytes = std::snprintf(line, sizeof(line), "FAILED: seed %llu: an assertion\n", g_seed);
  if (::write(2, line, static_cast<std::size_t>(bytes)) < 0) std::_Exit(2);
  std::_Exit(1);
}

inline bool Parse(int count, char** words, StormArguments* arguments) {
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

// What a storm counts beside faults and drops.
template <class World>
struct StormCount {
  const char* name;  // in JSON
  const char* text;  // behind the number
  std::uint64_t World::* count;
};

// NAME:NUMBER of each, names between these.
inline std::string KindsText(const std::map<std::string, std::uint64_t, std::less<>>& kinds,
                             std::string_view quote) {
  std::string text;
  for (const auto& [kind, times] : kinds) {
    if (!text.empty()) text += quote.empty() ? ", " : ",";
    text.append(quote).append(kind).append(quote).append(quote.empty() ? ": " : ":");
    text += std::to_string(times);
  }
  return text;
}

// Of a world's kinds each has `World::kShare` of all faults, less what may lack.
template <class World>
bool EveryKindHasItsShare(const std::map<std::string, std::uint64_t, std::less<>>& kinds,
                          std::uint64_t faults) {
  if (faults < 10'000) return true;
  const double least = LeastSeen(World::kShare, faults);
  bool good = true;
  for (const std::string_view kind : World::kKinds) {
    const auto seen = kinds.find(kind);
    const std::uint64_t times = seen == kinds.end() ? 0 : seen->second;
    if (static_cast<double>(times) >= least) continue;
    std::fprintf(stderr, "FAILED: %s has been %llu of %llu faults, and has to be %.1f %%\n",
                 std::string(kind).c_str(), static_cast<unsigned long long>(times),
                 static_cast<unsigned long long>(faults), 100 * World::kShare);
    good = false;
  }
  return good;
}

template <class World>
int RunStorm(int count, char** words, const char* program, const StormCount<World> (&counts)[2]) {
  StormArguments arguments;
  if (!Parse(count, words, &arguments)) {
    std::fprintf(stderr, "usage: %s [--faults N] [--first S | --seed S] [--seconds T] [--json] [--trace]\n",
                 program);
    return 2;
  }
  std::signal(SIGABRT, OnAbort);
  const auto began = std::chrono::steady_clock::now();
  std::map<std::string, std::uint64_t, std::less<>> kinds;  // of faults, where a world tells them apart
  unsigned long long faults = 0, drops = 0, acknowledged = 0, first = 0, second = 0, worlds = 0;
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  for (unsigned long long seed = arguments.seed != 0 ? arguments.seed : arguments.first;; ++seed) {
    g_seed = seed;
    World world(seed, arguments.trace);
    const std::string broken = world.Run();
    ++worlds;
    faults += world.faults;
    if constexpr (requires { world.kinds; }) {
      for (const auto& [kind, times] : world.kinds) kinds[kind] += times;
    }
    drops += world.drops;
    acknowledged += world.acknowledged;
    first += world.*counts[0].count;
    second += world.*counts[1].count;
    if (!broken.empty()) {
      std::fprintf(stderr, "FAILED: seed %llu: %s\nagain: %s --seed %llu\n", seed, broken.c_str(), program,
                   seed);
      return 1;
    }
    if (arguments.seed != 0 || faults >= arguments.faults) break;
    if (arguments.seconds != 0 && passed() >= static_cast<double>(arguments.seconds)) break;
  }
  if (arguments.json) {
    std::printf(
        "{\"worlds\":%llu,\"faults\":%llu,\"drops\":%llu,\"acknowledged\":%llu,\"%s\":%llu,\"%s\":%llu,"
        "\"kinds\":{%s},\"seconds\":%.1f}\n",
        worlds, faults, drops, acknowledged, counts[0].name, first, counts[1].name, second,
        KindsText(kinds, "\"").c_str(), passed());
  } else {
    std::printf(
        "%llu worlds, %llu faults, %llu drops, %llu acknowledged, %llu %s, %llu %s, 0 violations in "
        "%.1f s\n",
        worlds, faults, drops, acknowledged, first, counts[0].text, second, counts[1].text, passed());
    if (!kinds.empty()) std::printf("%s\n", KindsText(kinds, "").c_str());
  }
  if constexpr (requires { World::kKinds; }) return EveryKindHasItsShare<World>(kinds, faults) ? 0 : 1;
  return 0;
}

}  // namespace cistern
