// SPDX-License-Identifier: Apache-2.0
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <cstdio>

#include "base/format.h"
#include "commands.h"
#include "node/configuration.h"
#include "node/reports.h"
#include "node/start_check.h"
#include "prompt.h"

namespace cistern {
namespace {

namespace json = boost::json;

constexpr std::string_view kName = "cistern config";

// What a node with this file has on this host.
Result<std::string> OfFile(const std::string& file, bool check) {
  Result<node::NodeOptions> options = node::ReadConfiguration({.file = file});
  if (!options) return Error(options.error());
  Status status = node::ResolveNodeOptions(*options);
  if (status.ok() && check) status = node::CheckNodeOptions(*options);
  if (!status.ok()) return Error(std::move(status));
  return Text("{\"settings\":[", node::SettingsText(*options), "]}");
}

Result<std::string> OfNode(const Prompt& prompt) {
  Result<Store> store = Store::Connect(prompt.connect);
  if (!store) return Error(store.error());
  return store->ConfigurationJson(static_cast<std::int64_t>(prompt.deadline_us));
}

Status Print(const std::string& text) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  const json::value* settings = error ? nullptr : value.find_pointer("/settings", error);
  if (settings == nullptr || !settings->is_array())
    return Status(Code::kMismatch, "the node's settings are not a list; is it of another version?");
  const auto text_of = [](const json::object& setting, std::string_view name) {
    const json::value* member = setting.if_contains(name);
    return member != nullptr && member->is_string() ? std::string(member->get_string()) : std::string();
  };
  for (const json::value& one : settings->get_array()) {
    if (!one.is_object()) continue;
    const json::object& setting = one.get_object();
    const json::value* reload = setting.if_contains("reload");
    const bool now = reload != nullptr && reload->is_bool() && reload->get_bool();
    const std::string set_to = text_of(setting, "value");
    std::printf("%-17s %-36s %-28s %s\n", text_of(setting, "name").c_str(),
                set_to.empty() ? "-" : set_to.c_str(), text_of(setting, "from").c_str(),
                now ? "reload" : "restart");
  }
  return Status();
}

}  // namespace

int RunConfig(int argc, const char* const* argv) {
  Prompt prompt;
  std::string file, check;
  CommandLine line(
      kName,
      "The settings of the node that runs, or of one that would start with a file: each with its value, "
      "where that\ncomes from (default, FILE:LINE or the flag), and whether a reload (SIGHUP) changes it "
      "or a restart.",
      "  cistern config\n  cistern config --file /etc/cistern/cistern.toml\n"
      "  cistern config --check /etc/cistern/cistern.toml && systemctl reload cisternd");
  prompt.AddTo(line, false);
  line.Text("--file", "FILE", "this configuration file's on this host; no node is asked", &file);
  line.Text("--check", "FILE",
            "says what is wrong with this file on this host, and prints nothing where nothing is", &check);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (!file.empty() && !check.empty())
    return Complain(kName, Status(Code::kInvalid, "--file and --check exclude each other"));
  const Result<std::string> text = !check.empty()  ? OfFile(check, true)
                                   : !file.empty() ? OfFile(file, false)
                                                   : OfNode(prompt);
  if (!text) return Complain(kName, text.error());
  if (prompt.json) {
    std::printf("%s\n", check.empty() ? text->c_str() : "{\"ok\":true}");
    return kExitOk;
  }
  if (!check.empty()) return kExitOk;
  const Status status = Print(*text);
  return status.ok() ? kExitOk : Complain(kName, status);
}

}  // namespace cistern
