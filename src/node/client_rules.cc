// SPDX-License-Identifier: Apache-2.0
#include "node/client_rules.h"

#include <grp.h>
#include <pwd.h>

#include <charconv>
#include <cstdint>
#include <optional>

#include "base/format.h"
#include "base/nearest.h"

namespace cistern::node {
namespace {

// UINT32_MAX is nobody's: system calls take it for "unchanged".
std::optional<std::uint32_t> Number(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number == UINT32_MAX) return std::nullopt;
  return number;
}

// At the start and at a reload, by one thread.
std::optional<std::uint32_t> Lookup(ClientRule::Kind kind, const std::string& name) {
  if (kind == ClientRule::Kind::kUser) {
    const passwd* user = ::getpwnam(name.c_str());
    return user == nullptr ? std::nullopt : std::optional<std::uint32_t>(user->pw_uid);
  }
  const group* found = ::getgrnam(name.c_str());
  return found == nullptr ? std::nullopt : std::optional<std::uint32_t>(found->gr_gid);
}

}  // namespace

Status AddClientRule(std::string_view name, std::string_view text, std::vector<ClientRule>& rules) {
  ClientRule rule{.text = std::string(text)};
  if (text == "any") {
    rule.kind = ClientRule::Kind::kAny;
    rules.push_back(std::move(rule));
    return Status();
  }
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  if (colon == std::string_view::npos || (kind != "user" && kind != "group"))
    return Status(Code::kInvalid,
                  Text(name, ": \"", Shown(text), "\" is none of user:UID, group:GID and any"));
  rule.kind = kind == "user" ? ClientRule::Kind::kUser : ClientRule::Kind::kGroup;
  const std::string who(text.substr(colon + 1));
  std::optional<std::uint32_t> id = Number(who);
  if (!id && !who.empty()) id = Lookup(rule.kind, who);
  if (!id && !who.empty() && who.find_first_not_of("-0123456789") == std::string::npos)
    return Status(Code::kInvalid, Text(name, ": ", text, " is no number from 0 to ", UINT32_MAX - 1));
  if (!id)
    return Status(Code::kInvalid, Text(name, ": this host has no ", kind, " \"", Shown(who),
                                       "\"; make it first, or write a number, as in ", kind, ":1000"));
  rule.id = *id;
  rules.push_back(std::move(rule));
  return Status();
}

server::PeerRules PeerRulesOf(const std::vector<ClientRule>& rules) {
  server::PeerRules peers;
  for (const ClientRule& rule : rules) {
    switch (rule.kind) {
      case ClientRule::Kind::kAny: peers.anyone = true; break;
      case ClientRule::Kind::kUser: peers.users.push_back(rule.id); break;
      case ClientRule::Kind::kGroup: peers.groups.push_back(rule.id); break;
    }
  }
  return peers;
}

}  // namespace cistern::node
