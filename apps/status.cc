// SPDX-License-Identifier: Apache-2.0
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cstdio>

#include "base/format.h"
#include "commands.h"
#include "prompt.h"

namespace cistern {
namespace {

// "memory.used_bytes   123" a line: for eyes, and for grep.
void PrintFlat(const boost::json::value& value, const std::string& name) {
  if (const boost::json::object* object = value.if_object()) {
    for (const auto& [key, member] : *object) {
      PrintFlat(member, name.empty() ? std::string(key) : name + "." + std::string(key));
    }
    return;
  }
  if (const boost::json::array* array = value.if_array(); array != nullptr && !array->empty()) {
    for (std::size_t i = 0; i < array->size(); ++i) PrintFlat(array->at(i), Text(name, ".", i));
    return;
  }
  std::string text = value.is_string() ? std::string(value.get_string()) : boost::json::serialize(value);
  std::printf("%-34s %s\n", name.c_str(), text.c_str());
}

}  // namespace

int RunStatus(int argc, const char* const* argv) {
  Prompt prompt;
  CommandLine line("cistern status", "What the node of this host holds and does.",
                   "  cistern status\n  cistern status --json | python3 -m json.tool");
  prompt.AddTo(line, false);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  Result<Store> store = Store::Connect(prompt.connect);
  if (!store) return Complain("cistern status", store.error());
  Result<std::string> status = store->StatusJson(static_cast<std::int64_t>(prompt.deadline_us));
  if (!status) return Complain("cistern status", status.error());
  if (prompt.json) {
    std::printf("%s\n", status->c_str());
    return kExitOk;
  }
  boost::system::error_code error;
  boost::json::value value = boost::json::parse(*status, error);
  if (error)
    return Complain("cistern status",
                    Status(Code::kMismatch, "the node's status is not JSON; is it another version?"));
  PrintFlat(value, "");
  return kExitOk;
}

}  // namespace cistern
