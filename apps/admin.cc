// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <optional>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "commands.h"
#include "drain.h"
#include "namespace_list.h"
#include "prompt.h"

namespace cistern {
namespace {

constexpr std::string_view kName = "cistern admin";
constexpr std::string_view kSubjects[] = {"reads", "writes", "memory", "drop", "drain"};
constexpr std::uint64_t kDrainUs = 600'000'000, kMostDrainUs = 3'600'000'000;  // DrainOptions::within_us
constexpr std::string_view kStates[] = {"on", "off"};
constexpr std::string_view kReasons[] = {"upgrade", "reboot", "leaving"};

Status OneOf(std::string_view what, const std::string& text, std::span<const std::string_view> known) {
  for (const std::string_view one : known) {
    if (one == text) return Status();
  }
  return Status(Code::kInvalid, UnknownName(what, text, known));
}

int SwitchEngine(const Prompt& prompt, Store& store, const std::string& which, bool on,
                 const std::string& engine) {
  const auto deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  const Result<std::uint32_t> turned = which == "reads" ? store.SwitchEngineReads(engine, on, deadline_us)
                                                        : store.SwitchEngineWrites(engine, on, deadline_us);
  if (!turned) return Complain(kName, turned.error());
  const char* const state = on ? "on" : "off";
  if (prompt.json) {
    std::printf("{\"%s\":\"%s\",\"sessions\":%u}\n", which.c_str(), state, *turned);
  } else {
    std::printf("%s are %s for engine %s (%u sessions now%s)\n", which.c_str(), state, engine.c_str(),
                *turned, on ? "" : ", and those that come under this name");
  }
  return kExitOk;
}

int Switch(const Prompt& prompt, Store& store, const std::string& which, const std::string& state,
           const std::string& engine) {
  const auto deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  const bool on = state == "on";
  if (!engine.empty()) return SwitchEngine(prompt, store, which, on, engine);
  const Result<std::uint32_t> turned = which == "reads"
                                           ? store.SwitchReads(prompt.namespace_name, on, deadline_us)
                                           : store.SwitchWrites(prompt.namespace_name, on, deadline_us);
  if (!turned) return Complain(kName, turned.error());
  if (prompt.json) {
    std::printf("{\"%s\":\"%s\",\"namespaces\":%u}\n", which.c_str(), state.c_str(), *turned);
  } else if (prompt.namespace_name.empty()) {
    std::printf("%s are %s for all namespaces (%u now)\n", which.c_str(), state.c_str(), *turned);
  } else {
    std::printf("%s are %s for %s (%u namespaces)\n", which.c_str(), state.c_str(),
                prompt.namespace_name.c_str(), *turned);
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

// Of namespaces as `cistern namespaces` knows them: of one, or of each that is meant.
int DropNamespaces(const Prompt& prompt, Store& store, const std::string& named, bool each) {
  const auto deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  const Result<std::string> text = store.NamespacesJson(deadline_us);
  if (!text) return Complain(kName, text.error());
  const Result<std::vector<ListedNamespace>> all = ParseNamespaces(*text);
  if (!all) return Complain(kName, all.error());
  const Result<std::vector<const ListedNamespace*>> meant = FindNamespaces(*all, named);
  if (!meant) return Complain(kName, meant.error());
  if (meant->size() > 1 && !each) {
    const Status several = FindNamespace(*all, named).error();
    return Complain(kName, Status(several.code(), Text(several.message(), ", or --each for all of them")));
  }
  unsigned long long dropped = 0;
  for (const ListedNamespace* one : *meant) {
    const Result<std::uint64_t> blocks = store.DropNamed(one->fingerprint, deadline_us);
    if (!blocks) {
      return Complain(kName,
                      Status(blocks.error().code(), Text(one->title(), ": ", blocks.error().message(),
                                                         "; before it ", dropped, " blocks were dropped")));
    }
    dropped += *blocks;
  }
  std::printf(prompt.json ? "{\"dropped\":%llu}\n" : "%llu blocks dropped\n", dropped);
  return kExitOk;
}

// As it stands on the command line.
struct Asked {
  std::string subject, value;
  std::uint64_t bytes = 0;
  std::optional<std::string> reason;
  std::optional<std::uint64_t> within_us;
  std::string engine;
  bool then_stop = false, each = false;
};

Status Check(const Prompt& prompt, Asked& asked) {
  if (Status status = OneOf("subject", asked.subject, kSubjects); !status.ok()) return status;
  const bool switches = asked.subject == "reads" || asked.subject == "writes";
  if (!prompt.namespace_name.empty() && !switches)
    return Status(Code::kInvalid, Text("--namespace: is of reads and writes, and ", asked.subject,
                                       asked.subject == "drop" ? " names its own" : " is of the whole node"));
  if (!asked.engine.empty() && (!switches || !prompt.namespace_name.empty()))
    return Status(Code::kInvalid, "--engine: is of reads and writes, and beside no --namespace");
  if (asked.each && asked.subject != "drop") return Status(Code::kInvalid, "--each: is of drop");
  if (asked.subject == "drain" && asked.value.empty()) asked.value = "on";
  const std::string_view of_drain = asked.reason      ? "--for"
                                    : asked.within_us ? "--within"
                                    : asked.then_stop ? "--stop"
                                                      : "";
  if (!of_drain.empty() && (asked.subject != "drain" || asked.value == "off"))
    return Status(Code::kInvalid, Text(of_drain, ": is of drain, and of no other subject nor drain off"));
  if (asked.subject == "drain") {
    if (!asked.reason) asked.reason = "reboot";
    if (Status status = OneOf("--for", *asked.reason, kReasons); !status.ok()) return status;
    return OneOf("state", asked.value, kStates);
  }
  if (asked.value.empty())
    return Status(Code::kInvalid, Text(asked.subject, ": say what to; see `cistern admin --help`"));
  if (asked.subject == "drop") return Status();
  if (asked.subject != "memory") return OneOf("state", asked.value, kStates);
  const Result<std::uint64_t> bytes = ParseSize("memory", asked.value);
  if (!bytes) return bytes.error();
  asked.bytes = *bytes;
  return Status();
}

// A name that is empty, as a variable of a script that was not set, is not taken for all.
void Named(CommandLine& line, std::string_view flag, std::string_view help, std::string* name) {
  line.Flag(flag, "NAME", help, [flag, name](std::string_view text) {
    *name = text;
    return text.empty() ? Status(Code::kInvalid, Text(flag, ": is empty; name one, or leave it out for all"))
                        : Status();
  });
}

}  // namespace

int RunAdmin(int argc, const char* const* argv) {
  Prompt prompt;
  Asked asked;
  CommandLine line(
      kName,
      "Switches reads or writes off and on again while engines run, changes the size of memory, drops a\n"
      "namespace, or takes the node out of service. With reads off everything is a miss, with writes off\n"
      "nothing new is kept; engines compute instead, and what is stored stays. It lasts until it is turned\n"
      "back or the node ends. Memory that shrinks keeps the warmest blocks; `cistern status` says how far\n"
      "it is, and the next start or reload takes what is configured. A node that drains takes no puts,\n"
      "writes what memory alone has to flash, then is out of service: it may be stopped, or drain off\n"
      "undoes it.",
      "  cistern admin reads off\n  cistern admin reads on\n"
      "  cistern admin writes off --namespace llama-70b\n  cistern admin reads off --engine decode-3\n"
      "  cistern admin memory 128GiB\n"
      "  cistern admin drop model=llama-70b\n  cistern admin drain --for upgrade --stop\n"
      "  cistern admin drain --for leaving --within 1h\n"
      "  cistern admin drain off");
  prompt.AddTo(line, false);
  Named(line, "--namespace",
        "of reads and writes: this one alone, by its name or the fingerprint of its list, or those of this "
        "FIELD=VALUE; default: all, also those to come",
        &prompt.namespace_name);
  Named(line, "--engine",
        "of reads and writes: of this engine alone, also when it has been started again; `cistern status` "
        "lists them under by_engine",
        &asked.engine);
  line.Switch("--each", "of drop: each namespace that fits, where several do", &asked.each);
  line.Flag(
      "--for", "WHAT",
      "of drain: reboot, of the host, with which memory goes, upgrade, of the node, which leaves memory's "
      "files, or leaving, for good, so that the cell's other nodes are offered what flash has as well; "
      "default: reboot",
      [&asked](std::string_view text) {
        asked.reason = text;
        return Status();
      });
  line.Flag("--within", "DURATION", "of drain: how long it may take; default: 10min",
            [&asked](std::string_view text) {
              const Result<std::uint64_t> within_us = ParseDurationUs("--within", text);
              if (!within_us) return within_us.error();
              asked.within_us = *within_us;
              if (*within_us <= kMostDrainUs) return Status();
              return Status(Code::kInvalid, Text("--within: ", DurationText(*within_us),
                                                 " is over the limit of ", DurationText(kMostDrainUs)));
            });
  line.Switch("--stop", "of drain: the node ends then", &asked.then_stop);
  line.Argument("WHAT", "reads, writes, memory, drop or drain", &asked.subject);
  line.Argument("TO",
                "on or off; of memory, its size; to drop, the namespace; of drain, on where it is left out",
                &asked.value, false);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (Status status = Check(prompt, asked); !status.ok()) return Complain(kName, status);
  Result<Store> store = Store::Connect(prompt.connect);
  if (!store) return Complain(kName, store.error());
  if (asked.subject == "drop") return DropNamespaces(prompt, *store, asked.value, asked.each);
  if (asked.subject == "memory") return Resize(prompt, *store, asked.bytes);
  if (asked.subject != "drain") return Switch(prompt, *store, asked.subject, asked.value, asked.engine);
  const DrainOptions drain{.on = asked.value == "on",
                           .memory_goes = asked.reason != "upgrade",
                           .flash_goes = asked.reason == "leaving",
                           .then_stop = asked.then_stop,
                           .within_us = static_cast<std::int64_t>(asked.within_us.value_or(kDrainUs))};
  return RunDrain(kName, *store, drain, static_cast<std::int64_t>(prompt.deadline_us), prompt.json);
}

}  // namespace cistern
