// SPDX-License-Identifier: Apache-2.0
// How the setting `clients` is written: who may connect beside processes of the node's own user.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cistern/status.h"
#include "node/options.h"
#include "server/peer_credentials.h"

namespace cistern::node {

// user:UID, group:GID or any, added to the list; names are looked up on this host. Messages begin with
// `name`.
Status AddClientRule(std::string_view name, std::string_view text, std::vector<ClientRule>& rules);

server::PeerRules PeerRulesOf(const std::vector<ClientRule>& rules);

}  // namespace cistern::node
