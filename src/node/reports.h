// SPDX-License-Identifier: Apache-2.0
// A node's lists as JSON: its namespaces and its settings. docs/commands.md names the fields; scripts rely on
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "node/options.h"
#include "server/parts.h"
#include "store/survey.h"

namespace cistern::mesh {
class Member;
class RailThreads;
class Sharing;
}  // namespace cistern::mesh

namespace cistern::node {

// Namespaces from slot number `from` on, as many as kPageBytes take, but one at least; the page goes on at a
// slot number. Each in a step of its own. kInvalid: the one takes more than `most_bytes`.
inline constexpr std::size_t kPageBytes = 64u << 10;
Task<Result<server::ReportPage>> NamespacesPage(Executor&, store::Survey::Uses uses, std::uint64_t from,
                                                std::size_t most_bytes);

// Members of the cell in the order of their ids, as many from number `from` on as kPageBytes take.
server::ReportPage MembersPage(const mesh::Member& member, const mesh::Sharing& sharing,
                               const mesh::RailThreads& rails, std::uint64_t from, Instant now);

// A member for each setting.
std::string SettingsText(const NodeOptions& options);

}  // namespace cistern::node
