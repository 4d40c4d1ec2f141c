// SPDX-License-Identifier: Apache-2.0
// cistern: the command line of a node. Subcommands are in files of their own.
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "base/nearest.h"
#include "command_line.h"
#include "commands.h"

namespace cistern {
namespace {

void PrintHelp(std::FILE* out) {
  std::fprintf(out,
               "Cistern: a store for the KV cache of LLM inference\n\nUsage: cistern COMMAND [options]\n\n");
  for (const Command& command : kCommands) {
    std::fprintf(out, "  %-16s %s\n", command.name.data(), command.about.data());
  }
  std::fprintf(out,
               "\nEach has --help and --json. --version says of which release it is. The node itself is "
               "cisternd.\n\nExample:\n"
               "  cisternd --memory 4GiB &\n  cistern status\n");
}

// For deploy/manuals.py, as CommandLine has it of one command.
void PrintCommands() {
  std::string all;
  for (const Command& command : kCommands) {
    all += (all.empty() ? "" : ",") +
           Text("{\"name\":", Quoted(command.name), ",\"about\":", Quoted(command.about), "}");
  }
  std::printf("{\"program\":\"cistern\",\"commands\":[%s]}\n", all.c_str());
}

int Run(int argc, const char* const* argv) {
  std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "help" && argc > 2)
    return Complain("cistern", Status(Code::kInvalid, "help is of all commands; put --help behind the one"));
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp(stdout);
    return kExitOk;
  }
  if (name == "--version") {
    std::printf("%s\n", VersionLine().c_str());
    return kExitOk;
  }
  if (name == "--describe") {
    PrintCommands();
    return kExitOk;
  }
  if (name.empty()) {
    PrintHelp(stderr);
    return kExitUsage;
  }
  const std::string two = argc > 2 ? Text(name, " ", argv[2]) : "";
  for (const Command& command : kCommands) {
    if (command.name == two) return command.run(argc - 2, argv + 2);
  }
  std::vector<std::string_view> known;
  for (const Command& command : kCommands) {
    if (command.name == name) return command.run(argc - 1, argv + 1);
    known.push_back(command.name);
  }
  return Complain("cistern", Status(Code::kInvalid, UnknownName("command", name, known)));
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::RunProgram("cistern", cistern::Run, argc, argv); }
