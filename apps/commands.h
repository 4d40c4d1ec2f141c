// SPDX-License-Identifier: Apache-2.0
// The subcommands of cistern. Each takes its own argv (argv[0] is the last word of its name), prints what was
// asked on stdout, messages on stderr, and returns the exit code.
#pragma once

#include <span>
#include <string_view>

namespace cistern {

int RunStatus(int argc, const char* const* argv);
int RunPut(int argc, const char* const* argv);
int RunGet(int argc, const char* const* argv);
int RunMatch(int argc, const char* const* argv);
int RunDrop(int argc, const char* const* argv);
int RunReplay(int argc, const char* const* argv);
int RunSim(int argc, const char* const* argv);
int RunSimCluster(int argc, const char* const* argv);
int RunBench(int argc, const char* const* argv);
int RunBenchServe(int argc, const char* const* argv);
int RunDevice(int argc, const char* const* argv);
int RunPlan(int argc, const char* const* argv);
int RunAdmin(int argc, const char* const* argv);
int RunDoctor(int argc, const char* const* argv);
int RunNamespaces(int argc, const char* const* argv);
int RunConfig(int argc, const char* const* argv);
int RunTop(int argc, const char* const* argv);
int RunForget(int argc, const char* const* argv);
int RunCell(int argc, const char* const* argv);
int RunCellWho(int argc, const char* const* argv);
int RunCellExplain(int argc, const char* const* argv);
int RunCellNewHistory(int argc, const char* const* argv);

struct Command {
  std::string_view name;  // one word, or two with a space between
  std::string_view about;
  int (*run)(int argc, const char* const* argv);
};

inline constexpr Command kCommands[] = {
    {"status", "what the node of this host holds and does", RunStatus},
    {"top", "a node as it works: tiers, rates with their curves, namespaces", RunTop},
    {"doctor", "what on this host keeps a node from starting or makes it slow", RunDoctor},
    {"namespaces", "what each namespace has and how much it is used; what two differ in", RunNamespaces},
    {"config", "the settings, where each comes from and what a reload changes", RunConfig},
    {"put", "store a file as one block", RunPut},
    {"get", "fetch a block into a file", RunGet},
    {"match", "how much of a chain of keys is there", RunMatch},
    {"drop", "remove blocks and all that descends from them", RunDrop},
    {"replay", "run a trace with real bytes through a real node and compare every byte", RunReplay},
    {"sim", "run a trace through the eviction policy alone", RunSim},
    {"sim cluster", "run a trace through a simulated fleet of nodes", RunSimCluster},
    {"plan", "what a store of KV would buy a deployment, with the arithmetic shown", RunPlan},
    {"bench", "measure the node against memcpy and futex in the same run", RunBench},
    {"bench serve", "measure an OpenAI-compatible endpoint", RunBenchServe},
    {"device", "the devices of the node's flash: list, take out of service, bring back", RunDevice},
    {"cell", "the cell of the node: members, how far each has applied its drops", RunCell},
    {"cell who", "which member of the cell has how much of a prompt", RunCellWho},
    {"cell explain", "why a block is not found at the node, or was refused there", RunCellExplain},
    {"cell new-history", "begin anew after a restore of etcd that no node could notice", RunCellNewHistory},
    {"admin", "drain a node, resize its memory, drop a namespace, switch reads or writes off and on",
     RunAdmin},
    {"forget", "free the memory of a node that is gone", RunForget},
};

}  // namespace cistern
