// SPDX-License-Identifier: Apache-2.0
// The configuration file. toml++ is included here and nowhere else.
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <fstream>
#include <iterator>

#include "base/format.h"
#include "base/nearest.h"
#include "node/options.h"

namespace cistern {
namespace {

Status At(const std::string& origin, const toml::source_region& where, std::string_view what) {
  return Status(Code::kInvalid, Text(origin, ":", where.begin.line, ": ", what));
}

}  // namespace

Status ApplyConfigText(NodeOptions& options, std::string_view text, const std::string& origin) {
  toml::parse_result parsed = toml::parse(text, origin);
  if (!parsed) return At(origin, parsed.error().source(), parsed.error().description());
  NodeOptions changed = options;  // all or nothing
  for (auto&& [key, node] : parsed.table()) {
    std::string value;
    if (auto string = node.value_exact<std::string>()) {
      value = *string;
    } else if (auto number = node.value_exact<std::int64_t>()) {
      value = Text(*number);
    } else {
      return At(origin, node.source(),
                Text(Shown(key.str()), ": a value is a string (\"4GiB\") or a whole number"));
    }
    if (Status status = SetNodeOption(changed, key.str(), key.str(), value); !status.ok()) {
      return At(origin, node.source(), status.message());
    }
  }
  options = changed;
  return Status();
}

Status ApplyConfigFile(NodeOptions& options, const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return Status(Code::kInvalid, Text("configuration file ", path, " cannot be read; check the path"));
  }
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return ApplyConfigText(options, text, path);
}

}  // namespace cistern
