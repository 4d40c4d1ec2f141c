// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "base/format.h"
#include "commands.h"
#include "prompt.h"

namespace cistern {
namespace {

namespace json = boost::json;

constexpr std::string_view kName = "cistern cell";

// {"cell": {...}, "members": [...]}: the node's section of its status, and its view of the others.
Result<json::object> CellOf(const Prompt& prompt) {
  Result<Store> store = Store::Connect(prompt.connect);
  if (!store) return Error(store.error());
  const auto deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  Result<std::string> members = store->CellJson(deadline_us);
  if (!members) return Error(members.error());
  Result<std::string> status = store->StatusJson(deadline_us);
  if (!status) return Error(status.error());
  boost::system::error_code error;
  json::value of_members = json::parse(*members, error);
  const json::value of_status = error ? json::value() : json::parse(*status, error);
  const json::value* cell = error ? nullptr : of_status.find_pointer("/cell", error);
  const json::value* list = cell == nullptr ? nullptr : of_members.find_pointer("/members", error);
  if (list == nullptr || !list->is_array() || !cell->is_object())
    return Error(Code::kMismatch, "the node's answer is not what this version knows; is it of another one?");
  return json::object{{"cell", *cell}, {"members", *list}};
}

std::string TextOf(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || value->is_null()) return "-";
  if (!value->is_string()) return json::serialize(*value);
  return value->get_string().empty() ? "-" : std::string(value->get_string());
}

// Gigabytes a second, where something was read lately.
std::string RateOf(const json::object& member) {
  const json::value* rate = member.if_contains("gb_per_s");
  if (rate == nullptr || !rate->is_number()) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", rate->to_number<double>());
  return text.data();
}

void Print(const json::object& all) {
  const json::object& cell = all.at("cell").get_object();
  std::printf("%s, history %s: %s\n", TextOf(cell, "prefix").c_str(), TextOf(cell, "history").c_str(),
              TextOf(cell, "joined") == "true" ? "joined" : "not joined");
  if (const std::string trouble = TextOf(cell, "trouble"); trouble != "-")
    std::printf("trouble: %s\n", trouble.c_str());
  if (const std::string conflict = TextOf(cell, "name_conflict"); conflict != "-")
    std::printf("names of other lists: %s; %s\n", TextOf(cell, "name_conflicts").c_str(), conflict.c_str());
  if (const std::string rdma = TextOf(cell, "rdma"); rdma != "-") std::printf("rdma: %s\n", rdma.c_str());
  if (const std::string none = TextOf(cell, "no_rdma"); none != "-")
    std::printf("no rdma: %s\n", none.c_str());
  std::printf("drops: seen %s, applied %s\n", TextOf(cell, "seen").c_str(), TextOf(cell, "applied").c_str());
  std::printf("read from others: %s blocks, %s bytes; they from this node: %s blocks, %s bytes\n",
              TextOf(cell, "peer_read_blocks").c_str(), TextOf(cell, "peer_read_bytes").c_str(),
              TextOf(cell, "served_blocks").c_str(), TextOf(cell, "served_bytes").c_str());
  std::printf(
      "handed over: %s blocks at a drain, %s copies, %s to who joined, %s to members that store; taken: "
      "%s\n\n",
      TextOf(cell, "given_blocks").c_str(), TextOf(cell, "copied_blocks").c_str(),
      TextOf(cell, "warmed_blocks").c_str(), TextOf(cell, "stored_blocks").c_str(),
      TextOf(cell, "taken_blocks").c_str());
  std::printf("%-20s %-24s %-10s %-8s %-10s %-12s %-10s %-5s %-6s %s\n", "MEMBER", "ADDRESS", "ZONE", "ROLE",
              "VERSION", "APPLIED", "SAMPLES", "RAILS", "GB/S", "CONNECTION");
  for (const json::value& one : all.at("members").get_array()) {
    if (!one.is_object()) continue;
    const json::object& member = one.get_object();
    const bool self = TextOf(member, "self") == "true", connected = TextOf(member, "connected") == "true";
    const bool asked = TextOf(member, "asked") != "false";
    const std::string no_rail = TextOf(member, "no_rail");
    std::printf("%-20s %-24s %-10s %-8s %-10s %-12s %-10s %-5s %-6s %s\n", TextOf(member, "id").c_str(),
                TextOf(member, "address").c_str(), TextOf(member, "zone").c_str(),
                TextOf(member, "role").c_str(), TextOf(member, "version").c_str(),
                TextOf(member, "applied").c_str(), TextOf(member, "samples").c_str(),
                self ? "-" : TextOf(member, "rails").c_str(), RateOf(member).c_str(),
                self ? "this node"
                : connected && no_rail != "-"
                    ? ("yes, but no blocks come, of the port behind that address: " + no_rail).c_str()
                : connected && !asked ? "yes, and not asked for a while: it did not answer"
                : connected           ? "yes"
                                      : ("none: " + TextOf(member, "why")).c_str());
  }
}

// A namespace that the node knows, and a chain in it.
struct Chain {
  Attachment at;
  std::vector<BlockKey> keys;
};

Result<Chain> ChainOf(const Prompt& prompt, const std::vector<std::string>& texts) {
  Result<std::vector<BlockKey>> keys = KeysFromHex(texts);
  if (!keys) return Error(keys.error());
  Result<Attachment> at = AttachByName(prompt, IfNew::kRefuse);
  if (!at) return Error(at.error());
  return Chain{std::move(*at), std::move(*keys)};
}

Result<json::object> ObjectOf(const Result<std::string>& text) {
  if (!text) return Error(text.error());
  boost::system::error_code error;
  json::value value = json::parse(*text, error);
  if (error || !value.is_object())
    return Error(Code::kMismatch, "the node's answer is not what this version knows; is it of another one?");
  return std::move(value.get_object());
}

void PrintHolders(const json::object& all) {
  std::printf("%-20s %-12s %-10s %-10s %s\n", "MEMBER", Text("OF ", TextOf(all, "of")).c_str(), "MEMORY",
              "FLASH", "");
  for (const json::value& one : all.at("members").get_array()) {
    const json::object& member = one.get_object();
    const bool exact = TextOf(member, "exact") == "true", self = TextOf(member, "self") == "true";
    std::printf("%-20s %-12s %-10s %-10s %s\n", TextOf(member, "member").c_str(),
                TextOf(member, "blocks").c_str(), exact ? TextOf(member, "memory").c_str() : "-",
                exact ? TextOf(member, "flash").c_str() : "-",
                self    ? "this node"
                : exact ? ""
                        : TextOf(member, "why").c_str());
  }
}

}  // namespace

int RunCellWho(int argc, const char* const* argv) {
  constexpr std::string_view kWho = "cistern cell who";
  Prompt prompt;
  std::vector<std::string> texts;
  CommandLine line(
      kWho,
      "Which member of the cell has how many blocks of a prompt, from its first on; who has most "
      "comes first.\nMembers of which something of it is known are asked. Exits 1 where the node "
      "is in no cell, or does not\nknow the namespace.",
      "  cistern cell who --namespace demo 00112233445566778899aabbccddeeff "
      "0112233445566778899aabbccddeeff0");
  prompt.AddTo(line, true);
  line.Arguments("KEY", "the chain's keys from block 0 on", &texts);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  Result<Chain> chain = ChainOf(prompt, texts);
  if (!chain) return Complain(kWho, chain.error());
  const Result<json::object> all = ObjectOf(chain->at.store.CellHoldersJson(
      chain->at.ns, chain->keys, static_cast<std::int64_t>(prompt.deadline_us)));
  if (!all) return Complain(kWho, all.error());
  if (prompt.json) {
    std::printf("%s\n", json::serialize(*all).c_str());
  } else {
    PrintHolders(*all);
  }
  return kExitOk;
}

int RunCellExplain(int argc, const char* const* argv) {
  constexpr std::string_view kExplain = "cistern cell explain";
  Prompt prompt;
  std::vector<std::string> texts;
  CommandLine line(kExplain,
                   "Why a block is not found at the node, or was refused there: every member that can be "
                   "reached is asked for it.\nExits 1 where the node is in no cell, or does not know the "
                   "namespace.",
                   "  cistern cell explain --namespace demo 00112233445566778899aabbccddeeff\n"
                   "  cistern cell explain --namespace demo 00112233445566778899aabbccddeeff "
                   "0112233445566778899aabbccddeeff0");
  prompt.AddTo(line, true);
  line.Arguments("KEY", "the block's key, behind those of its chain from block 0 on where they are known",
                 &texts);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  Result<Chain> chain = ChainOf(prompt, texts);
  if (!chain) return Complain(kExplain, chain.error());
  const Result<json::object> found = ObjectOf(chain->at.store.CellExplanationJson(
      chain->at.ns, chain->keys, static_cast<std::int64_t>(prompt.deadline_us)));
  if (!found) return Complain(kExplain, found.error());
  if (prompt.json) {
    std::printf("%s\n", json::serialize(*found).c_str());
    return kExitOk;
  }
  std::printf("%s: %s\n", TextOf(*found, "finding").c_str(), TextOf(*found, "text").c_str());
  for (const json::value& one : found->at("members").get_array()) {
    const json::object& member = one.get_object();
    const std::string why = TextOf(member, "why");
    std::printf("  %-20s %s\n", TextOf(member, "member").c_str(),
                TextOf(member, "has_it") == "true" ? "has it"
                : why == "-"                       ? "has it not"
                                                   : why.c_str());
  }
  return kExitOk;
}

int RunCell(int argc, const char* const* argv) {
  if (argc > 1 && std::string_view(argv[1]) == "drain") {
    std::vector<const char*> admin = {"admin"};
    admin.insert(admin.end(), argv + 1, argv + argc);
    return RunAdmin(static_cast<int>(admin.size()), admin.data());
  }
  Prompt prompt;
  CommandLine line(
      kName,
      "The cell of the node that runs, as that node sees it: its members, how far each has applied "
      "the cell's drops,\nand what is wrong. Exits 1 where the node is in no cell. `cistern cell drain` is "
      "`cistern admin "
      "drain`.",
      "  cistern cell\n  cistern cell --json");
  prompt.AddTo(line, false);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  const Result<json::object> all = CellOf(prompt);
  if (!all) return Complain(kName, all.error());
  if (prompt.json) {
    std::printf("%s\n", json::serialize(*all).c_str());
  } else {
    Print(*all);
  }
  return kExitOk;
}

}  // namespace cistern
