// SPDX-License-Identifier: Apache-2.0
#include "node/configuration.h"

#include "wire/socket_path.h"

namespace cistern::node {

std::string FlagOf(std::string_view setting) {
  std::string flag = "--" + std::string(setting);
  for (char& c : flag) c = c == '_' ? '-' : c;
  return flag;
}

Result<NodeOptions> ReadConfiguration(const ConfigurationSource& source) {
  NodeOptions options;
  if (!source.file.empty()) {
    if (Status status = ApplyConfigFile(options, source.file); !status.ok()) return Error(std::move(status));
  }
  for (const auto& [name, text] : source.flags) {
    if (const Setting* setting = FindNodeSetting(name); setting != nullptr && setting->clear != nullptr)
      setting->clear(options);
  }
  for (const auto& [name, text] : source.flags) {
    if (Status status = SetNodeOption(options, FlagOf(name), name, text); !status.ok())
      return Error(std::move(status));
    options.origins[name] = FlagOf(name);
  }
  if (options.socket.empty()) options.socket = wire::DefaultSocketPath();
  return options;
}

}  // namespace cistern::node
