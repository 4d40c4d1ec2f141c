// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "commands.h"
#include "namespace_list.h"
#include "prompt.h"

namespace cistern {
namespace {

constexpr std::string_view kName = "cistern admin";
constexpr std::string_view kSubjects[] = {"reads", "writes", "memory", "drop"};
constexpr std::string_view kStates[] = {"on", "off"};

Status OneOf(std::string_view what, const std::string& text, std::span<const std::string_view> known) {
  for (const std::string_view one : known) {
    if (one == text) return Status();
  }
  return Status(Code::kInvalid, UnknownName(what, text, known));
}

int Switch(const Prompt& prompt, Store& store, const std::string& which, const std::string& state) {
  const auto deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  const bool on = state == "on";
  const Result<std::uint32_t> turned = which == "reads"
                                           ? store.SwitchReads(prompt.namespace_name, on, deadline_us)
                                           : store.SwitchWrites(prompt.namespace_name, on, deadline_us);
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

int Resize(const Prompt& prompt, Store& store, std::uint64_t bytes) {
  const Result<std::uint64_t> slots =
      store.ResizeMemory(bytes, static_cast<std::int64_t>(prompt.deadline_us));
  if (!slots) return Complain(kName, slots.error());
  const auto number = static_cast<unsigned long long>(*slots);
  if (prompt.json) {
    std::printf("{\"memory\":%llu}\n", number);
  } else {
    std::printf("memory is on its way to %s of slots\n", RoughSizeText(*slots).c_str());
  }
  return kExitOk;
}

// Of a namespace as `cistern namespaces` knows it.
int DropNamespace(const Prompt& prompt, Store& store, const std::string& named) {
  const auto deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  const Result<std::string> text = store.NamespacesJson(deadline_us);
  if (!text) return Complain(kName, text.error());
  const Result<std::vector<ListedNamespace>> all = ParseNamespaces(*text);
  if (!all) return Complain(kName, all.error());
  const Result<const ListedNamespace*> found = FindNamespace(*all, named);
  if (!found) return Complain(kName, found.error());
  const Result<std::uint64_t> blocks = store.DropNamed((*found)->fingerprint, deadline_us);
  if (!blocks) return Complain(kName, blocks.error());
  std::printf(prompt.json ? "{\"dropped\":%llu}\n" : "%llu blocks dropped\n",
              static_cast<unsigned long long>(*blocks));
  return kExitOk;
}

}  // namespace

int RunAdmin(int argc, const char* const* argv) {
  Prompt prompt;
  std::string subject, value;
  CommandLine line(
      kName,
      "Switches reads or writes off and on again while engines run, or changes the size of memory. With "
      "reads\n"
      "off everything is a miss, with writes off nothing new is kept; engines compute instead, and what is\n"
      "stored stays. It lasts until it is turned back or the node ends. Memory that shrinks keeps the "
      "warmest\n"
      "blocks; `cistern status` says how far it is, and the next start or reload takes what is configured.",
      "  cistern admin reads off\n  cistern admin reads on\n"
      "  cistern admin writes off --namespace llama-70b\n  cistern admin memory 128GiB\n"
      "  cistern admin drop model=llama-70b");
  prompt.AddTo(line, false);
  line.Text("--namespace", "NAME",
            "this one alone, by its name or the fingerprint of its list; default: all, also those to come",
            &prompt.namespace_name);
  line.Argument("WHAT", "reads, writes, memory or drop", &subject);
  line.Argument("TO", "on or off; of memory, its size; to drop, the namespace", &value);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  Status status = OneOf("subject", subject, kSubjects);
  const bool memory = subject == "memory", drop = subject == "drop";
  Result<std::uint64_t> bytes = 0;
  if (status.ok() && memory) bytes = ParseSize("memory", value);
  if (status.ok())
    status = !bytes ? bytes.error() : memory || drop ? Status() : OneOf("state", value, kStates);
  if (!status.ok()) return Complain(kName, status);
  Result<Store> store = Store::Connect(prompt.connect);
  if (!store) return Complain(kName, store.error());
  if (drop) return DropNamespace(prompt, *store, value);
  return memory ? Resize(prompt, *store, *bytes) : Switch(prompt, *store, subject, value);
}

}  // namespace cistern
