// SPDX-License-Identifier: Apache-2.0
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "commands.h"
#include "namespace_list.h"
#include "prompt.h"

namespace cistern {
namespace {

namespace json = boost::json;

constexpr std::string_view kName = "cistern namespaces";
constexpr std::string_view kActions[] = {"list", "diff"};

std::string Joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

std::string LastUse(const ListedNamespace& ns) {
  if (!ns.unused_us) return "not used since the node's start";
  const std::uint64_t seconds = *ns.unused_us / 1'000'000;
  const std::string ago = seconds < 120    ? Text(seconds, " s ago")
                          : seconds < 7200 ? Text(seconds / 60, " min ago")
                                           : Text(seconds / 3600, " h ago");
  return Text(ns.uses, " uses, the last ", ago);
}

void Print(const ListedNamespace& ns) {
  std::printf("%s  %s\n", ns.fingerprint.c_str(),
              ns.names.empty() ? "(no name)" : Joined(ns.names, ", ").c_str());
  std::printf("  %llu blocks, %s in memory, %s on flash, %s, %llu engines\n",
              static_cast<unsigned long long>(ns.blocks), RoughSizeText(ns.memory_bytes).c_str(),
              RoughSizeText(ns.flash_bytes).c_str(), LastUse(ns).c_str(),
              static_cast<unsigned long long>(ns.owners));
  for (const auto& [name, value] : ns.labels)
    std::printf("  %-20s %s (label)\n", name.c_str(), value.c_str());
  for (const auto& [name, value] : ns.fields) std::printf("  %-20s %s\n", name.c_str(), value.c_str());
  for (const ListedGroup& group : ns.groups) {
    std::printf("  group %-14s reach %s", group.name.c_str(), group.reach.c_str());
    if (group.reach == "window")
      std::printf(" of %llu tokens", static_cast<unsigned long long>(group.window_tokens));
    std::printf(", %zu part%s\n", std::max<std::size_t>(group.part_bytes.size(), 1),
                group.part_bytes.size() > 1 ? "s" : "");
  }
}

void PrintDiff(const ListedNamespace& a, const ListedNamespace& b,
               const std::vector<NamespaceDifference>& differences, bool as_json) {
  bool apart = false;
  json::array list;
  for (const NamespaceDifference& difference : differences) {
    apart = apart || difference.identity;
    list.push_back(json::object{{"what", difference.what},
                                {"a", difference.a},
                                {"b", difference.b},
                                {"identity", difference.identity}});
  }
  if (as_json) {
    const json::object whole{
        {"a", a.fingerprint}, {"b", b.fingerprint}, {"shared", !apart}, {"differences", std::move(list)}};
    std::printf("%s\n", json::serialize(whole).c_str());
    return;
  }
  std::printf("a  %s  %s\nb  %s  %s\n", a.fingerprint.c_str(), a.title().c_str(), b.fingerprint.c_str(),
              b.title().c_str());
  for (const NamespaceDifference& difference : differences) {
    std::printf("%s%s\n  a  %s\n  b  %s\n", difference.what.c_str(),
                difference.identity ? "" : " (not part of the identity)", difference.a.c_str(),
                difference.b.c_str());
  }
  std::printf(apart ? "Engines of a and b share no blocks: they must agree in all of these.\n"
                    : "One namespace: engines that attach either way share its blocks.\n");
}

Status Check(const std::vector<std::string>& words) {
  if (words.empty()) return Status();
  bool known = false;
  for (const std::string_view action : kActions) known = known || action == words.front();
  if (!known) return Status(Code::kInvalid, UnknownName("action", words.front(), kActions));
  if (words.front() == "diff" && words.size() != 3) {
    return Status(Code::kInvalid,
                  Text("diff takes two namespaces, and ", words.size() - 1,
                       " were given; each is a name, the beginning of a fingerprint, or FIELD=VALUE"));
  }
  return words.front() == "list" && words.size() > 1
             ? Status(Code::kInvalid, Text("list takes nothing more, and ", Shown(words[1]), " is more"))
             : Status();
}

}  // namespace

int RunNamespaces(int argc, const char* const* argv) {
  Prompt prompt;
  std::vector<std::string> words;
  CommandLine line(
      kName,
      "The namespaces that a node knows, what each has in each tier and how much it was used; or what "
      "two of them\ndiffer in, which is why engines do not share blocks. A namespace is its name, the "
      "beginning of its\nfingerprint, or FIELD=VALUE.",
      "  cistern namespaces\n  cistern namespaces diff model=llama-a model=llama-b\n"
      "  cistern namespaces --json | python3 -m json.tool");
  prompt.AddTo(line, false);
  line.Arguments("ACTION", "list (the default), or diff A B", &words, false);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (Status status = Check(words); !status.ok()) return Complain(kName, status);
  Result<Store> store = Store::Connect(prompt.connect);
  if (!store) return Complain(kName, store.error());
  const Result<std::string> text = store->NamespacesJson(static_cast<std::int64_t>(prompt.deadline_us));
  if (!text) return Complain(kName, text.error());
  const bool diff = !words.empty() && words.front() == "diff";
  if (prompt.json && !diff) {
    std::printf("%s\n", text->c_str());
    return kExitOk;
  }
  const Result<std::vector<ListedNamespace>> all = ParseNamespaces(*text);
  if (!all) return Complain(kName, all.error());
  if (!diff) {
    for (const ListedNamespace& ns : *all) Print(ns);
    if (all->empty()) std::printf("none: nothing has been put on this node yet\n");
    return kExitOk;
  }
  const Result<const ListedNamespace*> a = FindNamespace(*all, words[1]);
  if (!a) return Complain(kName, a.error());
  const Result<const ListedNamespace*> b = FindNamespace(*all, words[2]);
  if (!b) return Complain(kName, b.error());
  PrintDiff(**a, **b, Differences(**a, **b), prompt.json);
  return kExitOk;
}

}  // namespace cistern
