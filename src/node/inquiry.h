// SPDX-License-Identifier: Apache-2.0
// Questions about a chain that a person or a router asks a node of a cell, answered as JSON
// (docs/commands.md names the fields).
#pragma once

#include <string>

#include "base/task.h"
#include "server/parts.h"

namespace cistern::mesh {
class Member;
class SharedNames;
class Sharing;
}  // namespace cistern::mesh

namespace cistern::node {

struct Inquiry {  // borrowed
  Executor& on;
  store::BlockStore& store;
  const mesh::Member& member;
  mesh::Sharing& sharing;
  const mesh::SharedNames& names;
  Executor& executor() const { return on; }
};

// Which member has how much of the chain, most of it first.
Task<Result<std::string>> HoldersText(const Inquiry& inquiry, const server::ChainQuestion& question);
// Why the chain's last block is not found here, or was refused.
Task<Result<std::string>> ExplainText(const Inquiry& inquiry, const server::ChainQuestion& question);

}  // namespace cistern::node
