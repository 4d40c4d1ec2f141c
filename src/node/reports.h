// SPDX-License-Identifier: Apache-2.0
// A node's list of namespaces as JSON. docs/commands.md names the fields; scripts rely on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/parts.h"
#include "store/survey.h"

namespace cistern::node {

// Namespaces from slot number `from` on, as many as kPageBytes take, but one at least; the page goes on at a
// slot number. Each in a step of its own. kInvalid: the one takes more than `most_bytes`.
inline constexpr std::size_t kPageBytes = 64u << 10;
Task<Result<server::ReportPage>> NamespacesPage(Executor&, store::Survey::Uses uses, std::uint64_t from,
                                                std::size_t most_bytes);

}  // namespace cistern::node
