// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "base/format.h"
#include "base/nearest.h"
#include "commands.h"
#include "prompt.h"

namespace cistern {
namespace {

constexpr std::string_view kName = "cistern admin";
constexpr std::string_view kSwitches[] = {"reads", "writes"};
constexpr std::string_view kStates[] = {"on", "off"};

Status OneOf(std::string_view what, const std::string& text, std::span<const std::string_view> known) {
  for (const std::string_view one : known) {
    if (one == text) return Status();
  }
  return Status(Code::kInvalid, UnknownName(what, text, known));
}

}  // namespace

int RunAdmin(int argc, const char* const* argv) {
  Prompt prompt;
  std::string which, state;
  CommandLine line(
      kName,
      "Switches reads or writes off and on again while engines run. With reads off everything is a miss,\n"
      "with writes off nothing new is kept; engines compute instead, and what is stored stays. It lasts "
      "until\n"
      "it is turned back or the node ends.",
      "  cistern admin reads off\n  cistern admin reads on\n"
      "  cistern admin writes off --namespace llama-70b");
  prompt.AddTo(line, false);
  line.Text("--namespace", "NAME",
            "this one alone, by its name or the fingerprint of its list; default: all, also those to come",
            &prompt.namespace_name);
  line.Argument("SWITCH", "reads or writes", &which);
  line.Argument("STATE", "on or off", &state);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  Status status = OneOf("switch", which, kSwitches);
  if (status.ok()) status = OneOf("state", state, kStates);
  if (!status.ok()) return Complain(kName, status);
  Result<Store> store = Store::Connect(prompt.connect);
  if (!store) return Complain(kName, store.error());
  const auto deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  const bool on = state == "on";
  const Result<std::uint32_t> turned = which == "reads"
                                           ? store->SwitchReads(prompt.namespace_name, on, deadline_us)
                                           : store->SwitchWrites(prompt.namespace_name, on, deadline_us);
  if (!turned) return Complain(kName, turned.error());
  if (prompt.json) {
    std::printf("{\"%s\":\"%s\",\"namespaces\":%u}\n", which.c_str(), state.c_str(), *turned);
  } else if (prompt.namespace_name.empty()) {
    std::printf("%s are %s for all namespaces (%u now)\n", which.c_str(), state.c_str(), *turned);
  } else {
    std::printf("%s are %s for %s\n", which.c_str(), state.c_str(), prompt.namespace_name.c_str());
  }
  return kExitOk;
}

}  // namespace cistern
